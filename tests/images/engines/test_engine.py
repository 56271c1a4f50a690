"""What docker and podman are asked, and what of their answers is taken for what; tests/e2e asks real ones."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import engines
from envcheck.images.engines import (
    OWNER,
    BindMount,
    ContainerEngine,
    Digests,
    Engine,
    ImageInfo,
    Layer,
    image_info,
    owner,
    run_options,
    subprocesses,
)
from tests.tables import each
from tests.waiting import eventually, runs

# Answers by its first word; what it was asked is in `asked`, one line a call.
PROGRAM = """#!{python}
import json, pathlib, sys
here = pathlib.Path({here!r})
with (here / "asked").open("a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
answer = json.loads((here / "answers").read_text()).get(sys.argv[1], ["", 0])
if sys.argv[1] == "start":
    sys.stdin.read()
    (here / "eof").touch()
print(answer[0])
sys.exit(answer[1])
"""
STATE = {"Status": "running", "ExitCode": 0, "OOMKilled": False}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
BOTH: tuple[ContainerEngine, ...] = ("docker", "podman")
# `podman image inspect` of 4.3, cut to what is read.
SAID = """[{"Id": "86cd", "Digest": "sha256:d1", "RepoTags": ["localhost/x:1"],
  "RepoDigests": ["localhost/x@sha256:d1"], "Size": 231, "Labels": {"envcheck.torch": "2.8.0"},
  "Config": {"User": "1000:1000", "Env": ["A=b=c"], "Entrypoint": ["tini"], "Cmd": null},
  "RootFS": {"Type": "layers", "Layers": ["sha256:1"]}}]"""


class Program:
    """A stand-in for both engines' clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in BOTH:
            (directory / name).write_text(PROGRAM.format(python=sys.executable, here=str(directory)))
            (directory / name).chmod(0o755)
        self.answers()

    def answers(self, **answers: tuple[str, int]) -> None:
        """Set what it prints and how it ends, by the first word."""
        usual = {"create": ("c0ffee", 0), "inspect": (json.dumps(STATE), 0)}
        (self.directory / "answers").write_text(json.dumps({**usual, **answers}))

    def asked(self, word: str) -> list[list[str]]:
        """Return what it was asked that begins with this word."""
        lines = (self.directory / "asked").read_text().splitlines()
        return [words for words in map(json.loads, lines) if words[0] == word]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Program(tmp_path)


def described(media: str | None, *repository: str, driver: str = "overlay2") -> dict[str, Any]:
    """Return what docker says of an image whose descriptor, if any, is of this media type."""
    data: dict[str, Any] = {"Id": "sha256:1", "RepoDigests": list(repository), "GraphDriver": {"Name": driver}}
    return {**data, "Descriptor": {"mediaType": media, "digest": "sha256:1"}} if media else data


@each(
    "said, expected",
    [
        (described(None), Digests(config="sha256:1")),
        (described(None, "x@sha256:2", "<none>@<none>"), Digests(config="sha256:1", repository=("x@sha256:2",))),
        # The containerd store before API 1.48: the id is of a manifest or an index, and nothing says which.
        (described(None, "x@sha256:1", "x@sha256:1", driver="overlayfs"), Digests(repository=("x@sha256:1",))),
        (described(MANIFEST), Digests(manifest="sha256:1")),
        (described(INDEX), Digests(index="sha256:1")),
        (described("application/unknown"), Digests()),
        ({"Id": "", "RepoDigests": None, "Descriptor": None}, Digests()),
    ],
)
def test_a_digest_is_of_what_docker_says_that_it_is_of(said: dict[str, Any], expected: Digests) -> None:
    assert image_info("docker", said).digests == expected


@each("engine", BOTH)
def test_an_image_is_read_whatever_warnings_come_before(program: Program, engine: ContainerEngine) -> None:
    program.answers(image=(f'WARN[0000] "x" is not a mount\n{SAID}', 0))
    info = Engine(engine).inspect("x")
    assert info is not None
    assert info.labels == {"envcheck.torch": "2.8.0"}
    assert (info.env, info.command, info.user) == ({"A": "b=c"}, ("tini",), "1000:1000")
    assert (info.id, info.size, info.layers) == ("86cd", 231, ["sha256:1"])
    if engine == "podman":
        assert info.digests == Digests("sha256:d1", "sha256:86cd", None, ("localhost/x@sha256:d1",))
    program.answers(image=("[]\nError response from daemon: No such image: x:latest", 1))
    assert Engine(engine).inspect("x") is None
    program.answers(image=("it is busy", 1))
    with pytest.raises(UnavailableError, match=f"{engine} image inspect x: it is busy; try it by hand"):
        Engine(engine).inspect("x")


def test_layers_have_bytes_whatever_units_an_engine_prints(program: Program) -> None:
    rows = (
        '{"Size": "1.5MB", "CreatedBy": "RUN b"}\n{"Size": "0B", "CreatedBy": "ENV x"}\n{"size": 9, "createdBy": "a"}'
    )
    program.answers(history=(rows, 0))
    expected = [Layer(bytes=1_500_000, step="RUN b"), Layer(bytes=0, step="ENV x"), Layer(bytes=9, step="a")]
    assert Engine("podman").history("x") == expected
    program.answers(history=(rows, 0), manifest=('{"layers": [{"size": 5}, {"size": 2}]}', 0))
    of_index = image_info("docker", {**described(INDEX), "Size": 7})
    older = of_index._replace(digests=Digests(config="x"))
    cases: list[tuple[ContainerEngine, ImageInfo, int | None]] = [
        ("docker", of_index, 7),
        ("docker", older, None),
        ("podman", of_index, None),
    ]
    for engine, said, compressed in cases:
        assert Engine(engine).sizes(said) == (1_500_009, compressed)
        assert Engine(engine).pushed_bytes("r.example/me/torch@sha256:1") == 7
    program.answers(manifest=("no such manifest", 1))
    assert Engine("docker").pushed_bytes("x") is None


@each("engine", BOTH)
def test_a_container_is_asked_for_as_documented(program: Program, tmp_path: Path, engine: ContainerEngine) -> None:
    comma = tmp_path / "a,b"  # the value is a line of CSV
    mounts = [BindMount(tmp_path, "/in"), BindMount(tmp_path, "/out", read_only=False), BindMount(comma, "/c")]
    Engine(engine).run_container("i:1", argv=["sh", "-c", "x"], mounts=mounts, shm_size="8g", user="1:2").close()
    create = program.asked("create")[-1]
    assert create[-4:] == ["--entrypoint=sh", "i:1", "-c", "x"]
    assert f"--mount=type=bind,source={tmp_path},target=/in,ro=true" in create
    assert f"--mount=type=bind,source={tmp_path},target=/out,ro=false" in create
    assert f'--mount=type=bind,"source={comma}",target=/c,ro=true' in create
    assert {"--interactive", "--pull=never", "--shm-size=8g", "--user=1:2", f"--label={OWNER}={owner()}"} < set(create)
    assert {"--security-opt=no-new-privileges", "--network=none"} < set(create)
    assert not [word for word in create if "gpu" in word]
    assert ["rm", "--force", "c0ffee"] in program.asked("rm")
    Engine(engine).run_container("i:1", argv=["true"], gpus=True).close()
    assert {"--gpus=all", "--device=nvidia.com/gpu=all"} & set(program.asked("create")[-1])
    assert not {"--ulimit=memlock=-1", "--network=host"} & set(program.asked("create")[-1])
    Engine(engine).run_container("i:1", argv=["true"], fabric=True, network="host").close()
    assert {"--device=/dev/infiniband", "--ulimit=memlock=-1", "--network=host"} < set(program.asked("create")[-1])
    Engine(engine).run_container("i:1", argv=["true"], network="").close()
    assert not [word for word in program.asked("create")[-1] if word.startswith(("--network", "--add-host"))]


@each("engine, gpus", [("docker", "--gpus all"), ("podman", "--device nvidia.com/gpu=all")])
def test_a_printed_run_holds_what_this_node_needs(
    engine: str, gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envcheck.images.engines.FABRIC", str(tmp_path / "infiniband"))
    assert run_options(engine, gpus=False) == "--shm-size 8g"
    assert run_options(engine, gpus=True) == f"{gpus} --shm-size 8g --ulimit memlock=-1"
    (tmp_path / "infiniband").mkdir(exist_ok=True)
    assert run_options(engine, gpus=True).endswith(f"memlock=-1 --device {tmp_path}/infiniband --network host")
    (tmp_path / "infiniband").rmdir()


def test_gpus_that_an_engine_does_not_know_are_said_so_and_nothing_is_left(program: Program) -> None:
    program.answers(init=("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", 126))
    with pytest.raises(UnavailableError, match=r"podman knows no NVIDIA GPUs of this machine; .*ctk cdi generate"):
        Engine("podman").run_container("i:1", argv=["true"], gpus=True)
    error = 'could not select device driver "" with capabilities: [[gpu]]'
    state = {"Status": "created", "ExitCode": 128, "Error": error}
    program.answers(inspect=(json.dumps(state), 0), start=("", 1))
    (program.directory / "docker").write_text(
        (program.directory / "docker").read_text().replace("sys.stdin.read()", "")
    )
    with pytest.raises(UnavailableError, match="docker has no NVIDIA runtime configured; install nvidia-container"):
        Engine("docker").run_container("i:1", argv=["true"], gpus=True)
    assert program.asked("rm")[-1] == ["rm", "--force", "c0ffee"]


@pytest.mark.parametrize(
    ("docker", "podman", "expected"),
    [
        ("has", "has", "docker"),
        ("lacks", "has", "podman"),
        ("silent", "has", "podman"),
        ("lacks", "lacks", None),
        ("bare", "has", None),
    ],
)
def test_an_image_is_run_by_who_holds_it(
    program: Program, monkeypatch: pytest.MonkeyPatch, docker: str, podman: str, expected: str | None
) -> None:
    assert program

    def demand(engine: Engine) -> None:
        if (docker if engine.name == "docker" else podman) == "silent":
            message = "no docker engine answers"
            raise UnavailableError(message, fix="start one")

    def inspect(engine: Engine, _: str) -> engines.ImageInfo | None:
        has = docker if engine.name == "docker" else podman
        layers = {"RootFS": {"Layers": ["sha256:1"]}} if has == "has" else {}  # docker 29.0: none, and no Config
        return image_info(engine.name, {"Id": engine.name, **layers}) if has in ("has", "bare") else None

    monkeypatch.setattr(Engine, "demand", demand)
    monkeypatch.setattr(Engine, "inspect", inspect)
    for odd in ("--help", "-v", "a b", "i\n", ""):
        with pytest.raises(ConfigError, match="is no name of an image"):
            engines.holder(odd)
    if expected is None:
        why = "no image i:1 in this machine's engine" if docker == "lacks" else "neither the layers nor the labels of"
        with pytest.raises((ConfigError, UnavailableError), match=why):
            engines.holder("i:1")
    else:
        assert engines.holder("i:1")[1].id == expected


@each(
    "engine, image, expected",
    [
        ("podman", "envcheck/torch:1", "localhost/envcheck/torch:1"),
        ("podman", "registry.example:5000/torch:1", "registry.example:5000/torch:1"),
        ("podman", "localhost/torch:1", "localhost/torch:1"),
        ("docker", "envcheck/torch:1", "envcheck/torch:1"),
    ],
)
def test_podman_keeps_what_it_built_under_localhost(engine: str, image: str, expected: str) -> None:
    assert engines.local_name(engine, image) == expected


def test_a_build_command_without_buildx_or_named_contexts_is_told(program: Program) -> None:
    program.answers(context=("mine", 0), build=("--build-context argument=value", 0))
    Engine("podman").demand_contexts()
    Engine("docker").demand_contexts()
    assert {"--no-cache", "--security-opt=label=disable"} < set(Engine("podman").frontend())
    assert Engine("docker").frontend()[3] == "--builder=mine"
    program.answers(buildx=("unknown command", 1), build=("--cache-from stringArray", 0))
    assert Engine("docker").frontend() == ["docker", "build", "--progress=plain"]
    for engine, fix in (("podman", r"use podman 4\.2 or later"), ("docker", "install docker-buildx")):
        with pytest.raises(UnavailableError, match=f"which this {engine} lacks; {fix}, or leave --prefetch"):
            engines.connect(engine).demand_contexts()


def test_a_push_gives_the_digest_that_the_registry_has_or_says_what_to_do(program: Program) -> None:
    digest = f"sha256:{'0a' * 32}"
    program.answers(push=(f"Pushed\n2.8: digest: {digest} size: 1786", 0))
    assert Engine("docker").push("r.example/me/torch:2.8", 60) == digest
    denied = ("denied: requested access to the resource is denied", 1)
    program.answers(push=denied, pull=denied)
    for engine in BOTH:
        with pytest.raises(UnavailableError, match="could not be pushed: denied: requested access") as error:
            Engine(engine).push("r.example/me/torch:2.8", 60)
        assert f"`{engine} login r.example`" in str(error.value.fix)
        with pytest.raises(UnavailableError, match=f"could not be pulled: denied.*; `{engine} login docker.io`"):
            Engine(engine).pull("me/torch:2")
    program.answers(push=("write tcp 172.17.0.2:42616->140.82.112.33:443: write: connection reset by peer", 1))
    with pytest.raises(UnavailableError, match="reset by peer; push again"):  # docker/setup-buildx-action#113
        Engine("podman").push("ghcr.io/me/torch:2.8", 60)
    assert any(word.startswith("--digestfile=") for word in program.asked("push")[-1])


# As buildx 0.13 prints it, with and without QEMU registered in binfmt_misc.
NATIVE = "Name:   default\nDriver: docker\n\nNodes:\nPlatforms: linux/amd64, linux/amd64/v2\nLabels:\n"


def test_without_emulation_arm64_is_refused_with_what_to_do(program: Program) -> None:
    for status, listed in ((0, NATIVE), (1, NATIVE.replace("d64,", "d64*, linux/arm64,")), (0, "")):
        program.answers(buildx=(listed, status))
        with pytest.raises(
            UnavailableError, match="docker runs no linux/arm64 programs here; install qemu-user-static"
        ):
            Engine("docker").demand_platform("linux/arm64")
    program.answers(buildx=(NATIVE.replace("d64,", "d64*, linux/arm64,"), 0))
    Engine("docker").demand_platform("linux/arm64")
    Engine("docker").demand_platform("linux/amd64")


def test_without_an_engine_auto_is_venv_and_a_named_one_says_what_to_do(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert engines.find("auto") == "docker"
    program.answers(version=("Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?", 1))
    assert engines.find("auto") == "podman"
    with pytest.raises(
        UnavailableError, match=r"no docker engine answers: .*x\.sock.*; start one, or set DOCKER_HOST$"
    ):
        engines.find("docker")
    program.answers(version=("permission denied while trying to connect to the docker API", 1))
    with pytest.raises(UnavailableError, match=r"permission denied.*; add the user to the docker group"):
        engines.find("docker")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert (engines.find("auto"), engines.find("venv")) == ("venv", "venv")
    with pytest.raises(UnavailableError, match="no podman engine answers: podman is not installed; install podman"):
        engines.find("podman")


def test_at_its_limit_the_whole_group_is_killed(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command_result = subprocesses.stream(["sh", "-c", f"sleep 60 & echo $! >{child}; echo started; wait"], timeout=3)
    assert command_result.status is None
    assert command_result.output == "started\n"
    pid = int(child.read_text())
    assert eventually(lambda: runs(pid), expected=False) is False, "the child outlived its group"


def test_a_program_that_closes_its_output_and_hangs_is_ended_too() -> None:
    assert subprocesses.stream(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout=1).status is None


def test_a_program_that_is_not_there_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="no-such-program is not installed; install no-such-program"):
        subprocesses.stream(["no-such-program"], timeout=1)


def test_programs_of_stream_all_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    argvs = [["sh", "-c", f"echo word > {fifo}; exit 3"], ["cat", str(fifo)]]
    lines: list[str] = []
    first, second = subprocesses.stream_all(argvs, timeout=60, on_line=lines.append, env={})
    assert (first, second) == ((3, ""), (0, "word\n"))
    assert lines == ["word"]


def test_an_error_of_one_ends_all(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def stop(line: str) -> None:
        raise RuntimeError(line)

    argvs = [
        ["sh", "-c", f"echo $$ > {pid}; exec sleep 600"],
        ["sh", "-c", f"until [ -s {pid} ]; do sleep 0.1; done; echo no"],
    ]
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="no"):
        subprocesses.stream_all(argvs, timeout=250, on_line=stop, env={})
    assert time.monotonic() - begun < 200
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
