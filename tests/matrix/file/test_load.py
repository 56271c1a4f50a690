"""Each way a matrix file can be wrong: one line with file, line, key path and what to do."""

import json
import re
from pathlib import Path

import pytest

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.matrix.file.load import load, loads
from tests.tables import each

BAD = Path(__file__).parents[2] / "data" / "bad"


@pytest.mark.parametrize("file", sorted(BAD.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_bad_file_is_one_line_that_says_what_to_do(file: Path) -> None:
    raw = file.read_bytes()
    expected = raw.decode().splitlines()[0].removeprefix("# expect: ")
    with pytest.raises(ConfigError) as caught:
        loads(raw, file.name)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; give a readable file with --matrix"):
        load(tmp_path / "none.yaml")


@each("image", ["x\nRUN evil", "--privileged", "a b", "$(id)", "", "X"])
def test_a_base_that_no_registry_names_is_refused(image: str) -> None:
    raw = data_path("matrix.yaml").read_text(encoding="utf-8")
    head, _, rest = raw.partition("\nbases:")
    changed = re.sub(r"image: [^,}\n]+", lambda _: f"image: {json.dumps(image)}", rest, count=1)
    with pytest.raises(ConfigError, match="bases"):
        loads(f"{head}\nbases:{changed}".encode(), "m.yaml")


@each(
    ("text", "says"),
    [
        ("schema: x\na: &a [*a]\n", "m.yaml:2: YAML aliases are not supported; write the value out"),
        ("a: &a {b: *a}\n", "m.yaml:1: YAML aliases"),
        ("a: &a x\nb: 1\nc: *a\n", "m.yaml:3: YAML aliases"),
        ("a: " + "[" * 20000 + "]" * 20000, "m.yaml:1: nested more than 32 deep"),
        ("a: " + "[" * 32 + "]" * 32, "m.yaml:1: nested more than 32 deep"),
    ],
)
def test_what_could_hold_itself_or_has_no_end_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text.encode(), "m.yaml")
    assert str(caught.value).startswith(says)
