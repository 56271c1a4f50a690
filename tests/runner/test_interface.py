"""Which Python is meant, and what it promises."""

import json
import os
import sys
from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.images import promises
from envcheck.images.promises import read_promises
from envcheck.runner.local_python import (
    ChosenPython,
    LocalHandle,
    LocalPython,
    answering,
    choose_python,
)
from tests.tables import each


def interpreter(directory: Path) -> Path:
    python = directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return python


def test_the_one_that_is_given_wins_and_an_environment_is_as_good_as_its_python(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "venv")
    environ = {"VIRTUAL_ENV": "/elsewhere"}
    assert (
        choose_python(python, environ) == choose_python(tmp_path / "venv", environ) == ChosenPython(python, "--python")
    )


def test_a_virtual_environment_comes_before_conda_before_path_before_our_own(tmp_path: Path) -> None:
    venv, conda = interpreter(tmp_path / "venv"), interpreter(tmp_path / "conda")
    (tmp_path / "conda" / "bin" / "python3").symlink_to(sys.executable)
    environ = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": str(conda.parent),
    }
    assert choose_python(None, environ) == ChosenPython(venv, "$VIRTUAL_ENV")
    del environ["VIRTUAL_ENV"]
    assert choose_python(None, environ) == ChosenPython(conda, "$CONDA_PREFIX")
    del environ["CONDA_PREFIX"]
    assert choose_python(None, environ) == ChosenPython(conda.parent / "python3", "python3 on PATH")
    assert choose_python(None, {"PATH": str(tmp_path)}) == ChosenPython(Path(sys.executable), "envcheck's own")


def test_no_python_and_no_program_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    with pytest.raises(ConfigError, match="is not executable"):
        choose_python(tmp_path / "text")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    (tmp_path / "binary").chmod(0o755)
    with pytest.raises(ConfigError, match="cannot be started"):
        LocalPython(ChosenPython(tmp_path / "binary", "--python")).start(tmp_path)


@pytest.mark.parametrize(("version", "fine"), [("3.8", False), ("3.9", True), ("3.14", True), ("2.7", False)])
def test_a_python_too_old_for_the_worker_is_refused(tmp_path: Path, version: str, *, fine: bool) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\necho noise of a wrapper\necho Python-{version}\n")
    (tmp_path / "python").chmod(0o755)
    chosen = ChosenPython(tmp_path / "python", "--python")
    if fine:
        assert answering(chosen) == chosen
    else:
        with pytest.raises(ConfigError, match=rf"is Python {version}; give --python one of 3\.9 or newer"):
            answering(chosen)


def test_what_a_worker_prints_is_cut_and_read_from_the_file_that_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handle = LocalHandle(["sh", "-c", "head -c 30000000 /dev/zero; read x; echo done > said"], tmp_path)
    (tmp_path / "worker.log").unlink()
    os.mkfifo(tmp_path / "worker.log")
    while "cut" not in handle.logs():
        handle.poll()
    handle.close()  # the end of its stdin
    assert (tmp_path / "said").read_text() == "done\n"


def test_promises_are_read_beside_the_python_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_promises(str(tmp_path)) == {}
    (tmp_path / "envcheck-promises.json").write_text(json.dumps({"torch": "2.13.0+cpu", "arch-list": "none"}))
    assert read_promises(str(tmp_path)) == {"torch": "2.13.0+cpu", "arch_list": "none"}
    image = tmp_path / "image.json"
    image.write_text('{"torch": "2.8.0"}')
    monkeypatch.setattr(promises, "IMAGE_PROMISES", image)
    assert read_promises("/opt/venv") == {"torch": "2.8.0"}
    # What an image promises of its own environment says nothing of another one in it.
    assert read_promises("/usr") == {}


@each(
    ("made", "why"), [("pipe", "not a regular file"), ("/dev/zero", "not a regular file"), ("x" * 300, "name too long")]
)
def test_an_environment_whose_promises_have_no_end_holds_up_nobody(tmp_path: Path, made: str, why: str) -> None:
    prefix, promised = tmp_path / made[:9].strip("/"), tmp_path / made[:9].strip("/") / "envcheck-promises.json"
    promised.parent.mkdir(parents=True)
    if made == "pipe":
        os.mkfifo(promised)
    elif made.startswith("/"):
        promised.symlink_to(made)
    else:
        prefix = tmp_path / made
    with pytest.raises(ConfigError, match=why):
        read_promises(str(prefix))
    assert read_promises("/nowhere\0") == {}


@each("text", ["", "{", "[]", '{"torch": 2.1}', '{"torch": "\xe9"}'])
def test_promises_that_cannot_be_read_are_no_empty_ones(tmp_path: Path, text: str) -> None:
    (tmp_path / "envcheck-promises.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"promises\.json is no"):
        read_promises(str(tmp_path))
