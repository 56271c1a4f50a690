"""extensions.yaml: canonical, consistent, small, and each way in which a file can be wrong is one line."""

from pathlib import Path
from typing import Any

import pytest
from extension_lint import MOST_MINORS, lint

from envcheck.errors import ConfigError
from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.file import Extension, ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.facts.model import Matrix
from tests.tables import beside, each, one_line

CASES = beside(__file__)

ROW = """\
schema: envcheck/extensions/1
sources: {pypi: METADATA}
extensions:
  - name: vllm
    source: [pypi]
    releases:
      - version: "0.16.0"
        source: [pypi]
        wheels:
          - channel: pypi
            arch: x86_64
            tags: [cp38-abi3]
            source: [pypi]
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_shipped_file_is_consistent_and_small(extensions: Extensions, matrix: Matrix) -> None:
    assert lint(extensions, matrix) == []
    assert file.SHIPPED.stat().st_size < 1_000_000


@each(("change", "to", "says"), CASES["wrong rows"])
def test_a_wrong_row_is_one_line_with_its_place(change: str, to: str, says: str) -> None:
    assert change in ROW
    with pytest.raises(ConfigError, match=one_line(says)):
        file.loads(ROW.replace(change, to, 1).encode(), "e.yaml")


def _wheel(**changes: Any) -> ExtensionWheel:
    return ExtensionWheel(**{"channel": "pypi", "arch": "any", "tags": ["py3-none"], "source": ["pypi"], **changes})


def _release(version: str = "1.0", **changes: Any) -> ExtensionRelease:
    return ExtensionRelease(**{"version": version, "source": ["pypi"], "wheels": [_wheel()], **changes})


def _one(*releases: ExtensionRelease) -> Extensions:
    row = Extension(name="vllm", source=["pypi"], releases=[*releases])
    return Extensions(schema="envcheck/extensions/1", sources={"pypi": "METADATA"}, extensions=[row])


def _minors(number: int) -> list[ExtensionRelease]:
    return [_release(f"1.{minor}.0") for minor in range(number)]


@each(
    ("extensions", "says"),
    [
        (_one(_release()), None),
        (_one(), "it has no release"),
        (_one(*_minors(MOST_MINORS)), None),
        (_one(*_minors(MOST_MINORS + 1)), "8 minors"),
        (_one(_release(wheels=[])), "neither a wheel nor a source"),
        (_one(_release("one", wheels=[], built_from=None)), "one is not a version"),
        (_one(_release(wheels=[], source=["nowhere"])), "its source nowhere is not among"),
        (_one(_release(wheels=[], requires={"torch": "2.9"})), "torch: '2.9' is not a version"),
        (_one(_release(wheels=[_wheel(variants=["cu999"])])), "cu999"),
        (_one(_release(wheels=[_wheel(cuda=["99"])])), "CUDA 99"),
        (_one(_release(wheels=[_wheel(sass=["9.0"])])), "no CUDA major"),
        (_one(_release(wheels=[_wheel(channel="project")])), "needs `where`"),
        (_one(_release(wheels=[_wheel(cuda=["12"], cuda_choices=True)])), "several CUDA majors"),
    ],
)
def test_what_contradicts_itself_is_found(extensions: Extensions, says: str | None, matrix: Matrix) -> None:
    problems = lint(extensions, matrix)
    assert [problem for problem in problems if says is None or says in problem.what] or says is None
    assert says is not None or problems == []
