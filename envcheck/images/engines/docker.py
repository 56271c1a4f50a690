"""The docker SDK's one home: inspect, tag, push and run. It has no BuildKit, so it builds nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

import docker
import docker.context
import docker.errors
import docker.types
import requests
from docker import DockerClient
from docker.models.containers import Container
from docker.models.images import Image

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.engines import bootstrap as bases
from envcheck.images.engines import cannot_run, subprocesses
from envcheck.images.engines import containers as digests
from envcheck.images.engines.containers import OWNER, BindMount, ImageInfo, is_orphan, owner
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.plan import PLATFORMS, BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

_USUAL: Final = "unix:///var/run/docker.sock"
_ABSENT: Final = ("Connection refused", "No such file or directory")
_POLL: Final = 0.05
_NO_GPU: Final = ("could not select device driver", "unknown or invalid runtime", "unresolvable CDI devices")


def client(timeout: int = 60) -> DockerClient:
    """Return a client of the engine DOCKER_HOST or the current docker context names, which has answered a ping."""
    host = None
    try:
        host = _host()
        _knock(host)
        connection = docker.from_env(timeout=timeout) if host is None else DockerClient(base_url=host, timeout=timeout)
        connection.ping()
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise _nobody(error, host) from error
    return connection


def _nobody(error: Exception, host: str | None) -> UnavailableError:
    """Say where an engine was looked for; what the system calls its absence helps nobody."""
    address = os.environ.get("DOCKER_HOST") or host or _USUAL
    if isinstance(error, PermissionError):
        message = f"no docker engine answers at {address}: permission denied for this user"
        return UnavailableError(message, fix="add the user to the docker group, or set DOCKER_HOST")
    why = "" if any(sign in str(error) for sign in _ABSENT) else f" ({_first_line(error)})"
    return UnavailableError(f"no docker engine answers at {address}{why}", fix="start one, or set DOCKER_HOST")


def _host() -> str | None:
    """Return what `docker context use` chose, which docker.from_env() does not follow; None where that does right."""
    if os.environ.get("DOCKER_HOST"):
        return None
    current = docker.context.ContextAPI.get_current_context()
    return current.Host if current is not None else None


def _knock(host: str | None) -> None:
    """Raise OSError where no one listens on the engine's socket; the SDK would leave a socket of its own open."""
    address = os.environ.get("DOCKER_HOST") or host or _USUAL
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(address.removeprefix("unix://"))


def inspect(image: str) -> ImageInfo | None:
    """Return what the engine holds under a reference or id, or None when it holds no such image."""
    with _engine(f"cannot inspect {image}") as engine:
        try:
            found_image = engine.images.get(image)
            return _info(found_image, _manifests(engine, found_image))
        except docker.errors.ImageNotFound:
            return None


def history(image: str) -> list[str]:
    """Return how a local image was made: the instruction of each layer, the last one first."""
    with _engine(f"cannot read the history of {image}") as engine:
        return [str(layer.get("CreatedBy") or "") for layer in engine.images.get(image).history()]


def labels(image: str) -> dict[str, str]:
    """Return the labels of a local image; an image that is not here is a ConfigError."""
    info = inspect(image)
    if info is None:
        message = f"no image {image} in this engine"
        raise ConfigError(message, fix=f"build it (envcheck build) or `docker pull {image}`")
    return info.labels


def tag(image: str, reference: str) -> None:
    """Give a local image one more reference."""
    repository, _, name = reference.rpartition(":")
    with _engine(f"cannot tag {reference}") as engine:
        engine.images.get(image).tag(repository, tag=name)


def untag(reference: str) -> None:
    """Take a reference away; the image stays while it has another."""
    with _engine(f"cannot untag {reference}") as engine, suppress(docker.errors.ImageNotFound):
        engine.images.remove(reference, noprune=True)


def registry_has(reference: str) -> bool:
    """Tell whether the engine can reach this image in its registry, within ten seconds."""
    try:
        with _engine(f"cannot look up {reference}", timeout=10) as engine:
            engine.images.get_registry_data(reference)
    except UnavailableError:
        return False
    return True


