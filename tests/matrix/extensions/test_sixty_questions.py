"""Sixty questions with answers derived by hand, and a slow check of its own of whatever is answered as fitting."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from packaging.specifiers import SpecifierSet
from packaging.tags import cpython_tags, parse_tag

from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution, resolve_with, wanted_extensions
from envcheck.matrix.extensions.model import Extensions, ExtensionWheel
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.resolver.resolve import Query, resolve
from tests.matrix.extensions.sixty_questions import FITS, NOTHING_FITS, QUESTIONS, AskedExtensions

AskWith = Callable[..., ExtensionResolution]


def test_half_of_the_sixty_have_no_answer() -> None:
    assert (len(FITS), len(NOTHING_FITS)) == (30, 30)
    assert all(question.fits for question in FITS)
    assert not any(question.fits for question in NOTHING_FITS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.requirements} {' '.join(map(str, q.axes.values()))}")
def test_the_answer_is_what_the_facts_say(ask_with: AskWith, question: AskedExtensions) -> None:
    answer = ask_with(*question.requirements.split(), **question.axes)
    if question.fits:
        assert ", ".join(f"{each.name} {each.version}" for each in answer.extensions) == question.answer
        assert answer.legal
    else:
        assert (answer.cell, answer.verdict, answer.extensions) == (None, question.answer, [])
        assert not answer.legal


def slow_check(matrix: Matrix, extensions: Extensions, answer: ExtensionResolution) -> list[str]:
    """Return every rule that an answer breaks, read off the facts in the plainest way."""
    cell = Cell.parse(answer.cell or "")
    assert cell is not None
    release = matrix.release(cell.torch)
    variant = release.variant(cell.variant) if release else None
    wrong = []
    pins = {"torch": {f"=={cell.torch}"}}
    for each in answer.extensions:
        row = extensions.find(each.name)
        facts = next(other for other in row.releases if other.version == each.version) if row else None
        assert facts is not None
        pins.setdefault(each.name, set()).add(f"=={each.version}")
        for name, specifier in facts.requires.items():
            pins.setdefault(name, set()).add(specifier)
        if not SpecifierSet(facts.requires_python or "").contains(f"{cell.python.rstrip('t')}.99"):
            wrong.append(f"{each.name}: Python")
        if each.channel == "source":
            wrong += [] if facts.built_from else [f"{each.name}: no source"]
            continue
        matching = [wheel for wheel in facts.wheels if _is_chosen(wheel, each)]
        cuda = variant.cuda if variant else None
        if not any(
            _wheel_fits(matrix, wheel, cell, cuda, answer, facts.requires.get("torch", "")) for wheel in matching
        ):
            wrong.append(f"{each.name}: wheel")
    torch = SpecifierSet(",".join(filter(None, pins["torch"])))
    wrong += [] if torch.contains(cell.torch) else ["torch"]
    for name, specifiers in pins.items():
        exact = {s[2:] for s in specifiers if s.startswith("==") and "*" not in s and "," not in s}
        whole = SpecifierSet(",".join(filter(None, specifiers)))
        wrong += [] if all(whole.contains(version, prereleases=True) for version in exact) else [f"pins of {name}"]
    return wrong


def _is_chosen(wheel: ExtensionWheel, each: ChosenExtension) -> bool:
    return wheel.channel == each.channel and wheel.where == each.where


def _wheel_fits(
    matrix: Matrix, wheel: ExtensionWheel, cell: Cell, cuda: str | None, answer: ExtensionResolution, torch: str
) -> bool:
    major, minor = (cuda or "0").split(".")[0], cell.torch.rsplit(".", 1)[0]
    fields = [*map(int, cell.python.rstrip("t").split("."))]
    abi = f"cp{''.join(map(str, fields))}{'t' if cell.python.endswith('t') else ''}"
    accepted = {*map(str, cpython_tags(fields, abis=[abi], platforms=["any"]))}
    accepted |= {f"py{fields[0]}{m}-none-any" for m in range(fields[1] + 1)} | {"py3-none-any"}
    tags = {str(tag) for tag in (next(iter(parse_tag(f"{tag}-any"))) for tag in wheel.tags)}
    known = wheel.abi is not None and wheel.cuda is not None and wheel.sass is not None
    named = wheel.abi in ("none", "stable") or bool(wheel.torch or wheel.built_for or "=" in torch)
    facts = Facts(matrix)
    devices = [facts.device(name) for name in answer.query.gpus]
    code = all(
        not wheel.cuda
        or not (wheel.sass or wheel.ptx)
        or any(_same_major(sm, device.cc) for sm in wheel.sass or [])
        or (
            answer.verdict == "ok"
            and any([*map(int, p.split("."))] <= [*map(int, device.cc.split("."))] for p in wheel.ptx)
        )
        for device in devices
    )
    return (
        bool(tags & accepted)
        and wheel.arch in ("any", answer.arch)
        and known
        and named
        and (not wheel.torch or minor in wheel.torch)
        and (not wheel.built_for or SpecifierSet(wheel.built_for).contains(cell.torch))
        and (not wheel.variants or cell.variant in wheel.variants)
        and (not wheel.cuda or major in wheel.cuda)
        and code
    )


def _same_major(sm: str, cc: str) -> bool:
    """SASS runs on the same major, at its minor or above."""
    (major, minor), (cc_major, cc_minor) = (map(int, each.split(".")) for each in (sm, cc))
    return major == cc_major and minor <= cc_minor


NAMES = [
    "vllm",
    "xformers",
    "torchao",
    "flash-attn",
    "torchcodec",
    "onnxruntime-gpu",
    "bitsandbytes",
    "sglang",
    "faiss-gpu",
    "torch-tensorrt",
    "mamba-ssm",
    "torchvision",
    "torchaudio",
    "deepspeed",
    "cupy-cuda12x",
    "pyg-lib",
    "auto-gptq",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    gpu=st.sampled_from(["V100", "T4", "A100", "L4", "H100", "GH200", "B200", "RTX 5090"]),
    driver=st.sampled_from([None, "535.54.03", "550.54.15", "570.124.06", "580.65.06"]),
    torch=st.sampled_from([None, "2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.13.0", "2.14.1"]),
    third_party=st.booleans(),
)
def test_whatever_is_answered_as_fitting_satisfies_every_rule(
    matrix: Matrix,
    extensions: Extensions,
    names: list[str],
    gpu: str,
    driver: str | None,
    torch: str | None,
    third_party: bool,  # noqa: FBT001 (hypothesis gives it by name)
) -> None:
    plain = resolve(matrix, Query(gpus=[gpu], driver=driver, torch=torch))
    answer = resolve_with(matrix, extensions, plain, wanted_extensions(extensions, names), third_party=third_party)
    if answer.cell is None:
        assert answer.extensions == []
        return
    assert [each.name for each in answer.extensions] == names
    assert slow_check(matrix, extensions, answer) == []
    assert third_party or all(each.channel != "third-party" for each in answer.extensions)
