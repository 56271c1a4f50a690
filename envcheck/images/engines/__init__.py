"""docker and podman, which build and hold images and run containers, by their command lines; `venv` does without."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.images import build_log
from envcheck.images.engines import bootstrap, subprocesses
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.plan import PLATFORMS, BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

EngineName = Literal["docker", "podman", "venv"]
ContainerEngine = Literal["docker", "podman"]
OWNER: Final = "envcheck.owner"
# The devices of InfiniBand and RoCE; what NCCL registers with them is locked memory, of which most systems allow 8 MB.
FABRIC: Final = "/dev/infiniband"
GPUS: Final = {"docker": "--gpus all", "podman": "--device nvidia.com/gpu=all"}  # what has a node's GPUs passed in
# The log is cut at 1 MB, so that a flood fills no disk.
_LOG: Final = {
    "docker": ("--log-driver=json-file", "--log-opt=max-size=1m", "--log-opt=max-file=1"),
    "podman": ("--log-driver=k8s-file", "--log-opt=max-size=1m"),
}
# docker's last line is "TAG: digest: sha256:... size: N"; podman's file holds the digest alone.
_PUSHED: Final = re.compile(r"(?:digest: |\A)(sha256:[0-9a-f]{64})")
_HOST: Final = re.compile(r"(?<!\S)([\w.-]*[.:][\w.:-]*)/")  # of a registry, in the name of an image
_NO_IMAGE: Final = re.compile("no such image|not known|unable to find|no such object", re.IGNORECASE)
_TIMEOUT: Final = 60.0
_POLL: Final = 0.05
_POLL_AT_MOST: Final = 0.2
# A name, digest or id, and never an option: an engine's own words are stricter.
_REFERENCE: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]{0,511}")
# Loopback alone, by a name of its own: ranks meet by the host name.
_ALONE: Final = ("--network=none", "--hostname=envcheck", "--add-host=envcheck:127.0.0.1")
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# Storage drivers that only docker's older stores have: containerd has snapshotters of other names.
_DRIVERS: Final = ("overlay2", "fuse-overlayfs", "vfs", "aufs", "devicemapper", "windowsfilter")


class BindMount(NamedTuple):
    """A file or directory of this machine, seen inside the container at `target`."""

    source: Path
    target: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True)
class Digests:
    """Digests of an image, each "sha256:..."; None where the engine does not state it.

    `repository` are REPOSITORY@DIGEST, each once; docker's containerd store also lists names that were only given here.
    """

    manifest: str | None = None
    config: str | None = None
    index: str | None = None
    repository: tuple[str, ...] = ()


class ImageInfo(NamedTuple):
    """What the engine says of an image: its id (a sha256), bytes on disk, tags and labels.

    `layers` are the digests of its unpacked layers (diff_ids); `command` is what it starts, ENTRYPOINT and CMD.
    """

    id: str
    size: int
    tags: list[str]
    labels: dict[str, str]
    env: dict[str, str]
    user: str
    layers: list[str]
    command: tuple[str, ...] = ()
    digests: Digests = Digests()


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: bytes as the engine counts them, and the step that made it."""

    bytes: int
    step: str


class Container:
    """A started container. Its stdin is a pipe of this process: when this process dies, it reads end of file."""

    def __init__(self, engine: Engine, identity: str, client: subprocesses.Process) -> None:
        self._engine, self.id, self._client, self._polled_at = engine, identity, client, 0.0

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs; one that was killed for its memory is an UnavailableError."""
        # Each question is a round trip to the engine.
        if time.monotonic() - self._polled_at < _POLL_AT_MOST:
            return None
        self._polled_at = time.monotonic()
        code = self.wait(0)
        if code is not None and self._state().get("OOMKilled"):
            fix = "give the engine more, or run fewer ranks (--nproc)"
            refuse("the container ran out of memory", fix, UnavailableError)
        return code

    def wait(self, timeout: float) -> int | None:
        """Return the exit status, or None when it still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            # Asked before its state, so that one that could not be started is not taken for one still to start.
            ended = self._client.poll() is not None
            state = self._state()
            if state.get("Status") in {"exited", "stopped", "dead"}:
                return int(state["ExitCode"])
            if ended and state.get("Status") != "running":
                raise self._engine.failed(["start"], str(state.get("Error") or state.get("Status")))
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL)

    def logs(self) -> str:
        """Return the last lines it wrote to stdout and stderr."""
        return self._engine.run("logs", "--tail=40", self.id).output

    def close(self) -> None:
        """End it if it still runs, and remove it."""
        if self._client.stdin is not None:
            self._client.stdin.close()
        self._engine.run("rm", "--force", self.id)
        self._client.kill()
        self._client.wait()

    def _state(self) -> dict[str, Any]:
        inspected = self._engine.output("inspect", "--type=container", "--format={{json .State}}", self.id)
        return next(subprocesses.documents(inspected), {})


