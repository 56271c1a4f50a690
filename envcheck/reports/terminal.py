"""A report, a plan and a run's progress as people read them, at 80 columns. The one reports module that knows rich."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from envcheck.counting import counted
from envcheck.reports import phrases
from envcheck.reports.model import RunReport, report_of, write
from envcheck.runner.execute import Run, Watcher
from envcheck.runner.planning import expected_to_fit
from envcheck.runner.requirements import Demand
from envcheck.runner.schema import OutcomeRow, Plan, TargetFacts

WIDTH: Final = 80
_STYLES: Final = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim", "error": "bold magenta"}
_INDENT: Final = 10
_CUT: Final = " …"
# Lines of a problem, reasons of skips, lines of speeds, remedies of one problem and names of checks that a run which
# was cut short has left, without --verbose.
_PROBLEM, _REASONS, _SPEEDS, _REMEDIES, _LEFT = 8, 5, 3, 3, 3
_ALL: Final = "`envcheck --verbose report show FILE`"
# A command in backticks with what touches it, or a word.
_WHOLE: Final = re.compile(r"[^\s`]*`[^`]+`\S*|\S+")
# A GPU's number is enough beside a problem; its UUID stands in the report.
_UUID: Final = re.compile(r" \((?:GPU|MIG)-[^()]*\)")
_NARROWEST: Final = 40
_BUSY: Final = 1.5  # processes a core that want to run


def width() -> int:
    """Return how many columns to write: 80, or what a narrower terminal has."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def show(report: RunReport, console: Console, written: Iterable[str] = (), *, verbose: bool = False) -> None:
    """Print what ran on what, checks by what they came to, each problem with its reason and remedy, and the verdict.

    A sound report takes at most 25 lines and a problem 8 more; `verbose` prints a line a check, codes and sources.
    """
    report, out = msgspec.convert(_in_line(msgspec.to_builtins(report)), RunReport), _Printer(console)
    _heading(report, out)
    out.line()
    if verbose:
        _every(report.outcomes, out)
    else:
        _counts(report, out)
    for same in phrases.by_status(report.outcomes, ("warn", "error", "fail")):
        out.line()
        _finding(same, out, verbose=verbose)
    out.line()
    if report.plan.repeated:
        _rounds(report, out, verbose=verbose)
        out.line()
    if blamed := phrases.one_blamed_gpu(report):
        out.told("", blamed, indent=0)
    if verbose and (took := phrases.taken(report)):
        out.told("took", took)
    elif not verbose:
        out.told("took", f"{phrases.duration(phrases.seconds(report))}; more: {_ALL}")
    if left := phrases.unfinished(report):
        named = left if verbose or len(left) <= _LEFT else [*left[:_LEFT], f"{len(left) - _LEFT} more"]
        out.told("not run", f"{', '.join(named)}; run again with --resume", most=0 if verbose else 2)
    for line in written:
        out.line(line)
    sentence = report.verdict.sentence.replace("UNDETERMINED:", "UNDETERMINED (neither pass nor fail):", 1)
    out.told("", sentence, _STYLES[report.verdict.status], indent=0)


def _in_line(value: Any) -> Any:
    """Return a part of a report whose texts make no line of their own, as "PASS" in a summary; logs have lines."""
    if isinstance(value, str):
        return value if value.isprintable() else " ".join(value.split())
    if isinstance(value, list):
        return [_in_line(each) for each in value]
    if isinstance(value, dict):
        kept = ("log", "ranks") if "summary" in value else ()  # of an outcome, or of one attempt
        return {_in_line(name): part if name in kept else _in_line(part) for name, part in value.items()}
    return value


def show_plan(plan: Plan, target: TargetFacts, console: Console, demands: Iterable[Demand] = ()) -> None:
    """Print what a run would do, and for how long; then what a site demands of what it measures."""
    show_announcement(plan, target, console)
    fitting = expected_to_fit(plan)
    rows = [(check.id, check.level, phrases.cost(plan, check, fitting), check.promise) for check in plan.checks]
    ids = {check.id for check in plan.checks}
    rows += [(d.id, "", "" if d.of in ids else "not run", phrases.demanded(d)) for d in demands]
    _Printer(console).table(rows)


def show_announcement(plan: Plan, target: TargetFacts, console: Console) -> None:
    """Print what a run begins with."""
    _Printer(console).told("", announcement(plan, target), indent=0)


def announcement(plan: Plan, target: TargetFacts) -> str:
    """Say what a run would do, in what, and for how long."""
    checks = f"{counted(len(plan.checks), 'check')} of level {plan.level}"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    busy = f"; load {load:.0f} on {counted(cores, 'core')}: times stretch" if load > _BUSY * cores else ""
    return f"{checks} in {target.name} ({target.chosen}), {phrases.extent(plan)}{busy}"


def wrapped(text: str, columns: int) -> list[str]:
    """Return lines of so many columns; a command in backticks, a URL, a path or a digest is never folded."""
    lines: list[str] = []
    for word in _WHOLE.findall(text):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