class DockerContainer:
    """A started container. Its stdin is a connection of this process: when this process dies, it reads end of file."""

    def __init__(self, engine: DockerClient, container: Container, stdin: Any) -> None:
        self._engine = engine
        self._container = container
        self._stdin = stdin
        self.id = str(container.id)

    def wait(self, timeout: float) -> int | None:
        """Return the exit status, or None when it still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            state = self._state()
            if state.get("Status") in {"exited", "dead"}:
                return int(state["ExitCode"])
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL)

    def out_of_memory(self) -> bool:
        """Tell whether the kernel ended it for its memory limit."""
        return bool(self._state().get("OOMKilled"))

    def kill(self) -> None:
        """Send SIGKILL to all of it; a container that has ended already is left alone."""
        with suppress(docker.errors.APIError):
            self._container.kill()

    def logs(self, lines: int = 40) -> str:
        """Return the last lines it wrote to stdout and stderr."""
        with _docker_errors("cannot read the container's log"):
            raw: bytes = self._container.logs(tail=lines)
            return raw.decode(errors="replace")

    def close(self) -> None:
        """End it if it still runs, and remove it."""
        connection = self._stdin._sock  # noqa: SLF001 (SocketIO.close alone leaves the socket open)
        self._stdin.close()
        connection.close()
        with suppress(docker.errors.APIError, requests.RequestException):  # an engine that is gone has ended it
            self._container.remove(force=True)
        self._engine.close()

    def _state(self) -> dict[str, Any]:
        with _docker_errors("cannot read the state of the container"):
            self._container.reload()
            return dict(self._container.attrs["State"])


def run_container(
    image: str,
    *,
    argv: Sequence[str],
    mounts: Sequence[BindMount] = (),
    env: Mapping[str, str] | None = None,
    shm_size: str | None = None,
    gpus: bool | Sequence[str] = False,
    network: str | None = None,
    user: str | None = None,
) -> DockerContainer:
    """Start a container of a local image. `argv` replaces the image's entrypoint and command.

    `shm_size` as docker writes it ("64m"); `gpus` is all of them, or their ids. Its log is cut at 1 MB, so that a
    flood fills no disk. Leftovers of processes that have died are removed first.
    """
    labels(image)
    with ExitStack() as undo:
        engine = undo.enter_context(closing(client()))
        undo.enter_context(_docker_errors(f"cannot run {image}"))
        _sweep(engine)
        created = engine.api.create_container(
            image,
            list(argv[1:]),
            entrypoint=list(argv[:1]),
            environment=dict(env or {}),
            user=user,
            stdin_open=True,  # with detach unset this is StdinOnce: our end closed is end of file inside
            labels={OWNER: owner()},
            host_config=_host_config(engine, mounts, shm_size, gpus, network),
        )
        container = engine.containers.get(created["Id"])
        stdin = container.attach_socket(params={"stdin": 1, "stream": 1})
        running = DockerContainer(engine, container, stdin)
        undo.callback(running.close)
        container.start()
        undo.pop_all()
    return running


def _host_config(
    engine: DockerClient,
    mounts: Sequence[BindMount],
    shm_size: str | None,
    gpus: bool | Sequence[str],  # noqa: FBT001 (True is all of them)
    network: str | None,
) -> Any:
    ids = [] if isinstance(gpus, bool) else list(gpus)
    request = docker.types.DeviceRequest(capabilities=[["gpu"]], count=0 if ids else -1, device_ids=ids)
    return engine.api.create_host_config(
        mounts=[docker.types.Mount(m.target, str(m.source), type="bind", read_only=m.read_only) for m in mounts],
        shm_size=shm_size,
        network_mode=network,
        device_requests=[request] if gpus else None,
        log_config=docker.types.LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
    )


def _sweep(engine: DockerClient) -> None:
    """Remove ended containers of ours whose process is gone; nobody is left to read them."""
    with suppress(docker.errors.APIError):
        for old in engine.containers.list(all=True, filters={"label": OWNER, "status": "exited"}):
            if is_orphan(old.labels.get(OWNER, "")):
                old.remove()


def _manifests(engine: DockerClient, image: Image) -> list[dict[str, Any]]:
    """Return what an index holds, as API 1.48 lists it; the SDK has no parameter for it."""
    if not digests.is_index(image.attrs):
        return []
    url = f"{engine.api.base_url}/v1.48/images/{quote(str(image.id), safe=':')}/json"
    answer = engine.api.get(url, params={"manifests": "true"}, timeout=engine.api.timeout)
    return list(answer.json().get("Manifests") or []) if answer.ok else []


def _info(image: Image, manifests: Sequence[Mapping[str, Any]] = ()) -> ImageInfo:
    config = image.attrs.get("Config") or {}
    return ImageInfo(
        id=str(image.id),
        size=int(image.attrs.get("Size") or 0),
        tags=list(image.tags),
        labels=dict(config.get("Labels") or {}),
        env=dict(pair.split("=", 1) for pair in config.get("Env") or []),
        user=str(config.get("User") or ""),
        layers=list((image.attrs.get("RootFS") or {}).get("Layers") or []),
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        digests=digests.of_docker(image.attrs, manifests),
    )


@contextmanager
def _engine(action: str, timeout: int = 60) -> Iterator[DockerClient]:
    with closing(client(timeout)) as engine, _docker_errors(action):
        yield engine


@contextmanager
def _docker_errors(action: str) -> Iterator[None]:
    """Turn the SDK's errors into one line with what to do."""
    try:
        yield
    except docker.errors.APIError as error:
        explanation = str(error.explanation or error)
        if any(sign in explanation for sign in _NO_GPU):
            message = f"{action}: docker has no NVIDIA runtime configured"
            raise UnavailableError(message, fix="install nvidia-container-toolkit, or run without GPUs") from error
        message = f"{action}: {_first_line(error)}"
        raise UnavailableError(message, fix="see the engine's log") from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        message = f"{action}: {_first_line(error)}"
        raise UnavailableError(message, fix="check with `docker info` whether the engine still runs") from error


