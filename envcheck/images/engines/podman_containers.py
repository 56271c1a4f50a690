"""Containers of podman, by its command line: its docker API drops a wish for GPUs without a word."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import IO, Any, Final, Protocol

from envcheck.errors import UnavailableError
from envcheck.images.engines import subprocesses
from envcheck.images.engines.containers import OWNER, BindMount, ImageInfo, is_orphan, owner
from envcheck.images.engines.podman import Podman

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
