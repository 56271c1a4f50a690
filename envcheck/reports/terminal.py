"""A report, a plan and a run's progress as people read them, at 80 columns. The one reports module that knows rich."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs
from rich.console import Console, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from envcheck.counting import counted
from envcheck.reports import phrases
from envcheck.reports.model import RunReport, report_of, write
from envcheck.runner.execute import Run
from envcheck.runner.planning import expected_to_fit
from envcheck.runner.requirements import Demand
from envcheck.runner.schema import OutcomeRow, Plan, TargetFacts

WIDTH: Final = 80
_STYLES: Final = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim", "error": "bold magenta"}
_NAMES: Final = 6
_NARROWEST: Final = 40
_BUSY: Final = 1.5  # processes a core that want to run


def width() -> int:
    """Return how many columns to write: 80, or what a narrower terminal has."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def show(report: RunReport, console: Console, written: Iterable[str] = ()) -> None:
    """Print what ran on what, a line a check, each failure with value, limit, source and remedy, and the verdict."""
    report = _in_line(report)
    console.print(_heading(report))
    console.print()
    console.print(_lines(report.outcomes))
    for same in phrases.by_status(report.outcomes, ("warn", "error", "fail")):
        console.print()
        console.print(_finding(same))
    console.print()
    if report.plan.repeated:
        console.print(_rounds(report.outcomes))
        console.print()
    if took := phrases.taken(report):
        console.print(Text(f"took {took}", style="dim"))
    if blamed := phrases.one_blamed_gpu(report):
        console.print(Text(_in_line(blamed)))
    for line in written:
        console.print(Text(line, overflow="fold"), soft_wrap=True)
    console.print(Text(phrases.conclusion(report), style=_STYLES[report.verdict.status]))


