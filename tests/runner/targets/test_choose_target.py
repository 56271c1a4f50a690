"""Which Python is meant, what it promises, and what a container of an image is started with."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.engines import docker_sdk
from envcheck.images.engines.digests import Digests
from envcheck.runner.schema import ImageFacts
from envcheck.runner.targets import gpu_devices as seen
from envcheck.runner.targets import interface as targets_interface
from envcheck.runner.targets.container import ContainerHandle, ContainerTarget
from envcheck.runner.targets.interface import Chosen, choose_python, parse_promises, read_promises
from envcheck.runner.targets.local_python import PACKAGE, LocalPython, answering


def interpreter(directory: Path) -> Path:
    python = directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return python


def test_the_one_that_is_given_wins_and_an_environment_is_as_good_as_its_python(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "venv")
    environ = {"VIRTUAL_ENV": "/elsewhere"}
    assert choose_python(python, environ) == choose_python(tmp_path / "venv", environ) == Chosen(python, "--python")


def test_a_virtual_environment_comes_before_conda_before_path_before_our_own(tmp_path: Path) -> None:
    venv, conda = interpreter(tmp_path / "venv"), interpreter(tmp_path / "conda")
    (tmp_path / "conda" / "bin" / "python3").symlink_to(sys.executable)
    environ = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": str(conda.parent),
    }
    assert choose_python(None, environ) == Chosen(venv, "$VIRTUAL_ENV")
    del environ["VIRTUAL_ENV"]
    assert choose_python(None, environ) == Chosen(conda, "$CONDA_PREFIX")
    del environ["CONDA_PREFIX"]
    assert choose_python(None, environ) == Chosen(conda.parent / "python3", "python3 on PATH")
    assert choose_python(None, {"PATH": str(tmp_path)}) == Chosen(Path(sys.executable), "envcheck's own")


def test_a_symlink_stays_one_for_it_names_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(tmp_path / "venv")
    monkeypatch.chdir(tmp_path)
    assert choose_python(Path("venv/bin/python")).python == tmp_path / "venv" / "bin" / "python"


def test_no_python_and_no_program_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Python at"):
        choose_python(tmp_path / "none")
    (tmp_path / "text").write_text("")
    with pytest.raises(ConfigError, match="is not executable"):
        choose_python(tmp_path / "text")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    (tmp_path / "binary").chmod(0o755)
    with pytest.raises(ConfigError, match="cannot be started"):
        LocalPython(Chosen(tmp_path / "binary", "--python")).start(tmp_path)


@pytest.mark.parametrize(("version", "fine"), [("3.8", False), ("3.9", True), ("3.14", True), ("2.7", False)])
def test_a_python_too_old_for_the_worker_is_refused(tmp_path: Path, version: str, *, fine: bool) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\necho noise of a wrapper\necho Python-{version}\n")
    (tmp_path / "python").chmod(0o755)
    chosen = Chosen(tmp_path / "python", "--python")
    if fine:
        assert answering(chosen) == chosen
    else:
        with pytest.raises(ConfigError, match=rf"is Python {version}; give --python one of 3\.9 or newer"):
            answering(chosen)


def test_promises_are_read_beside_the_python_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_promises(str(tmp_path)) == {}
    (tmp_path / "envcheck-promises.json").write_text(json.dumps({"torch": "2.13.0+cpu", "arch-list": "none"}))
    assert read_promises(str(tmp_path)) == {"torch": "2.13.0+cpu", "arch_list": "none"}
    image = tmp_path / "image.json"
    image.write_text('{"torch": "2.8.0"}')
    monkeypatch.setattr(targets_interface, "IMAGE_PROMISES", image)
    assert read_promises("/opt/venv") == {"torch": "2.8.0"}
    # What an image promises of its own environment says nothing of another one in it.
    assert read_promises("/usr") == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"torch": 2.1}'])
def test_promises_that_cannot_be_read_are_no_empty_ones(text: str) -> None:
    with pytest.raises(ConfigError, match=r"p\.json is no"):
        parse_promises(text, "p.json")


class FakeContainer:
    """A container that has ended, as the engine module shows it."""

    def __init__(self, code: int | None, *, oom: bool = False) -> None:
        self.code, self.oom, self.closed = code, oom, False

    def wait(self, timeout: float) -> int | None:
        """Return the code."""
        assert timeout == 0
        return self.code

    def out_of_memory(self) -> bool:
        """Say so."""
        return self.oom

    def logs(self) -> str:
        """Return it."""
        return "last words"

    def close(self) -> None:
        """Remember it."""
        self.closed = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the engine is asked to start, once it is; its images carry `labels`."""
    asked: dict[str, Any] = {"labels": {}, "history": [], "command": (), "user": "", "layers": [], "digests": Digests()}

    def run_container(image: str, **options: Any) -> FakeContainer:
        asked.update(options, image=image)
        return FakeContainer(None)

    told = ("labels", "command", "user", "layers", "digests")
    monkeypatch.setattr(
        docker_sdk, "inspect", lambda _: SimpleNamespace(id="sha256:1", **{name: asked[name] for name in told})
    )
    monkeypatch.setattr(docker_sdk, "history", lambda _: asked["history"])
    monkeypatch.setattr(docker_sdk, "run_container", run_container)
    return asked


