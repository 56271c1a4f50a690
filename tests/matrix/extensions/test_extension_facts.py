"""extensions.yaml: canonical, consistent, small, and each way in which a file can be wrong is one line."""

from pathlib import Path

import pytest
from extension_lint import MOST_MINORS, lint

from envcheck.errors import ConfigError
from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.file import Extension, ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.facts.model import Matrix
from tests.tables import each

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


@pytest.fixture(scope="module")
def extensions() -> Extensions:
    return file.loads(file.SHIPPED.read_bytes())


def test_the_shipped_file_is_consistent_and_small(extensions: Extensions, matrix: Matrix) -> None:
    assert lint(extensions, matrix) == []
    assert file.SHIPPED.stat().st_size < 1_000_000


@each(
    ("change", "to", "says"),
    [
        (
            '"0.16.0"',
            "0.16",
            "e.yaml:7: $.extensions[0].releases[0].version: Expected `str`, got `float`; put it in quotes",
        ),
        ("arch: x86_64", "arch: riscv", "e.yaml:11: $.extensions[0].releases[0].wheels[0].arch: Invalid enum value"),
        (
            "tags: [cp38-abi3]",
            "tags: [cp38]",
            "e.yaml:12: $.extensions[0].releases[0].wheels[0].tags[0]: Expected `str`",
        ),
        ("tags: [cp38-abi3]", "tags: []", "e.yaml:12: $.extensions[0].releases[0].wheels[0].tags: Expected `array`"),
        ("channel: pypi", "chanel: pypi", "e.yaml:10: $.extensions[0].releases[0].wheels[0]: Object contains unknown"),
        ("    source: [pypi]\n    rel", "    rel", "e.yaml:4: $.extensions[0]: Object missing required field `source`"),
        ("name: vllm", "name: vLLM", "e.yaml:4: $.extensions[0].name: Expected `str` matching regex"),
        ("extensions:\n", "extensions:\n  - {name: vllm, source: [pypi]}\n", "e.yaml:5: $.extensions[1]: vllm appears"),
    ],
)
def test_a_wrong_row_is_one_line_with_its_place(change: str, to: str, says: str) -> None:
    assert change in ROW
    with pytest.raises(ConfigError) as caught:
        file.loads(ROW.replace(change, to, 1).encode(), "e.yaml")
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def _one(
    *, extension: Extension | None = None, release: ExtensionRelease | None = None, wheel: ExtensionWheel | None = None
) -> Extensions:
    wheel = wheel or ExtensionWheel(channel="pypi", arch="x86_64", tags=["cp38-abi3"], source=["pypi"])
    release = release or ExtensionRelease(version="1.0", source=["pypi"], wheels=[wheel])
    row = extension or Extension(name="vllm", source=["pypi"], releases=[release])
    return Extensions(schema="envcheck/extensions/1", sources={"pypi": "METADATA"}, extensions=[row])


def _releases(number: int) -> list[ExtensionRelease]:
    wheel = ExtensionWheel(channel="pypi", arch="any", tags=["py3-none"], source=["pypi"])
    return [ExtensionRelease(version=f"1.{minor}.0", source=["pypi"], wheels=[wheel]) for minor in range(number)]


@each(
    ("extensions", "says"),
    [
        (_one(), None),
        (_one(extension=Extension(name="vllm", source=["pypi"])), "it has no release"),
        (_one(extension=Extension(name="vllm", source=["pypi"], releases=_releases(MOST_MINORS))), None),
        (_one(extension=Extension(name="vllm", source=["pypi"], releases=_releases(MOST_MINORS + 1))), "8 minors"),
        (_one(release=ExtensionRelease(version="1.0", source=["pypi"])), "neither a wheel nor a source"),
        (_one(release=ExtensionRelease(version="one", source=["pypi"], built_from=None)), "one is not a version"),
        (_one(release=ExtensionRelease(version="1.0", source=["nowhere"])), "its source nowhere is not among"),
        (
            _one(release=ExtensionRelease(version="1.0", requires={"torch": "2.9"}, source=["pypi"])),
            "torch: '2.9' is not a version",
        ),
        (
            _one(
                wheel=ExtensionWheel(channel="pypi", arch="any", tags=["py3-none"], variants=["cu999"], source=["pypi"])
            ),
            "cu999",
        ),
        (
            _one(wheel=ExtensionWheel(channel="pypi", arch="any", tags=["py3-none"], cuda=["99"], source=["pypi"])),
            "CUDA 99",
        ),
        (
            _one(wheel=ExtensionWheel(channel="pypi", arch="any", tags=["py3-none"], sass=["9.0"], source=["pypi"])),
            "no CUDA major",
        ),
        (
            _one(wheel=ExtensionWheel(channel="project", arch="any", tags=["py3-none"], source=["pypi"])),
            "needs `where`",
        ),
        (
            _one(
                wheel=ExtensionWheel(
                    channel="pypi", arch="any", tags=["py3-none"], cuda=["12"], cuda_choices=True, source=["pypi"]
                )
            ),
            "several CUDA majors",
        ),
    ],
)
def test_what_contradicts_itself_is_found(extensions: Extensions, says: str | None, matrix: Matrix) -> None:
    problems = lint(extensions, matrix)
    assert [problem for problem in problems if says is None or says in problem.what] or says is None
    assert says is not None or problems == []