class _Printer:
    """Prints lines that end where their text does."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, *parts: str | Text | tuple[str, str]) -> None:
        self._console.print(Text.assemble(*parts), soft_wrap=True)

    def lines(self, text: str, indent: int = _INDENT) -> list[str]:
        return wrapped(text, self._console.width - indent)

    def told(self, title: str, text: str, style: str = "", *, indent: int = _INDENT, most: int = 0) -> None:
        """Print a title and its text beside it, in at most so many lines (0: all)."""
        first = f"{title:<{indent}}" if indent else ""
        lines = self.lines(text, indent)
        if most and len(lines) > most:
            lines = self.lines(text, indent + len(_CUT))[:most]
            lines[-1] += _CUT
        self.line((first if lines[0] else first.rstrip(), _STYLES.get(title, "dim")), (lines[0], style))
        for line in lines[1:]:
            self.line(" " * indent, (line, style))

    def log(self, title: str, text: str, *, cut: bool) -> None:
        """Print a line of a log, which is never folded; `cut` to the width."""
        line = Text(text)
        if cut:
            line.truncate(self._console.width - _INDENT, overflow="ellipsis")
        self.line((f"{title:<{_INDENT}}", "dim"), line)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print columns, the last one wrapped."""
        widths = [max(map(cell_len, column)) for column in list(zip(*rows, strict=True))[:-1]]
        for *cells, last in rows:
            head = "".join(cell + " " * (width - cell_len(cell) + 2) for cell, width in zip(cells, widths, strict=True))
            self.told(head, last, indent=sum(widths) + 2 * len(widths))


def _heading(report: RunReport, out: _Printer) -> None:
    host, facts = report.host, dict(phrases.facts(report))
    out.told("envcheck", f"{report.tool}, {report.started}, {host.name} ({host.system} {host.kernel} {host.arch})")
    for title in ("target", "image", "with", "ran on", "evidence", "resolved"):
        if title in facts and (title != "with" or report.environment):
            out.told(title, facts[title])


def _every(outcomes: Iterable[OutcomeRow], out: _Printer) -> None:
    """Print a row a check that passed, then that was skipped; checks that came to the very same share one."""
    for same in phrases.by_status(outcomes, ("pass", "skip")):
        first, limit = same[0], _judged(same[0])
        summary = first.summary + (f" ({limit})" if limit else "") + phrases.no_pass(first)
        out.told(first.status, f"{', '.join(o.id for o in same)}: {summary}")


def _judged(outcome: OutcomeRow) -> str:
    """Return a number and what it was judged by; "" where there is none, or both are the same."""
    # That nothing wrong was found, of nothing allowed, the summary says already.
    if outcome.limit is None or phrases.number(outcome.value) is None or outcome.value == outcome.limit.value:
        return ""
    same = outcome.unit == outcome.limit.unit and outcome.unit not in phrases.BYTES
    return f"{phrases.quantity(outcome.value, '' if same else outcome.unit)}; limit {phrases.bound(outcome)}"


def _counts(report: RunReport, out: _Printer) -> None:
    """Print how many passed, the speeds that were judged, what passed at a second try, and skips by reason."""
    fast = {check.id for check in report.plan.checks if check.performance}
    passed = [outcome for outcome in report.outcomes if outcome.status == "pass"]
    if passed:
        out.told("pass", counted(len(passed), "check"))
    judged = [o for o in passed if o.id in fast and _judged(o)]
    if judged:
        speeds = (f"{o.id} {phrases.quantity(o.value, '')} ({phrases.bound(o)})" for o in judged)
        out.told("measured", "; ".join(speeds), most=_SPEEDS)
    for outcome in report.outcomes:
        if again := phrases.no_pass(outcome):
            out.told("", f"{outcome.id}: {outcome.summary}{again}", most=3)
    reasons: dict[str, list[OutcomeRow]] = {}
    for outcome in report.outcomes:
        if outcome.status == "skip":
            reasons.setdefault(outcome.summary.partition(": ")[0], []).append(outcome)
    ordered = sorted(reasons.items(), key=lambda reason: -len(reason[1]))
    for number, (reason, skipped) in enumerate(ordered[:_REASONS]):
        what = counted(len(skipped), "check") if len(skipped) > 1 else skipped[0].id
        why = skipped[0].summary if len({o.summary for o in skipped}) == 1 else reason
        out.told("" if number else "skip", f"{what}: {why}", "dim", most=1)
    if others := [o for _, skipped in ordered[_REASONS:] for o in skipped]:
        out.told("", f"{counted(len(others), 'check')} for other reasons", "dim")


def _finding(same: list[OutcomeRow], out: _Printer, *, verbose: bool) -> None:
    first = same[0]
    out.told(first.status, ", ".join(o.id for o in same), "bold", most=0 if verbose else 1)
    told = phrases.particulars(first) if verbose else _in_short(first)
    room = [0] * len(told) if verbose else _room(told, [len(out.lines(text)) for _, text in told])
    for (title, text), most in zip(told, room, strict=True):
        if not verbose and not most:
            continue
        if title == "log":
            for number, line in enumerate(text.splitlines()):
                out.log("" if number else "log", line, cut=not verbose)
        else:
            out.told(title, text, most=most)


