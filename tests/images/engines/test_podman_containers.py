"""Containers of podman as it is asked for them; what it does with them is seen on a real one only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import engines
from envcheck.images.engines import docker as docker_sdk
from envcheck.images.engines import podman as podman_containers
from envcheck.images.engines.containers import OWNER, BindMount, owner

# Answers as podman 4.3 does; what it was asked is in `asked`, one line a call.
PODMAN = """#!{python}
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
Podman = Callable[..., list[list[str]]]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    """Return a function that sets what podman answers, and returns all it was asked."""
    program = tmp_path / "podman"
    program.write_text(PODMAN.format(python=sys.executable, here=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    requests = tmp_path / "asked"

    def answer(**answers: tuple[str, int]) -> list[list[str]]:
        usual = {"ps": ("[]", 0), "create": ("c0ffee", 0), "inspect": (json.dumps(STATE), 0)}
        (tmp_path / "answers").write_text(json.dumps({**usual, **answers}))
        return [json.loads(line) for line in requests.read_text().splitlines()] if requests.exists() else []

    answer()
    return answer


def test_a_container_is_asked_for_as_documented(podman: Podman, tmp_path: Path) -> None:
    mounts = [BindMount(tmp_path, "/in"), BindMount(tmp_path, "/out", read_only=False)]
    podman_containers.run_container("i:1", argv=["sh", "-c", "x"], mounts=mounts, shm_size="8g", user="1:2").close()
    create = next(requests for requests in podman() if requests[0] == "create")
    assert create[-4:] == ['--entrypoint=["sh"]', "i:1", "-c", "x"]
    assert f"--mount=type=bind,source={tmp_path},target=/in,ro=true" in create
    assert f"--mount=type=bind,source={tmp_path},target=/out,ro=false" in create
    assert {"--interactive", "--pull=never", "--shm-size=8g", "--user=1:2", f"--label={OWNER}={owner()}"} < set(create)
    assert not [word for word in create if "gpu" in word]
    assert ["rm", "--force", "c0ffee"] in podman()


def test_it_reads_end_of_file_when_it_is_closed(podman: Podman, tmp_path: Path) -> None:
    running = podman_containers.run_container("i:1", argv=["true"])
    assert running.wait(0) is None
    assert not (tmp_path / "eof").exists()
    podman(inspect=(json.dumps({**STATE, "Status": "exited", "ExitCode": 137, "OOMKilled": True}), 0))
    assert running.wait(0) == 137
    assert running.out_of_memory() is True
    assert running._client.stdin is not None  # noqa: SLF001 (closed by the kernel when this process dies)
    running._client.stdin.close()  # noqa: SLF001
    for _ in range(100):
        if (tmp_path / "eof").exists():
            break
        time.sleep(0.1)
    assert (tmp_path / "eof").exists()
    running.close()


def test_gpus_that_podman_does_not_know_are_said_so_and_nothing_is_left(podman: Podman) -> None:
    podman(init=("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", 126))
    with pytest.raises(
        UnavailableError, match=r"podman knows no NVIDIA GPUs of this machine; .*nvidia-ctk cdi generate"
    ):
        podman_containers.run_container("i:1", argv=["true"], gpus=True)
    assert podman()[-1] == ["rm", "--force", "c0ffee"]


def test_a_container_that_never_started_is_an_error_and_no_wait_for_ever(podman: Podman) -> None:
    podman(inspect=(json.dumps({"Status": "initialized", "Error": "no room"}), 0))
    running = podman_containers.run_container("i:1", argv=["true"])
    running._client.kill()  # noqa: SLF001 (as if it had ended by itself)
    running._client.wait()  # noqa: SLF001
    with pytest.raises(UnavailableError, match="podman could not start the container: no room"):
        running.wait(0)
    running.close()


def test_what_a_killed_run_left_is_swept_and_what_others_have_is_not(podman: Podman) -> None:
    host = owner().rpartition(":")[0]
    names = {"dead": f"{host}:0000", "living": owner(), "elsewhere": "other-host:0000"}
    podman(ps=(json.dumps([{"Id": name, "Labels": {OWNER: label}} for name, label in names.items()]), 0))
    podman_containers.run_container("i:1", argv=["true"]).close()
    assert [requests[1] for requests in podman() if requests[0] == "rm"] == ["dead", "--force"]


@pytest.mark.parametrize(
    ("docker", "held", "expected"),
    [("has", True, "docker"), ("lacks", True, "podman"), ("silent", True, "podman"), ("lacks", False, ConfigError)],
)
def test_an_image_is_run_by_who_holds_it(
    podman: Podman, monkeypatch: pytest.MonkeyPatch, docker: str, *, held: bool, expected: object
) -> None:
    def inspect(_: str) -> SimpleNamespace | None:
        if docker == "silent":
            message = "no docker engine answers"
            raise UnavailableError(message, fix="start one")
        return SimpleNamespace(id="of docker") if docker == "has" else None

    monkeypatch.setattr(docker_sdk, "inspect", inspect)
    podman(image=('[{"Id": "of podman"}]', 0) if held else ("Error: no such image", 125))
    if expected is ConfigError:
        with pytest.raises(ConfigError, match="no image i:1 in this machine's engine"):
            engines.holder("i:1")
    else:
        assert engines.holder("i:1")[1].id == f"of {expected}"


@pytest.mark.parametrize(
    ("engine", "image", "expected"),
    [
        ("podman", "envcheck/torch:1", "localhost/envcheck/torch:1"),
        ("podman", "registry.example:5000/torch:1", "registry.example:5000/torch:1"),
        ("podman", "localhost/torch:1", "localhost/torch:1"),
        ("docker", "envcheck/torch:1", "envcheck/torch:1"),
    ],
)
def test_podman_keeps_what_it_built_under_localhost(engine: str, image: str, expected: str) -> None:
    assert engines.local_name(engine, image) == expected
