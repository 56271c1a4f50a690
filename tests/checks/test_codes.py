"""Every code of an outcome: well-formed, with one meaning, and on the page docs/codes.md."""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Check, Outcome, View, failed, passed, warned, worst
from envcheck.node import collect
from envcheck.node.snapshot import Snapshot
from envcheck.reports.model import load, rejudge
from envcheck.runner import outcomes
from envcheck.runner.judging import decide
from envcheck.runner.outcomes import as_finding, fields
from envcheck.runner.planning import CheckModule, discover
from envcheck.runner.schema import OutcomeRow
from tests.tables import each

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "codes.md"
REPORTS = sorted((ROOT / "tests" / "data" / "reports").glob("*.json"))
STATUSES = {"failed": FAIL, "too_slow": FAIL, "warned": WARN, "undecided": ERROR, "skipped": SKIP}
# What a code may say of a status. A failure and a warning may differ by degree; nothing else means the same.
KINDS = ({FAIL, WARN}, {ERROR}, {SKIP})
PART = r"(?:[a-z0-9]+|<[a-z]+>)"
SHAPE = re.compile(rf"({PART}(?:-{PART})*)\.{PART}(?:-{PART})*")
# First parts that name no check: what several checks say, and what the runner says.
TOPICS = {
    *("budget", "bytecode", "cases", "collective", "container", "data", "dcgm", "driver", "environment", "envcheck"),
    *("fp8", "gpu", "gpu-p2p", "installed", "kernel-log", "libraries", "load", "lost-gpus", "memory", "p2p", "pci"),
    *("pcie", "process", "rank", "recovery", "require", "same-environment", "signal", "speed", "torch", "training"),
    *("value", "worker", "<signal>", "group", "node-links"),
}
# Other words with a dot begin like these: modules of torch, files of a cgroup, signals.
ONLY_BY_KEYWORD = {"driver", "memory", "torch", "worker"}
# Parts of codes that are filled in, by how the source writes them.
HOLES: Final[dict[str, tuple[str, ...]]] = {
    "signal": ("self.name.replace", "signal_code"),
    "variable": ("name.lower",),
    "counter": ("counter.replace",),
    "number": ("event['code']", "code"),
    "kind": ("kind",),
}
FILES = (".json", ".pt", ".log")


def pattern(node: ast.AST) -> str:
    """Return the text of a string, with `<what>` for each part that is filled in; "" of anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern(part) for part in node.values)
    if not isinstance(node, ast.FormattedValue):
        return ""
    text = ast.unparse(node.value)
    named = (name for name, start in HOLES.items() if text.startswith(start))
    return f"<{next(named, 'what')}>"


class CodeArguments(NamedTuple):
    """One place in the source that gives a code, and the call that takes it."""

    module: str
    code: str
    call: ast.Call | None


def given(path: Path) -> Iterator[CodeArguments]:
    """Yield each code that a module gives."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        parents = [*parents_of(node, above)]
        code, call = pattern(node), next((parent for parent in parents if isinstance(parent, ast.Call)), None)
        if code and not isinstance(parents[0], ast.JoinedStr) and (is_keyword(parents) or looks_like_one(code)):
            yield CodeArguments(path.relative_to(ROOT).as_posix(), code, call)