def _room(told: Sequence[tuple[str, str]], lines: list[int]) -> list[int]:
    """Return how many lines each row of a problem gets: why it is one and the first thing to do are cut last."""
    titles = [title for title, _ in told]
    further = [row for row, title in enumerate(titles) if title == "to do"][1:]
    value, where = ([row for row, title in enumerate(titles) if title == name] for name in ("value", "where"))
    for rows, least in ((further, 0), (value, 0), (where, 1), ([0], 2), (range(len(told)), 1)):
        while sum(lines) > _PROBLEM - 2 and max((lines[row] for row in rows), default=0) > least:
            lines[max(rows, key=lines.__getitem__)] -= 1
    return lines


def _in_short(outcome: OutcomeRow) -> list[tuple[str, str]]:
    """Return why, value and limit, where and what to do by the findings that decided, and the last telling line."""
    told = dict(phrases.particulars(outcome))
    value = "; ".join(filter(None, (told.get("value"), f"limit {told['limit']}" if "limit" in told else "")))
    own = [finding for finding in outcome.findings if finding.status == outcome.status]
    culprits = [*dict.fromkeys(f.culprit for f in own if f.culprit)] or [outcome.culprit]
    culprits = [*dict.fromkeys(_UUID.sub("", culprit) for culprit in culprits)]
    where = "" if all(_names(outcome.summary, culprit) for culprit in culprits) else ", ".join(culprits)
    remedies = {outcome.remedy: outcome.remedy} if outcome.remedy else {}
    for finding in own:
        if finding.remedy:
            remedies.setdefault(finding.remedy, f"{finding.summary}: {finding.remedy}")
    rows = [("why", outcome.summary), ("value", value), ("where", where)]
    rows += [("to do", remedy) for remedy in [*remedies.values()][:_REMEDIES]]
    rows += [("log", phrases.last_words(told.get("log", "")))]
    return [(title, text) for title, text in rows if text]


def _names(text: str, name: str) -> bool:
    """Tell whether a text names this, and not only what begins so: "GPU 1" is not named by "GPU 12"."""
    return re.search(rf"{re.escape(name)}(?!\w)", text) is not None


def _rounds(report: RunReport, out: _Printer, *, verbose: bool) -> None:
    """Print how often each check came to what, and its values; without `verbose` of speeds and of what failed once."""
    fast = {check.id for check in report.plan.checks if check.performance}
    rows = [("check", "rounds", "smallest / median / largest")]
    for outcome in report.outcomes:
        often, sizes = phrases.spread(outcome)
        alike = outcome.spread is not None and outcome.spread.statuses.keys() <= {outcome.status} & {"pass", "skip"}
        if often and (verbose or not alike or (sizes and outcome.id in fast)):
            rows.append((outcome.id, often, sizes))
    if len(rows) > 1:
        out.table(rows)


class LiveReport(Watcher):
    """Shows on a terminal's stderr what a run does, and writes its report after each check to `path` (None: nowhere).

    `told_as` is what becomes of the report before it is written: nothing, or a redaction. A disk that is full ends no
    run: it is tried again with the next check, and `failed` is why the last try came to nothing.
    """

    def __init__(self, run: Run, path: Path | None, told_as: Callable[[RunReport], RunReport]) -> None:
        self._run, self._path, self._told_as = run, path, told_as
        console = Console(stderr=True, highlight=False)
        # rich draws it anew 4 times a second, with the time going by.
        self._status = console.status(self, spinner="line", refresh_per_second=4) if console.is_terminal else None
        self._check, self._since = "", time.monotonic()
        self.failed: OSError | None = None
        self._written: tuple[bool, int, int, str] | None = None
        # A pipe or a device takes one report, the last.
        self._once = path is not None and path.exists() and not path.is_file()

    def __enter__(self) -> "LiveReport":  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __rich__(self) -> Text:
        spent = (time.monotonic() - self._since, self._run.elapsed)
        line = phrases.progress(self._run.asked.plan, self._run.done, self._check, spent, self._run.number)
        return Text(line, no_wrap=True, overflow="ellipsis")

    def running(self, check: str) -> None:
        """Show which check runs; "" is the start of Python and torch."""
        self._check, self._since = check, time.monotonic()
        if self._status is not None:
            self._status.start()

    def learned(self, run: Run) -> None:
        """Write the report when it says more than the last one."""
        attempts = sum(len(o.attempts) for rows in (run.known, run.current) for o in rows.values())
        state = (bool(run.environment), run.number, attempts, run.ended)
        if self._path is None or state == self._written or (self._once and not run.ended):
            return
        try:
            report = self._told_as(report_of(run))
            write(report, self._path)
        except OSError as error:
            self.failed = error
            return
        self.failed, self._written = None, state