def run_options(engine: str, *, gpus: bool) -> str:
    """Return what a printed `run` needs: with `gpus` those, and the devices of a fabric where this node has one."""
    if not gpus:
        return "--shm-size 8g"
    fabric = f" --device {FABRIC} --network host" if Path(FABRIC).is_dir() else ""
    return f"{GPUS[engine]} --shm-size 8g --ulimit memlock=-1{fabric}"


def _source(mount: BindMount) -> str:
    """Return the field of a mount, whose value is a line of CSV to docker; older podman knows no quotes."""
    field = f"source={mount.source}"
    return f'"{field}"' if "," in field else field


class Engine:
    """An engine of this user: docker's is that of DOCKER_HOST or the current context. Errors are envcheck's."""

    def __init__(self, name: ContainerEngine) -> None:
        self.name: Final = name

    def run(self, *words: str, timeout: float = _TIMEOUT) -> CommandResult:
        """Run one of its commands."""
        return subprocesses.stream([self.name, *words], timeout=timeout)

    def output(self, *words: str, timeout: float = _TIMEOUT) -> str:
        """Return what one of its commands prints; its failure is an UnavailableError with its last words."""
        result = self.run(*words, timeout=timeout)
        if result.status != 0:
            raise self.failed(words, subprocesses.last_words(result))
        return result.output

    def failed(self, words: Sequence[str], why: str) -> UnavailableError:
        """Return the error of a command that failed."""
        fix = f"try it by hand; `{self.name} info` tells whether {self.name} works here"
        return self._explained(f"{self.name} {' '.join(words[:3])}", CommandResult(1, why), fix, why)

    def _explained(self, failure: str, result: CommandResult, fix: str, why: str = "") -> UnavailableError:
        """Return the error of a failure: its known cause and remedy, else the engine's last words and `fix`."""
        host = next(iter(_HOST.findall(failure)), "docker.io")
        cause = build_log.diagnose(result.output, "engine_causes.json", engine=self.name, host=host)
        why = cause.what if cause else why or subprocesses.last_words(result)
        return UnavailableError(f"{failure}: {why}", fix=cause.fix if cause else fix)

    def demand(self) -> None:
        """Raise UnavailableError where it does not answer."""
        words = ("version", "--format={{.Server.Version}}") if self.name == "docker" else ("info",)
        try:
            result = self.run(*words, timeout=30)
        except UnavailableError as error:
            message = f"no {self.name} engine answers: {error.message}"
            raise UnavailableError(message, fix=f"install {self.name}") from error
        if result.status != 0:
            failure = f"no {self.name} engine answers"
            raise self._explained(failure, result, "start one, or set DOCKER_HOST")

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            self.demand()
        except UnavailableError:
            return False
        return True

    def frontend(self) -> list[str]:
        """Return the build command; the plan adds the options."""
        if self.name == "podman":
            # The docker format keeps what the OCI format has no place for. Buildah knows a RUN by its text and not by
            # what is mounted: its cache would give one lock's layer for another's. With SELinux's separation a step may
            # read nothing of the context that is mounted (podman-container-tools/podman#26020).
            words = "podman build --format=docker --pull=missing --no-cache --security-opt=label=disable"
            return words.split()
        if self.run("buildx", "version").status != 0:
            return ["docker", "build", "--progress=plain"]
        # The engine's own builder, named like its context: only that one sees a base that is in no registry.
        builder = [f"--builder={name}" for name in self._builder()]
        # Provenance would make an index of the image, and tell of the machine that built it.
        return ["docker", "buildx", "build", *builder, "--progress=plain", "--provenance=false", "--load"]

    def demand_contexts(self) -> None:
        """Raise UnavailableError where the build command takes no named context (--build-context)."""
        if self.name == "docker" and self.run("buildx", "version").status != 0:
            fix = "install docker-buildx, or leave --prefetch out"
        elif self.name == "podman" and "--build-context" not in self.run("build", "--help").output:
            fix = "use podman 4.2 or later, or leave --prefetch out"
        else:
            return
        refuse(f"--prefetch needs a named build context, which this {self.name} lacks", fix, UnavailableError)

    def demand_platform(self, platform: str) -> None:
        """Raise UnavailableError where it runs no program of a platform ("linux/arm64"), neither ours nor emulated."""
        machine = next(arch for arch, name in PLATFORMS.items() if name == platform)
        if self.name == "docker":
            listed = self.run("buildx", "inspect", *self._builder())
            runs = listed.status == 0 and bool(re.search(rf"^Platforms:.*\b{platform}\b", listed.output, re.MULTILINE))
        else:
            entry = Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}")
            runs = machine == os.uname().machine or (entry.is_file() and entry.read_text().startswith("enabled"))
        if not runs:
            message = f"{self.name} runs no {platform} programs here"
            raise UnavailableError(message, fix="install qemu-user-static, or build on such a machine")

    def _builder(self) -> list[str]:
        context = self.run("context", "show")
        return [context.output.strip()] if context.status == 0 else []

    def inspect(self, reference: str) -> ImageInfo | None:
        """Return what it holds under a reference or id, or None."""
        result = self.run("image", "inspect", reference)
        if result.status == 0:
            return next((image_info(self.name, one) for one in subprocesses.documents(result.output)), None)
        if _NO_IMAGE.search(result.output):
            return None
        raise self.failed(["image", "inspect", reference], subprocesses.last_words(result))

    def history(self, image: str) -> list[Layer]:
        """Return how a local image was made, the last step first."""
        printed = self.output("history", "--no-trunc", "--human=false", "--format={{json .}}", image)
        rows = [{name.lower(): value for name, value in row.items()} for row in subprocesses.documents(printed)]
        return [Layer(bytes=_bytes(str(row.get("size") or "0")), step=str(row.get("createdby") or "")) for row in rows]

    def sizes(self, image: ImageInfo) -> tuple[int, int | None]:
        """Return an image's bytes on disk, and compressed: these only docker's containerd store counts."""
        on_disk = sum(layer.bytes for layer in self.history(image.id))
        contained = self.name == "docker" and (image.digests.manifest or image.digests.index)
        return on_disk, image.size if contained else None

    def pushed_bytes(self, reference: str) -> int | None:
        """Return the bytes of an image's layers in its registry; None where it does not tell."""
        manifest = next(subprocesses.documents(self.run("manifest", "inspect", reference).output), {})
        return sum(int(layer.get("size") or 0) for layer in manifest.get("layers") or ()) or None

    def has_remote(self, reference: str) -> bool:
        """Tell whether a registry that answers within ten seconds has the image."""
        return self.run("manifest", "inspect", reference, timeout=10).status == 0

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""
        result = self.run("pull", "--quiet", reference, timeout=1800)
        if result.status != 0:
            failure = f"{reference} could not be pulled"
            raise self._explained(failure, result, f"try `{self.name} pull` by hand; a build can take --base bootstrap")

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        """Bootstrap the spec's base with these packages, import it and return its reference."""
        arch = bootstrap.DEB_ARCH[spec.arch]
        option = f"--platform=linux/{arch}" if self.name == "docker" else f"--arch={arch}"
        name, foreign = bootstrap.reference(spec.base, spec.arch, packages), spec.arch != os.uname().machine
        with tempfile.TemporaryDirectory(prefix="envcheck-base-") as scratch:
            tar = Path(scratch) / "rootfs.tar"
            bootstrap.bootstrap(spec.base, spec.arch, packages, profile, tar)
            words = [self.name, "import", *([option] if foreign else []), str(tar), name]
            subprocesses.output(words, timeout=600)
        return name

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        """Run each plan's command, handing over each line it writes, and return their results in order.

        At once with docker: BuildKit runs a step that is the same in builds under way once. Buildah shares no step.
        `timeout` is for all of them.
        """
        if self.name == "docker":
            argvs = [plan.argv for plan in plans]
            return subprocesses.stream_all(argvs, timeout=timeout, on_line=on_line, env={"DOCKER_BUILDKIT": "1"})
        deadline = time.monotonic() + timeout
        return [
            subprocesses.stream(plan.argv, timeout=max(1.0, deadline - time.monotonic()), on_line=on_line)
            for plan in plans
        ]

    def tag(self, image: str, reference: str) -> None:
        """Give an image one more reference."""
        self.output("tag", image, reference)

    def push(self, reference: str, timeout: float) -> str:
        """Send an image to its registry; return the digest that it has there."""
        with tempfile.TemporaryDirectory(prefix="envcheck-push-") as scratch:
            file = Path(scratch) / "digest"
            options = [f"--digestfile={file}"] if self.name == "podman" else []
            result = self.run("push", *options, reference, timeout=timeout)
            said = file.read_text(encoding="ascii") if file.exists() else result.output
        digest = _PUSHED.findall(said)
        if result.status != 0 or not digest:
            failure = f"{reference} could not be pushed"
            raise self._explained(failure, result, "push again: layers that arrived are not sent again")
        return str(digest[-1])

    def untag(self, reference: str) -> None:
        """Take a reference away; the image stays while it has another."""
        words = ("image", "rm", "--no-prune") if self.name == "docker" else ("untag", reference)
        self.run(*words, reference)

    def run_container(
        self,
        image: str,
        *,
        argv: Sequence[str],
        mounts: Sequence[BindMount] = (),
        shm_size: str | None = None,
        gpus: bool = False,
        user: str | None = None,
        fabric: bool = False,
        network: Literal["none", "host", ""] = "none",
    ) -> Container:
        """Start a container of a local image; `argv` replaces the image's entrypoint and command.

        `fabric` hands in the devices of InfiniBand and RoCE, with memory to lock. `network` "" is the engine's own.

        Leftovers of processes that have died are removed first.
        """
        self._sweep()
        options = [
            "--interactive",
            "--pull=never",
            f"--label={OWNER}={owner()}",
            # With SELinux's separation a container may read none of what is mounted.
            "--security-opt=label=disable",
            "--security-opt=no-new-privileges",
            *_LOG[self.name],
            *(f"--mount=type=bind,{_source(m)},target={m.target},ro={str(m.read_only).lower()}" for m in mounts),
            *([f"--shm-size={shm_size}"] if shm_size else []),
            *([f"--user={user}"] if user else []),
            *([GPUS[self.name].replace(" ", "=", 1)] if gpus else []),
            *([f"--device={FABRIC}", "--ulimit=memlock=-1"] if fabric else []),
            *(_ALONE if network == "none" else [f"--network={network}"] if network else ()),
            f"--entrypoint={argv[0]}",
        ]
        identity = self.output("create", *options, image, *argv[1:]).split()[-1]
        with contextlib.ExitStack() as undo:
            undo.callback(self.run, "rm", "--force", identity)
            if self.name == "podman":
                self.output("init", identity)  # only this call says what is wrong with it
            words = [self.name, "start", "--attach", "--interactive", identity]
            container = Container(self, identity, subprocesses.attach(words))
            undo.callback(container.close)
            # Until docker says that it runs, or ended; it raises what is wrong with one that never did.
            while self.name == "docker" and container._state().get("Status") == "created":  # noqa: SLF001 (of this file)
                container.wait(_POLL)
            undo.pop_all()
        return container

    def _sweep(self) -> None:
        """Remove ended containers of ours whose process is gone; nobody is left to read them."""
        listed = self.run("ps", "--all", "--quiet", "--no-trunc", "--filter=status=exited", f"--filter=label={OWNER}")
        for identity in listed.output.split() if listed.status == 0 else []:
            label = self.run("inspect", f'--format={{{{index .Config.Labels "{OWNER}"}}}}', identity)
            host, _, pid = label.output.strip().rpartition(":")
            if host == socket.gethostname() and not Path("/proc", pid).exists():
                self.run("rm", identity)


