"""Each rule of the lint finds what it is for: the shipped facts, sabotaged one at a time."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.lint import lint
from envcheck.matrix.file.load import loads
from tests.tables import each, one_line

Change = Callable[[dict[str, Any]], None]


def row(rows: list[dict[str, Any]], **known: str) -> dict[str, Any]:
    return next(row for row in rows if all(row.get(name) == value for name, value in known.items()))


def variant(plain: dict[str, Any], torch: str, name: str) -> dict[str, Any]:
    return row(row(plain["torch"], torch=torch)["variants"], variant=name)


def minor(cuda: str, **changes: Any) -> Change:
    return lambda p: row(p["cuda"]["minors"], cuda=cuda).update(changes)


def release(torch: str, **changes: Any) -> Change:
    return lambda p: row(p["torch"], torch=torch).update(changes)


def h200(branch: str, driver: str) -> Change:
    return lambda p: row(p["gpus"], name="H200")["first_driver"].update({branch: driver})


def code(name: str, *sass: str) -> Change:
    return lambda p: variant(p, "2.8.0", name)["builds"][0].update(sass=[*sass])


def image(**changes: list[str] | str) -> Change:
    return lambda p: p["images"][0].update(changes)


SABOTAGE: dict[str, tuple[Change, str]] = {
    "unknown source": (lambda p: p["gpus"][0].update(source=["hearsay"]), "hearsay is not among `sources`"),
    "unused source": (lambda p: p["sources"].update(extra="x"), "no fact names this source"),
    "floor order": (lambda p: row(p["cuda"]["families"], major="13").update(floor="500.1"), "is not above 525.60.13"),
    "native order": (minor("12.9", native_driver="570.1"), "driver 570.1 is not above 12.8's"),
    "native below floor": (minor("11.1", native_driver="450.70"), "is below the family's floor 450.80.02"),
    "no family": (lambda p: p["cuda"]["families"].pop(), "there is no family 13"),
    "forward branch too new": (
        minor("12.8", forward_compat_branches=["570"]),
        "forward-compat branch 570 is not older",
    ),
    "forward branch unknown": (
        minor("12.8", forward_compat_branches=["471"]),
        "forward-compat branch 471 is not among `drivers`",
    ),
    "branch order": (lambda p: row(p["drivers"], branch="575").update(cuda="12.8"), "is not above 12.8 of 570"),
    "dropped twice": (lambda p: row(p["drivers"], branch="610").update(drops=["Volta"]), "Volta is dropped by more"),
    "unknown capability": (lambda p: row(p["gpus"], name="H100").update(cc="9.9"), "9.9 is not among cuda.capabil"),
    "first driver's branch": (h200("570", "575.51.02"), "first driver 575.51.02 is not of branch 570"),
    "first driver's branch unknown": (h200("571", "571.1"), "branch 571 is not among `drivers`"),
    "below its lowest": (h200("550", "550.54.14"), "first driver 550.54.14 is below its lowest, 550.90.07"),
    "ambiguous name": (lambda p: row(p["gpus"], name="H200").update(aliases=["H100"]), "the name H100 finds H100"),
    "release order": (release("2.8.0", released="2020-01-01"), "before 2.7.1"),
    "no torchvision": (lambda p: row(p["torch"], torch="2.8.0").pop("torchvision"), "it has no torchvision"),
    "torchvision order": (release("2.8.0", torchvision="0.22.1"), "torchvision 0.22.1 is not above that of 2.7.1"),
    "torchaudio after the end": (
        release("2.13.0", torchaudio="2.13.0"),
        "it has a torchaudio, although 2.12.0 has none",
    ),
    "no such PyPI variant": (release("2.8.0", pypi={"x86_64": "cu121"}), "PyPI's x86_64 wheel is cu121"),
    "cpu with CUDA": (lambda p: variant(p, "2.8.0", "cpu").update(cuda="12.8"), "cpu, and only cpu, has no CUDA"),
    "CUDA without a minor": (lambda p: variant(p, "2.8.0", "cu128").update(cuda="12.7"), "12.7 is not among cuda.min"),
    "code without a rule": (code("cu128", "9.9"), "its code for 9.9 is not among cuda.code"),
    "code before its CUDA": (code("cu126", "12.0"), "CUDA 12.6 cannot have built code for 12.0"),
    "no base": (lambda p: p["bases"].pop(), "there is no base for Python 3.13"),
    "no such image": (image(variants=["cu132"]), "torch 2.4.1 has no cu132; it has cpu, cu118, cu121, cu124"),
    "no such torch": (image(torch="2.4"), "torch 2.4 is not under `torch`; did you mean 2.4.0 or 2.4.1?"),
    "no such Python": (lambda p: p["images"][1].update(python=["3.13"]), "no wheel for Python 3.13; cu121 has 3."),
    "no variant": (image(variants=[]), "`variants` is empty: it publishes nothing"),
    "a variant twice": (image(variants=["cu121", "cu121"]), "appears twice in `variants`"),
    "a cell in two rows": (
        lambda p: p["images"].append(p["images"][0] | {"variants": ["cpu", "cu121"], "python": ["3.12"]}),
        "more than one row of `images` publishes it",
    ),
    "an architecture without wheels": (
        image(more_archs=["aarch64"], variants=["cu121"]),
        "no wheel for aarch64: leave it out of `more_archs`",
    ),
    "a Python twice": (image(python=["3.12", "3.12"]), "3.12 appears twice in `python`"),
    "no Python": (image(python=[]), "`python` is empty: it publishes nothing"),
    "no target": (image(targets=[]), "`targets` is empty"),
}


@each("name", SABOTAGE)
def test_each_rule_finds_what_it_is_for(matrix: Matrix, name: str) -> None:
    plain = msgspec.to_builtins(matrix)
    change, says = SABOTAGE[name]
    change(plain)
    problems = lint(msgspec.convert(plain, Matrix))
    assert any(says in problem.what for problem in problems), problems


BAD = Path(__file__).parents[2] / "data" / "bad"


@pytest.mark.parametrize("file", sorted(BAD.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_bad_file_is_one_line_that_says_what_to_do(file: Path) -> None:
    raw = file.read_bytes()
    expected = raw.decode().splitlines()[0].removeprefix("# expect: ")
    with pytest.raises(ConfigError, match=one_line(expected)):
        loads(raw, file.name)


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
    with pytest.raises(ConfigError, match=one_line(says)):
        loads(text.encode(), "m.yaml")
