"""Containers of podman, by its command line: its docker API drops a wish for GPUs without a word."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol

from envcheck.errors import UnavailableError
from envcheck.images.engines import bootstrap as bases
from envcheck.images.engines import cannot_run, containers, subprocesses
from envcheck.images.engines.containers import OWNER, BindMount, ImageInfo, is_orphan, owner
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.plan import PLATFORMS, BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

_TIMEOUT: Final = 60.0
_POLL: Final = 0.05


class _Client(Protocol):
    """The `podman start` that hands our stdin on."""

    stdin: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


class PodmanContainer:
    """A started container. Its stdin is a pipe of this process: when this process dies, it reads end of file."""

    def __init__(self, container: str, client: _Client) -> None:
        self.id = container
        self._client = client

    def wait(self, timeout: float) -> int | None:
        """Return the exit status, or None when it still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            # Asked before its state, so that one that could not be started is not taken for one still to start.
            ended = self._client.poll() is not None
            state = self._state()
            if state.get("Status") in {"exited", "stopped"}:
                return int(state["ExitCode"])
            if ended and state.get("Status") != "running":
                message = f"podman could not start the container: {state.get('Error') or state.get('Status')}"
                raise UnavailableError(message, fix=f"try `podman start --attach {self.id[:12]}` by hand")
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL)

    def out_of_memory(self) -> bool:
        """Tell whether the kernel ended it for its memory limit."""
        return bool(self._state().get("OOMKilled"))

    def logs(self, lines: int = 40) -> str:
        """Return the last lines it wrote to stdout and stderr."""
        return subprocesses.stream(["podman", "logs", f"--tail={lines}", self.id], timeout=_TIMEOUT).output

    def close(self) -> None:
        """End it if it still runs, and remove it."""
        if self._client.stdin is not None:
            self._client.stdin.close()
        subprocesses.stream(["podman", "kill", self.id], timeout=_TIMEOUT)
        subprocesses.stream(["podman", "rm", "--force", self.id], timeout=_TIMEOUT)
        self._client.kill()
        self._client.wait()

    def _state(self) -> dict[str, Any]:
        inspected = _podman("inspect", "--type=container", "--format={{json .State}}", self.id)
        return dict(json.loads(inspected))


def inspect(image: str) -> ImageInfo | None:
    """Return what podman holds under a reference or id, or None."""
    return Podman().inspect(image)


def history(image: str) -> list[str]:
    """Return how a local image was made: the instruction of each layer, the last one first."""
    inspected = json.loads(_podman("image", "inspect", image))[0]
    return [str(layer.get("created_by") or "") for layer in reversed(inspected.get("History") or [])]


def run_container(
    image: str,
    *,
    argv: Sequence[str],
    mounts: Sequence[BindMount] = (),
    shm_size: str | None = None,
    gpus: bool = False,
    user: str | None = None,
) -> PodmanContainer:
    """Start a container of a local image, as `sdk.run_container` does. GPUs are passed in as CDI devices."""
    _sweep()
    container = _podman("create", *options(mounts, shm_size, user, gpus=gpus), *_command(image, argv)).split()[-1]
    try:
        # Before it is started, for only this call says what is wrong with it.
        _podman("init", container)
        return PodmanContainer(
            container, subprocesses.attach(["podman", "start", "--attach", "--interactive", container])
        )
    except BaseException:
        subprocesses.stream(["podman", "rm", "--force", container], timeout=_TIMEOUT)
        raise


def options(mounts: Sequence[BindMount], shm_size: str | None, user: str | None, *, gpus: bool) -> list[str]:
    """Return the options of `podman create`. Its log is cut at 1 MB, so that a flood fills no disk."""
    return [
        "--interactive",
        "--pull=never",
        f"--label={OWNER}={owner()}",
        # With SELinux's separation a container may read none of what is mounted.
        "--security-opt=label=disable",
        *("--log-driver=k8s-file", "--log-opt=max-size=1m"),
        *(f"--mount=type=bind,source={m.source},target={m.target},ro={str(m.read_only).lower()}" for m in mounts),
        *([f"--shm-size={shm_size}"] if shm_size else []),
        *([f"--user={user}"] if user else []),
        *(["--device=nvidia.com/gpu=all"] if gpus else []),
    ]


def _command(image: str, argv: Sequence[str]) -> list[str]:
    return [f"--entrypoint={json.dumps(list(argv[:1]))}", image, *argv[1:]]