def owner() -> str:
    """Return what a container of this process is labelled with."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _bytes(size: str) -> int:
    """Return a layer's size; an engine that prints units in spite of --human=false prints decimal ones."""
    units = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "KB": 1e3, "B": 1}
    unit = next((unit for unit in units if size.endswith(unit)), "")
    return round(float(size.removesuffix(unit)) * units.get(unit, 1))


def image_info(engine: ContainerEngine, inspected: Mapping[str, Any]) -> ImageInfo:
    """Read one entry of `image inspect`."""
    config = inspected.get("Config") or {}
    return ImageInfo(
        id=str(inspected.get("Id") or ""),
        size=int(inspected.get("Size") or 0),
        tags=list(inspected.get("RepoTags") or []),
        labels=dict(config.get("Labels") or inspected.get("Labels") or {}),
        env=dict(pair.split("=", 1) for pair in config.get("Env") or []),
        user=str(config.get("User") or ""),
        layers=list((inspected.get("RootFS") or {}).get("Layers") or []),
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        digests=digests(engine, inspected),
    )


def digests(engine: ContainerEngine, inspected: Mapping[str, Any]) -> Digests:
    """Return what the digests in an entry of `image inspect` are the digests of.

    podman's id is the config's digest. With docker's containerd store the id is the digest of a manifest or an index,
    as the descriptor says (API 1.48); before that nothing states which. With its older stores, known by their drivers,
    it is that of the config.
    """
    names = {name for name in inspected.get("RepoDigests") or () if "@" in name and "<none>" not in name}
    repository, identity = tuple(sorted(names)), str(inspected.get("Id") or "").removeprefix("sha256:")
    config = f"sha256:{identity}" if identity else None
    if engine == "podman":
        return Digests(inspected.get("Digest") or None, config, None, repository)
    descriptor = inspected.get("Descriptor") or {}
    if descriptor.get("mediaType") in _INDEXES:
        return Digests(index=descriptor.get("digest"), repository=repository)
    if descriptor.get("mediaType") in _MANIFESTS:
        return Digests(manifest=descriptor.get("digest"), repository=repository)
    older = (inspected.get("GraphDriver") or {}).get("Name") in _DRIVERS and not descriptor
    return Digests(config=config if older else None, repository=repository)


