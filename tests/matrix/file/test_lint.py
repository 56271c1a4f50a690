"""Each rule of the lint finds what it is for: the shipped facts, sabotaged one at a time."""

from collections.abc import Callable
from typing import Any

import msgspec

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.lint import lint
from tests.tables import each

Change = Callable[[dict[str, Any]], None]


def test_nothing_is_wrong_with_what_is_shipped(matrix: Matrix) -> None:
    assert lint(matrix) == []


def row(rows: list[dict[str, Any]], **known: str) -> dict[str, Any]:
    return next(row for row in rows if all(row.get(name) == value for name, value in known.items()))


def variant(plain: dict[str, Any], torch: str, name: str) -> dict[str, Any]:
    return row(row(plain["torch"], torch=torch)["variants"], variant=name)


SABOTAGE: dict[str, tuple[Change, str]] = {
    "unknown source": (lambda p: p["gpus"][0].update(source=["hearsay"]), "hearsay is not among `sources`"),
    "unused source": (lambda p: p["sources"].update(extra="x"), "no fact names this source"),
    "floor order": (lambda p: row(p["cuda"]["families"], major="13").update(floor="500.1"), "is not above 525.60.13"),
    "native order": (
        lambda p: row(p["cuda"]["minors"], cuda="12.9").update(native_driver="570.1"),
        "driver 570.1 is not above 12.8's",
    ),
    "native below floor": (
        lambda p: row(p["cuda"]["minors"], cuda="11.1").update(native_driver="450.70"),
        "is below the family's floor 450.80.02",
    ),
    "no family": (lambda p: p["cuda"]["families"].pop(), "there is no family 13"),
    "forward branch too new": (
        lambda p: row(p["cuda"]["minors"], cuda="12.8").update(forward_compat_branches=["570"]),
        "forward-compat branch 570 is not older",
    ),
    "forward branch unknown": (
        lambda p: row(p["cuda"]["minors"], cuda="12.8").update(forward_compat_branches=["471"]),
        "forward-compat branch 471 is not among `drivers`",
    ),
    "branch order": (lambda p: row(p["drivers"], branch="575").update(cuda="12.8"), "is not above 12.8 of 570"),
    "dropped twice": (lambda p: row(p["drivers"], branch="610").update(drops=["Volta"]), "Volta is dropped by more"),
    "unknown capability": (lambda p: row(p["gpus"], name="H100").update(cc="9.9"), "9.9 is not among cuda.capabil"),
    "first driver's branch": (
        lambda p: row(p["gpus"], name="H200")["first_driver"].update({"570": "575.51.02"}),
        "first driver 575.51.02 is not of branch 570",
    ),
    "first driver's branch unknown": (
        lambda p: row(p["gpus"], name="H200")["first_driver"].update({"571": "571.1"}),
        "branch 571 is not among `drivers`",
    ),
    "below its lowest": (
        lambda p: row(p["gpus"], name="H200")["first_driver"].update({"550": "550.54.14"}),
        "first driver 550.54.14 is below its lowest, 550.90.07",
    ),
    "ambiguous name": (lambda p: row(p["gpus"], name="H200").update(aliases=["H100"]), "the name H100 finds H100"),
    "release order": (lambda p: row(p["torch"], torch="2.8.0").update(released="2020-01-01"), "before 2.7.1"),
    "no torchvision": (lambda p: row(p["torch"], torch="2.8.0").pop("torchvision"), "it has no torchvision"),
    "torchvision order": (
        lambda p: row(p["torch"], torch="2.8.0").update(torchvision="0.22.1"),
        "torchvision 0.22.1 is not above that of 2.7.1",
    ),
    "torchaudio after the end": (
        lambda p: row(p["torch"], torch="2.13.0").update(torchaudio="2.13.0"),
        "it has a torchaudio, although 2.12.0 has none",
    ),
    "no such PyPI variant": (
        lambda p: row(p["torch"], torch="2.8.0").update(pypi={"x86_64": "cu121"}),
        "PyPI's x86_64 wheel is cu121",
    ),
    "cpu with CUDA": (lambda p: variant(p, "2.8.0", "cpu").update(cuda="12.8"), "cpu, and only cpu, has no CUDA"),
    "CUDA without a minor": (lambda p: variant(p, "2.8.0", "cu128").update(cuda="12.7"), "12.7 is not among cuda.min"),
    "code without a rule": (
        lambda p: variant(p, "2.8.0", "cu128")["builds"][0].update(sass=["9.9"]),
        "its code for 9.9 is not among cuda.code",
    ),
    "code before its CUDA": (
        lambda p: variant(p, "2.8.0", "cu126")["builds"][0].update(sass=["12.0"]),
        "CUDA 12.6 cannot have built code for 12.0",
    ),
    "no base": (lambda p: p["bases"].pop(), "there is no base for Python 3.13"),
    "no such image": (
        lambda p: p["images"][0].update(variants=["cu132"]),
        "torch 2.4.1 has no cu132; it has cpu, cu118, cu121, cu124",
    ),
    "no such torch": (
        lambda p: p["images"][0].update(torch="2.4"),
        "torch 2.4 is not under `torch`; did you mean 2.4.0 or 2.4.1?",
    ),
    "no such Python": (lambda p: p["images"][1].update(python=["3.13"]), "no wheel for Python 3.13; cu121 has 3."),
    "no variant": (lambda p: p["images"][0].update(variants=[]), "`variants` is empty: it publishes nothing"),
    "a variant twice": (lambda p: p["images"][0].update(variants=["cu121", "cu121"]), "appears twice in `variants`"),
    "a cell in two rows": (
        lambda p: p["images"].append(p["images"][0] | {"variants": ["cpu", "cu121"], "python": ["3.12"]}),
        "more than one row of `images` publishes it",
    ),
    "an architecture without wheels": (
        lambda p: p["images"][0].update(more_archs=["aarch64"], variants=["cu121"]),
        "no wheel for aarch64: leave it out of `more_archs`",
    ),
    "a Python twice": (lambda p: p["images"][0].update(python=["3.12", "3.12"]), "3.12 appears twice in `python`"),
    "no Python": (lambda p: p["images"][0].update(python=[]), "`python` is empty: it publishes nothing"),
    "no target": (lambda p: p["images"][0].update(targets=[]), "`targets` is empty"),
}


@each("name", SABOTAGE)
def test_each_rule_finds_what_it_is_for(matrix: Matrix, name: str) -> None:
    plain = msgspec.to_builtins(matrix)
    change, says = SABOTAGE[name]
    change(plain)
    problems = lint(msgspec.convert(plain, Matrix))
    assert any(says in problem.what for problem in problems), problems