def _first_line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None) or str(error)
    return str(explanation).strip().splitlines()[0] if str(explanation).strip() else type(error).__name__


class Docker:
    """The docker engine of DOCKER_HOST or the current context."""

    name: Final = "docker"
    inspect = staticmethod(inspect)
    tag = staticmethod(tag)
    untag = staticmethod(untag)
    has_remote = staticmethod(registry_has)

    def __init__(self) -> None:
        try:
            client().close()
        except UnavailableError as error:
            raise UnavailableError(error.message, fix=f"{error.fix}, or use --engine venv") from error

    def answers(self) -> bool:
        """Tell whether the engine still answers."""
        try:
            client().close()
        except UnavailableError:
            return False
        return True

    def frontend(self) -> list[str]:
        """Return the build command: buildx where there is such a plugin, else the client's own BuildKit."""
        if _has_buildx():
            # Provenance would make an index of the image, and tell of the machine that built it.
            return ["docker", "buildx", "build", *_builder(), "--progress=plain", "--provenance=false", "--load"]
        return ["docker", "build", "--progress=plain"]

    def demand_contexts(self) -> None:
        """Raise UnavailableError where there is no buildx: the client's own builder takes no named context."""
        if not _has_buildx():
            message = "--prefetch needs a named build context, which docker supports only with the buildx plugin"
            raise UnavailableError(message, fix="install docker-buildx, or leave --prefetch out")

    def demand_platform(self, platform: str) -> None:
        """Raise UnavailableError where BuildKit lists no such platform: neither this machine's nor an emulated one."""
        listed = subprocesses.stream(["docker", "buildx", "inspect", *_builder_name()], timeout=60)
        if listed.status != 0 or platform not in platforms(listed.output):
            raise cannot_run(platform, self.name)

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""
        subprocesses.pull(self.name, reference)

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        """Bootstrap the spec's base with these packages, import it and return its reference."""
        return bases.import_base(self.name, [f"--platform={PLATFORMS[spec.arch]}"], spec, packages, profile)

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        """Run the plans' commands at once, handing over each line of BuildKit's plain progress.

        BuildKit runs a step that is the same in builds under way once, for all of them.
        """
        argvs = [plan.argv for plan in plans]
        return subprocesses.stream_all(argvs, timeout=timeout, on_line=on_line, env={"DOCKER_BUILDKIT": "1"})


def _has_buildx() -> bool:
    return subprocesses.stream(["docker", "buildx", "version"], timeout=30).status == 0


def platforms(listed: str) -> list[str]:
    """Return the platforms that `docker buildx inspect` lists; a preferred one has a star."""
    lines = [line.partition(":")[2] for line in listed.splitlines() if line.startswith("Platforms:")]
    return [name.strip().rstrip("*") for line in lines for name in line.split(",")]


def _builder() -> list[str]:
    """Choose the engine's own builder, named like its context: only that one sees a base that is in no registry."""
    return [f"--builder={name}" for name in _builder_name()]


def _builder_name() -> list[str]:
    result = subprocesses.stream(["docker", "context", "show"], timeout=30)
    return [result.output.strip()] if result.status == 0 else []
