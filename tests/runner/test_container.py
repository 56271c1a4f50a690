"""What a container of an image is started with, and what its end says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.engines import Container, Digests, Engine, Layer
from envcheck.node import collect
from envcheck.runner import container
from envcheck.runner.container import ContainerTarget
from envcheck.runner.launcher import Place
from envcheck.runner.local_python import PACKAGE
from envcheck.runner.schema import ImageFacts


class FakeContainer(Container):
    """A container that has ended, as the engine module shows it."""

    def __init__(self, code: int | None, *, oom: bool = False) -> None:
        self.code, self.state, self._polled_at = code, {"OOMKilled": oom}, 0.0

    def wait(self, timeout: float) -> int | None:
        assert timeout == 0
        return self.code

    def _state(self) -> dict[str, Any]:
        return self.state


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the engine is asked to start, once it is; its images carry `labels`."""
    data: dict[str, Any] = {"labels": {}, "history": [], "command": (), "user": "", "layers": ["sha256:2"]}
    data |= {"digests": Digests(), "env": {}}

    def run_container(_engine: Engine, image: str, **options: Any) -> FakeContainer:
        data.update(options, image=image)
        return FakeContainer(None)

    result = ("labels", "command", "user", "layers", "digests", "env")
    monkeypatch.setattr(Engine, "demand", lambda _: None)
    monkeypatch.setattr(
        Engine, "inspect", lambda *_: SimpleNamespace(id="sha256:1", **{name: data[name] for name in result})
    )
    monkeypatch.setattr(Engine, "history", lambda *_: [Layer(bytes=0, step=step) for step in data["history"]])
    monkeypatch.setattr(Engine, "run_container", run_container)
    return data


def test_an_image_is_only_read_and_has_its_own_results_directory(started: dict[str, Any], tmp_path: Path) -> None:
    expected = ContainerTarget("some/image:1", shm_size="1g")
    expected.start(tmp_path)
    package, plan = started["mounts"]
    assert (package.source, package.target, package.read_only) == (PACKAGE, "/run/envcheck/envcheck", True)
    assert (plan.source, plan.read_only) == (tmp_path, False)
    assert (started["image"], started["shm_size"], expected.facts.image_id) == ("some/image:1", "1g", "sha256:1")


def test_a_fabric_is_handed_in_and_ranks_of_several_nodes_use_the_hosts_network(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "FABRIC", str(tmp_path))
    monkeypatch.setattr(container, "place", lambda _: Place(nodes=2))
    ContainerTarget("i").start(tmp_path)
    assert (started["fabric"], started["network"]) == (True, "host")


@pytest.mark.parametrize(("devices", "expected"), [(["nvidiactl"], True), (["dxg"], True), (["null"], False)])
def test_gpus_are_passed_in_where_there_are_any(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str], *, expected: bool
) -> None:
    for device in devices:
        (tmp_path / device).touch()
    monkeypatch.setattr(collect, "_DEVICES", tuple(str(tmp_path / d) for d in ("nvidiactl", "dxg")))
    ContainerTarget("i").start(tmp_path)
    assert started["gpus"] is expected
    assert (started["fabric"], started["network"]) == (Path("/dev/infiniband").is_dir(), "none")
    started["env"] = {"NCCL_SOCKET_IFNAME": "eth0"}
    ContainerTarget("i").start(tmp_path)
    assert started["network"] == "", "the interface that it names is one of the engine's network"
    assert (collect.shown_gpus() == 0) is not expected


def test_labels_of_ours_are_promises_and_say_where_python_is(started: dict[str, Any]) -> None:
    started["labels"] = {"envcheck.cell": "c", "envcheck.arch-list": "sm_80", "maintainer": "x"}
    expected = ContainerTarget("i")
    assert expected.promises({}) == {"cell": "c", "arch_list": "sm_80"}
    assert expected.argv()[0] == "/opt/venv/bin/python"
    assert ContainerTarget("i", python="/usr/bin/python3").argv()[0] == "/usr/bin/python3"


def test_what_an_image_is_and_where_it_holds_a_credential_is_told_without_its_value(started: dict[str, Any]) -> None:
    started.update(user="1000", command=("/usr/bin/tini", "-g", "--", "serve", "--token", "canary"))
    started["labels"] = {"build": "HF_TOKEN=canary", "maintainer": "x"}
    started["history"] = ["CMD x", "RUN |1 API_KEY=canary /bin/sh -c true", "RUN pip install x"]
    facts = ContainerTarget("i").facts.image
    assert facts is not None
    assert "canary" not in str(facts)
    assert (facts.runs_as, facts.program, facts.history) == ("1000", "tini", 3)
    assert facts.secrets == ["history, 1 from the last: API_KEY", "label build: HF_TOKEN", "what it starts: --token"]
    started.update(command=(), labels={}, history=[])
    plain = ImageFacts(runs_as="1000", program="", history=0, secrets=[], diff_ids=["sha256:2"])
    assert ContainerTarget("i").facts.image == plain


@pytest.mark.parametrize(
    ("pythons", "environ", "expected"),
    [
        ({"a/bin/python": True, "p/python3": True}, {"VIRTUAL_ENV": "a"}, "a/bin/python"),
        ({"p/python3": False, "p/python": True}, {}, "p/python"),
        ({"p/python3": False, "p/python": False}, {}, "p/python3"),
        ({}, {}, None),
    ],
)
def test_in_a_foreign_image_the_first_python_with_torch_is_found(
    started: dict[str, Any], tmp_path: Path, pythons: dict[str, bool], environ: dict[str, str], expected: str | None
) -> None:
    import subprocess  # noqa: PLC0415

    for name, torch in pythons.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {int(not torch)}\necho "$0" "$@"\n')
        path.chmod(0o755)
    assert not started["labels"]
    argv = ContainerTarget("i").argv()
    env = {"PATH": str(tmp_path / "p"), **{k: str(tmp_path / v) for k, v in environ.items()}}
    completed = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if expected is None:
        assert (completed.returncode, completed.stdout) == (97, "no Python in this image\n")
    else:
        worker = "-B /run/envcheck/envcheck/runner/worker/main.py /run/envcheck-plan"
        assert completed.stdout == f"{tmp_path / expected} {worker}\n"


def test_a_container_ended_for_its_memory_is_told_apart() -> None:
    assert FakeContainer(137).poll() == 137
    with pytest.raises(UnavailableError, match="out of memory"):
        FakeContainer(137, oom=True).poll()