def parents_of(node: ast.AST, above: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in above:
        node = above[node]
        yield node


def is_keyword(parents: list[ast.AST]) -> bool:
    """Return whether a string is what `code=` takes, alone or as one of two; a pass has no code."""
    for parent, call in itertools.pairwise(parents[:4]):
        if isinstance(parent, ast.keyword) and parent.arg == "code" and isinstance(call, ast.Call):
            return not (isinstance(call.func, ast.Name) and call.func.id == "passed")
        if not isinstance(parent, ast.IfExp):
            return False
    return False


def looks_like_one(code: str) -> bool:
    match = SHAPE.fullmatch(code)
    return match is not None and match[1] in PREFIXES and code not in SIGNALS and not code.endswith(FILES)


def documented(code: str) -> bool:
    return any(re.fullmatch(re.sub(r"<[a-z]+>", "[a-z0-9-]+", re.escape(row)), code) for row in ROWS)


ROWS: Final[dict[str, set[str]]] = {
    code: {word.strip(" `") for word in statuses.split(",")}
    for code, statuses, _ in re.findall(r"(?m)^\| `(\S+)` \| ([^|]+) \| (\S.*) \|$", PAGE.read_text(encoding="utf-8"))
}
SIGNALS = {*collect.NODE, *collect.GPU}
PREFIXES = {found.id for found in discover()} | TOPICS - ONLY_BY_KEYWORD
ROOMS = ("checks", "runner", "fleet/group")
MODULES = [path for room in ROOMS for path in sorted((ROOT / "envcheck" / room).rglob("*.py"))]
MODULES.append(ROOT / "envcheck/reports/model.py")
GIVEN = [use for path in MODULES for use in given(path)]


def test_the_page_of_codes_holds_those_of_the_source_and_no_other() -> None:
    codes = {use.code for use in GIVEN}
    assert len(codes) > 350
    lacking, unused = sorted(codes - ROWS.keys()), sorted(ROWS.keys() - codes)
    assert not lacking, f"docs/codes.md lacks {', '.join(lacking)}"
    assert not unused, f"docs/codes.md has codes that no check gives: {', '.join(unused)}"
    misplaced = [after for before, after in itertools.pairwise(ROWS) if after < before]
    assert not misplaced, f"docs/codes.md is not sorted by byte: move {', '.join(misplaced)}"


@each("code", sorted({use.code for use in GIVEN}))
def test_a_code_is_a_topic_and_a_reason(code: str) -> None:
    match = SHAPE.fullmatch(code)
    assert match, code
    assert match[1] in {found.id for found in discover()} | TOPICS | {"nvlink-errors"}, (
        "name a check, or a topic of this test"
    )


def test_a_code_means_the_same_wherever_it_is_given() -> None:
    """A failure and a warning may differ by degree. An error or a skip says something else, and has its own code."""
    assert {code: kinds for code, kinds in ROWS.items() if not any(kinds <= kind for kind in KINDS)} == {}
    odd = []
    for use in GIVEN:
        called = use.call.func.id if use.call and isinstance(use.call.func, ast.Name) else ""
        if called in STATUSES and STATUSES[called] not in ROWS[use.code]:
            odd.append((use.module, use.code, called))
    assert odd == []


def test_each_constructor_is_given_a_code() -> None:
    """By keyword, or with the `**about` that several findings share."""
    calls = [
        (path.name, node.lineno, node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in STATUSES
    ]
    assert len(calls) > 350
    bare = [(name, line) for name, line, call in calls if not {"code", None} & {k.arg for k in call.keywords}]
    assert bare == []


def undocumented(outcomes: Iterable[OutcomeRow]) -> list[tuple[str, str, str]]:
    """Return each outcome and finding that is no pass, and has no code of the page."""
    return [
        (outcome.id, part.status, part.code)
        for outcome in outcomes
        for part in (as_finding(outcome), *outcome.findings)
        if part.status != PASS and not documented(part.code)
    ]


@each("path", REPORTS)
def test_every_outcome_of_a_report_that_is_no_pass_has_a_code_of_the_page(path: Path) -> None:
    assert undocumented(rejudge(load(path)).report.outcomes) == []


@each("path", REPORTS)
def test_skips_that_say_the_same_have_the_same_code(path: Path) -> None:
    """Else a report would show them as several lines."""
    skips = {(row.summary, row.code) for row in rejudge(load(path)).report.outcomes if row.status == SKIP}
    assert len({summary for summary, _ in skips}) == len(skips)


def test_a_check_of_a_site_may_leave_its_codes_out() -> None:
    """Findings without a code are told apart by their text, also when the check is measured again."""
    judge: Any = lambda _: worst([failed("a", fix="f"), failed("b", fix="f"), warned("c", fix="f")], passed(""))  # noqa: E731
    check = CheckModule("mine", "node", Check(promise="p", level="quick"), judge, "doc", "file:mine", Path("mine.py"))
    outcome = decide(check, View(Snapshot()))
    assert [finding.code for finding in outcome.findings] == ["mine.fail", "mine.fail", "mine.warn"]
    assert outcome.code == "mine.fail"
    row = OutcomeRow(id="mine", kind="node", **fields(outcome))
    other = OutcomeRow(id="mine", kind="node", status="fail", summary="d", code="mine.fail")
    assert [finding.summary for finding in outcomes.merged_findings(row, other)] == ["a", "b", "d", "c"]


def test_findings_with_the_same_code_and_culprit_stay_apart_within_a_measurement() -> None:
    """Two wrong dtypes on one GPU are two findings; the same two, with other numbers, are found again."""
    rows = [
        OutcomeRow(id="gemm", kind="env", **fields(worst([wrong("bf16", off), wrong("fp8", off)], passed(""))))
        for off in (1, 2)
    ]
    assert [finding.summary for finding in outcomes.merged_findings(*rows)] == ["bf16 is off by 1", "fp8 is off by 1"]


def wrong(dtype: str, off: int) -> Outcome:
    return failed(f"{dtype} is off by {off}", fix="take it out", code="data.wrong", culprit="rank 0")


def test_a_remedy_sends_only_to_checks_that_there_are() -> None:
    """A remedy that names a check which is gone sends its reader nowhere."""
    advice = re.compile(r"run the ([a-z0-9, -]+?) checks?\b")
    ids = {found.id for found in discover()}
    named = {
        name
        for path in MODULES
        for text in advice.findall(" ".join(path.read_text(encoding="utf-8").replace('"', "").split()))
        for name in re.split(r", | and ", text)
    }
    assert len(named) > 4
    assert named <= ids