def local_name(engine: str, image: str) -> str:
    """Return an image's name as this engine alone has it: podman keeps what it built under localhost/."""
    first = image.partition("/")[0]
    hosted = "." in first or ":" in first or first == "localhost"
    return f"localhost/{image}" if engine == "podman" and not hosted else image


def holder(image: str) -> tuple[Engine, ImageInfo]:
    """Return what can run a local image, and what it says of it: docker where it holds it, else podman."""
    if not _REFERENCE.fullmatch(image):
        refuse(f"{image[:80]!r} is no name of an image", "write NAME:TAG, NAME@sha256:DIGEST, or the image's id")
    silent: list[UnavailableError] = []
    for engine in (Engine("docker"), Engine("podman")):
        try:
            engine.demand()
            held = engine.inspect(image)
        except UnavailableError as error:
            silent.append(error)
            continue
        if held is not None and not held.layers:
            # Its labels are missing too, and with them what it promises.
            what = f"{engine.name} tells neither the layers nor the labels of {image}"
            fix = "update docker: 29.0 does so (moby/moby#51566); or remove the image and pull it again"
            refuse(what, fix, UnavailableError)
        if held is not None:
            return engine, held
    if len(silent) > 1:
        raise silent[0]
    message = f"no image {image} in this machine's engine"
    raise ConfigError(message, fix=f"build it (envcheck build) or `docker pull {image}`")


def find(name: str = "auto") -> EngineName:
    """Return the engine meant by a name. `auto`: docker when one answers, else podman, else venv; none is started."""
    if name == "auto":
        return next((engine for engine in get_args(ContainerEngine) if Engine(engine).answers()), "venv")
    return "venv" if name == "venv" else connect(name).name


def connect(name: str) -> Engine:
    """Return the docker or podman engine; UnavailableError says what is missing."""
    engine = Engine("podman" if name == "podman" else "docker")
    engine.demand()
    return engine