def _sweep() -> None:
    """Remove ended containers of ours whose process is gone; nobody is left to read them."""
    listed = ["podman", "ps", "--all", "--filter=status=exited", f"--filter=label={OWNER}", "--format=json"]
    result = subprocesses.stream(listed, timeout=_TIMEOUT)
    for old in json.loads(result.output) if result.status == 0 else []:
        if is_orphan(old["Labels"][OWNER]):
            subprocesses.stream(["podman", "rm", old["Id"]], timeout=_TIMEOUT)


def _podman(verb: str, *arguments: str) -> str:
    result = subprocesses.stream(["podman", verb, *arguments], timeout=_TIMEOUT)
    if result.status == 0:
        return result.output
    last = (result.output.strip().splitlines() or ["it took too long"])[-1]
    if "nvidia.com/gpu" in last:
        message = "podman knows no NVIDIA GPUs of this machine"
        fix = "describe them: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        raise UnavailableError(message, fix=fix)
    message = f"podman {verb} failed: {last}"
    raise UnavailableError(message, fix="try it by hand; `podman info` tells whether podman works here")


class Podman:
    """The podman of this user."""

    name: Final = "podman"

    def __init__(self) -> None:
        result = subprocesses.stream(["podman", "info"], timeout=30)
        if result.status != 0:
            message = "podman does not work here (`podman info` fails)"
            raise UnavailableError(message, fix="run it by hand to see why, or use --engine docker or venv")

    def answers(self) -> bool:
        """Tell whether podman still answers."""
        return subprocesses.stream(["podman", "info"], timeout=30).status == 0

    def frontend(self) -> list[str]:
        """Return the build command; the docker format keeps what the OCI format has no place for.

        Buildah knows a RUN by its text and not by what is mounted: its cache would give one lock's layer for another's.
        """
        return ["podman", "build", "--format=docker", "--pull=missing", "--no-cache"]

    def demand_contexts(self) -> None:
        """Raise UnavailableError where this podman is older than 4.2 and takes no named context."""
        if "--build-context" not in subprocesses.stream(["podman", "build", "--help"], timeout=30).output:
            message = "--prefetch needs a named build context, which this podman does not support"
            raise UnavailableError(message, fix="use podman 4.2 or later, or leave --prefetch out")

    def demand_platform(self, platform: str) -> None:
        """Raise UnavailableError where the kernel starts no emulator for the platform's programs (binfmt_misc)."""
        machine = next(arch for arch, name in PLATFORMS.items() if name == platform)
        if machine != os.uname().machine and not _emulated(machine):
            raise cannot_run(platform, self.name)

    def inspect(self, reference: str) -> ImageInfo | None:
        """Return what podman holds under a reference, or None."""
        result = subprocesses.stream(["podman", "image", "inspect", reference], timeout=60)
        return image_info(json.loads(result.output)[0]) if result.status == 0 else None

    def has_remote(self, reference: str) -> bool:
        """Tell whether a registry that answers within ten seconds has the image."""
        return subprocesses.stream(["podman", "manifest", "inspect", reference], timeout=10).status == 0

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""
        subprocesses.pull(self.name, reference)

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        """Bootstrap the spec's base with these packages, import it and return its reference."""
        return bases.import_base(self.name, [f"--arch={bases.DEB_ARCH[spec.arch]}"], spec, packages, profile)

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        """Run the plans' commands one after another, handing over each line they write: Buildah shares no step."""
        deadline = time.monotonic() + timeout
        return [
            subprocesses.stream(plan.argv, timeout=max(1.0, deadline - time.monotonic()), on_line=on_line)
            for plan in plans
        ]

    def tag(self, image: str, reference: str) -> None:
        """Give an image one more reference."""
        subprocesses.output(["podman", "tag", image, reference])

    def untag(self, reference: str) -> None:
        """Take a reference away."""
        subprocesses.stream(["podman", "untag", reference, reference], timeout=60)


def _emulated(machine: str) -> bool:
    entry = Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}")
    return entry.is_file() and entry.read_text(encoding="utf-8").startswith("enabled")


def image_info(inspected: dict[str, Any]) -> ImageInfo:
    """Read one entry of `podman image inspect`."""
    config = inspected.get("Config") or {}
    return ImageInfo(
        id=str(inspected.get("Id", "")),
        size=int(inspected.get("Size") or 0),
        tags=list(inspected.get("RepoTags") or []),
        labels=dict(inspected.get("Labels") or {}),
        env=dict(pair.split("=", 1) for pair in config.get("Env") or []),
        user=str(config.get("User") or ""),
        layers=list((inspected.get("RootFS") or {}).get("Layers") or []),
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        digests=containers.of_podman(inspected),
    )