def _in_line(value: Any) -> Any:
    """Return a part of a report whose texts make no line of their own, as "PASS" in a summary; logs have lines."""
    if isinstance(value, str):
        return value if value.isprintable() else " ".join(value.split())
    if isinstance(value, list):
        return [_in_line(each) for each in value]
    if isinstance(value, dict):
        return {_in_line(name): _in_line(each) for name, each in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    names = (name for name in value.__struct_fields__ if name not in ("log", "ranks"))
    return structs.replace(value, **{name: _in_line(getattr(value, name)) for name in names})


def show_plan(plan: Plan, target: TargetFacts, console: Console, demands: Iterable[Demand] = ()) -> None:
    """Print what a run would do, and for how long; then what a site demands of what it measures."""
    show_announcement(plan, target, console)
    table = _grid((14, None, None, None))
    fitting = expected_to_fit(plan)
    for check in plan.checks:
        table.add_row(check.id, check.level, phrases.cost(plan, check, fitting), check.promise)
    ids = {check.id for check in plan.checks}
    for demand in demands:
        table.add_row(demand.id, "", "" if demand.of in ids else "not run", phrases.demanded(demand))
    console.print(table)


def show_announcement(plan: Plan, target: TargetFacts, console: Console) -> None:
    """Print what a run begins with."""
    console.print(Text(announcement(plan, target), overflow="fold"))


def announcement(plan: Plan, target: TargetFacts) -> str:
    """Say what a run would do, in what, and for how long."""
    checks = f"{counted(len(plan.checks), 'check')} of level {plan.level}"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    busy = f"; load {load:.0f} on {counted(cores, 'core')}: times stretch" if load > _BUSY * cores else ""
    return f"{checks} in {target.name} ({target.chosen}), {phrases.extent(plan)}{busy}"


class Progress:
    """What runs now, on a terminal's stderr; nothing where that is no terminal. rich draws it anew 4 times a second."""

    def __init__(self, plan: Plan) -> None:
        console = Console(stderr=True, highlight=False)
        shown = console.is_terminal
        self._status: Status | None = console.status(self, spinner="line", refresh_per_second=4) if shown else None
        self._plan, self._check, self._since = plan, "", time.monotonic()
        self._run: Run | None = None

    def __enter__(self) -> "Progress":  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def running(self, check: str, run: Run) -> None:
        """Show which check runs, and the time going by; "" is the start of Python and torch."""
        self._check, self._run, self._since = check, run, time.monotonic()
        if self._status is not None:
            self._status.start()

    def __rich__(self) -> Text:
        if self._run is None:
            return Text("")
        spent = (time.monotonic() - self._since, self._run.elapsed)
        line = phrases.progress(self._plan, self._run.done, self._check, spent, self._run.number)
        return Text(line, no_wrap=True, overflow="ellipsis")


def _heading(report: RunReport) -> RenderableType:
    table = _grid((8, None))
    host, target, facts = report.host, report.target, report.environment
    table.add_row("envcheck", f"{report.tool}, {report.started}, {host.name} ({host.system} {host.kernel} {host.arch})")
    table.add_row("target", f"{target.name} ({target.chosen})")
    if image := phrases.image(report):
        table.add_row("image", image)
    table.add_row("", phrases.environment(facts))
    table.add_row("ran on", _in_line(phrases.hardware(report)))
    if made_up := phrases.made_up(report):
        table.add_row("evidence", made_up)
    if report.resolution:
        table.add_row("resolved", report.resolution)
    return table


def _lines(outcomes: Iterable[OutcomeRow]) -> Table:
    """Return a line a check, skips last; checks that came to the very same share one."""
    table = _grid((5, None, None))
    for same in sorted(phrases.alike(outcomes), key=lambda group: group[0].status == "skip"):
        first, summary = same[0], _summary(same[0])
        names = Text("\n".join(o.id for o in same))
        if len(same) > _NAMES:
            names = Text(f"{len(same)} checks")
            summary.append(f": {', '.join(o.id for o in same)}", _STYLES[first.status])
        table.add_row(Text(first.status, style=_STYLES[first.status]), names, summary)
    return table


def _summary(outcome: OutcomeRow) -> Text:
    """Say the limit beside what was found; a summary without one holds all there is."""
    # That nothing wrong was found, of nothing allowed, the summary says already.
    exact = outcome.limit is not None and outcome.value == outcome.limit.value
    numbers = isinstance(outcome.value, (int, float)) and outcome.limit is not None and not exact
    same = outcome.limit is not None and outcome.unit == outcome.limit.unit and outcome.unit not in phrases.BYTES
    unit = "" if same else outcome.unit
    limit = f" ({phrases.quantity(outcome.value, unit)}; limit {phrases.bound(outcome)})" if numbers else ""
    soft = "dim" if outcome.status == "skip" else ""
    return Text.assemble((outcome.summary, soft), (limit, "dim"), (phrases.no_pass(outcome), _STYLES["warn"]))


def _rounds(outcomes: Sequence[OutcomeRow]) -> Table:
    """Return a line a check: how often it came to what, and the smallest, middle and largest of its values."""
    never = [outcome for outcome in outcomes if outcome.spread and [*outcome.spread.statuses] == ["skip"]]
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column()
    table.add_row(*(Text(title, style="dim") for title in ("check", "rounds", "smallest / median / largest")))
    for outcome in (o for o in outcomes if o not in never):
        often, sizes = phrases.spread(outcome)
        if often:
            table.add_row(Text(outcome.id), Text(often, style=_STYLES[outcome.status]), Text(sizes))
    if never:
        names = never[0].id if len(never) == 1 else f"{len(never)} checks"
        table.add_row(Text(names, style="dim"), Text(phrases.spread(never[0])[0], style="dim"), Text(""))
    return table


def _finding(same: list[OutcomeRow]) -> Table:
    table = _grid((8, None))
    table.add_row(Text(same[0].status, style=_STYLES[same[0].status]), Text(", ".join(o.id for o in same), "bold"))
    for title, text in phrases.particulars(same[0]):
        table.add_row(Text(title, style="dim"), Text(text))
    return table


def _grid(widths: tuple[int | None, ...]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=False)
    for index, width in enumerate(widths):
        table.add_column(min_width=width, overflow="fold", no_wrap=index < len(widths) - 1)
    return table


class LiveReport:
    """A run's watcher: shows its progress, and writes the report after each check to `path` (None: nowhere).

    `told_as` is what becomes of the report before it is written: nothing, or a redaction. A disk that is full ends no
    run: it is tried again with the next check, and `failed` is why the last try came to nothing.
    """

    def __init__(
        self,
        run: Run,
        path: Path | None,
        progress: Progress,
        told_as: Callable[[RunReport], RunReport] = lambda report: report,
    ) -> None:
        self._run, self._path, self._progress, self._told_as = run, path, progress, told_as
        self.failed: OSError | None = None
        self._written: tuple[bool, int, int, str] | None = None
        # A pipe or a device takes one report, the last.
        self._once = path is not None and path.exists() and not path.is_file()

    def running(self, check: str) -> None:
        """Show which check runs."""
        self._progress.running(check, self._run)

    def learned(self, run: Run) -> None:
        """Write the report when it says more than the last one."""
        attempts = sum(len(o.attempts) for rows in (run.known, run.current) for o in rows.values())
        state = (bool(run.environment), run.number, attempts, run.ended)
        if self._path is None or state == self._written or (self._once and not run.ended):
            return
        try:
            write(self._told_as(report_of(run)), self._path)
        except OSError as error:
            self.failed = error
            return
        self.failed, self._written = None, state
