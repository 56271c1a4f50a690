"""The online check: what the index contradicts is a finding; an index that cannot be asked is no pass."""

from __future__ import annotations

import stat
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from check_online import Question, Reply, check_online

from envcheck.errors import UnavailableError
from envcheck.matrix.facts.model import Matrix


def honest(matrix: Matrix) -> Callable[[Question], Reply]:
    def answer(question: Question) -> Reply:
        release = matrix.release(question.torch)
        variant = release.variant(release.pypi["x86_64"]) if release else None
        assert variant is not None
        return Reply(f"nvidia-cuda-runtime-cu12=={variant.cuda}.99\ntorch=={question.torch}\n")

    return answer


def test_an_index_that_agrees(matrix: Matrix) -> None:
    assert check_online(matrix, honest(matrix)) == []


def test_a_dead_index_is_asked_once(matrix: Matrix) -> None:
    requests: list[Question] = []

    def dead(question: Question) -> Reply:
        requests.append(question)
        message = "dead"
        raise UnavailableError(message, fix="none")

    with pytest.raises(UnavailableError):
        check_online(matrix, dead)
    assert len(requests) == 1


def test_another_cuda_is_found(matrix: Matrix) -> None:
    problems = check_online(matrix, lambda question: Reply(f"nvidia-cuda-runtime==13.0.96\ntorch=={question.torch}"))
    texts = {problem.where: problem.what for problem in problems}
    assert texts["torch 2.8.0"] == "the index's wheel requires CUDA 13.0, the matrix says 12.8"
    assert "torch 2.13.0" not in texts


def test_a_missing_wheel_is_found(matrix: Matrix) -> None:
    problems = check_online(matrix, lambda _: Reply(None, "No solution found"))
    assert len(problems) == 2 * len(matrix.torch)
    assert "no wheel for Python 3." in problems[0].what


def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\n{script}\n")
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))


def test_uv_is_asked_for_a_linux_wheel_of_that_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Matrix
) -> None:
    fake_uv(tmp_path, monkeypatch, f'echo "$@ < $(cat)" >> {tmp_path}/asked; exit 0')
    check_online(matrix)
    text = (tmp_path / "asked").read_text()
    assert "--python-version 3.13 --python-platform x86_64-manylinux_2_28 - < torch==2.8.0" in text
    assert "--only-binary :all:" in text


def test_an_index_that_cannot_be_reached_is_not_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Matrix
) -> None:
    fake_uv(tmp_path, monkeypatch, "cat >/dev/null; echo 'error: Failed to fetch' >&2; exit 2")
    with pytest.raises(UnavailableError, match="cannot query the package index: error: Failed to fetch"):
        check_online(matrix)