def test_an_image_is_only_read_and_has_its_own_results_directory(started: dict[str, Any], tmp_path: Path) -> None:
    wanted = ContainerTarget("some/image:1", shm_size="1g")
    wanted.start(tmp_path)
    package, plan = started["mounts"]
    assert (package.source, package.target, package.read_only) == (PACKAGE, "/run/envcheck/envcheck", True)
    assert (plan.source, plan.read_only) == (tmp_path, False)
    assert (started["image"], started["shm_size"], wanted.facts.image_id) == ("some/image:1", "1g", "sha256:1")
    assert wanted.ours is False


@pytest.mark.parametrize(("devices", "expected"), [(["nvidiactl"], True), (["dxg"], True), (["null"], False)])
def test_gpus_are_passed_in_where_there_are_any(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str], *, expected: bool
) -> None:
    for device in devices:
        (tmp_path / device).touch()
    monkeypatch.setattr(seen, "_DEVICES", tuple(str(tmp_path / d) for d in ("nvidiactl", "dxg")))
    ContainerTarget("i").start(tmp_path)
    assert started["gpus"] is expected
    assert (seen.shown_gpus() == 0) is not expected


def test_labels_of_ours_are_promises_and_say_where_python_is(started: dict[str, Any]) -> None:
    started["labels"] = {"envcheck.cell": "c", "envcheck.arch-list": "sm_80", "maintainer": "x"}
    wanted = ContainerTarget("i")
    assert wanted.promises({}) == {"cell": "c", "arch_list": "sm_80"}
    assert wanted.argv()[0] == "/opt/venv/bin/python"
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
    assert ContainerTarget("i").facts.image == ImageFacts(runs_as="1000", program="", history=0, secrets=[])


def test_every_digest_that_the_engine_states_is_in_the_report(started: dict[str, Any]) -> None:
    started["layers"] = ["sha256:a", "sha256:b"]
    started["digests"] = Digests("sha256:m", "sha256:c", "sha256:i", ("r.example/x@sha256:i",))
    facts = ContainerTarget("i").facts.image
    assert facts is not None
    assert (facts.manifest_digest, facts.config_digest, facts.index_digest) == ("sha256:m", "sha256:c", "sha256:i")
    assert (facts.repository_digests, facts.diff_ids) == (["r.example/x@sha256:i"], ["sha256:a", "sha256:b"])


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
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if expected is None:
        assert (done.returncode, done.stdout) == (97, "no Python in this image\n")
    else:
        worker = "-B /run/envcheck/envcheck/runner/worker/main.py /run/envcheck-plan"
        assert done.stdout == f"{tmp_path / expected} {worker}\n"


def test_a_container_ended_for_its_memory_is_told_apart() -> None:
    assert ContainerHandle(FakeContainer(137)).poll() == 137
    with pytest.raises(UnavailableError, match="out of memory"):
        ContainerHandle(FakeContainer(137, oom=True)).poll()


def test_the_end_of_a_run_is_the_end_of_its_container() -> None:
    running = FakeContainer(None)
    handle = ContainerHandle(running)
    assert handle.poll() is None
    assert handle.log() == "last words"
    handle.end([os.getpid()])
    assert running.closed
