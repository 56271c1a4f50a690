"""Rows of native extensions are proposed against an index of this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from canonical import dump_extensions

from envcheck.matrix.extensions.file import Extensions, load, loads
from tests.http_server import Answer, Request, Server

Run = Callable[..., tuple[int, str, str]]
FACTS = """\
schema: envcheck/extensions/1
sources: {pypi: METADATA}
extensions:
  - name: vllm
    source: [pypi]
    releases:
      - version: "0.33.0"
        source: [pypi]
        wheels: [{channel: pypi, arch: x86_64, tags: [cp38-abi3], source: [pypi]}]
  - name: pyg-lib
    source: [pypi]
    releases:
      - version: "0.8.0"
        source: [pypi]
        wheels: [{channel: pypi, arch: x86_64, tags: [cp310-abi3], source: [pypi]}]
"""
FILES = [
    "vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",  # older
    "vllm-0.34.0-cp38-abi3-manylinux_2_28_x86_64.whl",  # not the newest of its minor
    "vllm-0.34.1-cp38-abi3-manylinux_2_28_x86_64.whl",
    "vllm-0.34.1-cp38-abi3-manylinux_2_31_aarch64.whl",
    "vllm-0.34.1-cp38-abi3-win_amd64.whl",
    "vllm-0.35.0rc1-cp38-abi3-manylinux_2_28_x86_64.whl",
]
METADATA = """\
Metadata-Version: 2.1
Name: vllm
Version: 0.34.1
Requires-Python: >=3.11
Requires-Dist: torch==2.15.0
Requires-Dist: pywin32; sys_platform == "win32"
Requires-Dist: audio-kit; extra == "audio"
"""


def answer(request: Request) -> Answer:
    if request.route == "/simple/vllm/":
        links = "".join(f'<a href="/files/{name}#sha256={"b" * 64}">w</a>' for name in FILES)
        return Answer(200, links.encode(), {"Content-Type": "text/html"})
    return Answer(200, METADATA.encode()) if request.route.endswith(".metadata") else Answer(404)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "extensions.yaml"
    path.write_text(dump_extensions(loads(FACTS.encode())))
    return path


def vllm(extensions: Extensions) -> list[str]:
    row = extensions.find("vllm")
    return [release.version for release in row.releases] if row else []


def test_a_newer_release_becomes_a_row_that_never_counts_as_fitting(
    run: Run, mine: Path, profile: str, tmp_path: Path
) -> None:
    page = tmp_path / "proposal.md"
    args = ("--extensions", str(mine), "--mirror", profile, "--summary", str(page))
    code, out, _ = run(*args)
    assert code == 0
    assert "vllm 0.34.1: cp38-abi3\n1 row added to extensions.yaml" in out
    assert "no page of pyg-lib" in out
    extensions = load(mine)
    assert vllm(extensions) == ["0.33.0", "0.34.1"]
    release = extensions.extensions[1].releases[1]
    assert (release.verified, release.requires_python, release.requires) == (False, ">=3.11", {"torch": "==2.15.0"})
    assert [(wheel.arch, wheel.glibc, wheel.cuda, wheel.sass) for wheel in release.wheels] == [
        ("x86_64", "2.28", None, None),
        ("aarch64", "2.31", None, None),
    ]
    assert mine.read_text() == dump_extensions(extensions)
    assert f"{'b' * 64}  {FILES[2]}" in page.read_text()
    assert "0 rows added" in run(*args)[1]


@pytest.mark.parametrize("broken", ["/simple/vllm/", ".metadata"])
def test_an_index_that_fails_is_exit_3_and_nothing_changes(
    run: Run, mine: Path, profile: str, server: Server, broken: str
) -> None:
    def failing(request: Request) -> Answer:
        if request.route.endswith(broken):
            return Answer(200, b"Metadata-", {"Content-Length": "999"}, close=True)
        return answer(request)

    server.answering = failing
    before = mine.read_bytes()
    code, out, err = run("--extensions", str(mine), "--mirror", profile)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "cannot read the index 127.0.0.1" in err
    assert mine.read_bytes() == before
