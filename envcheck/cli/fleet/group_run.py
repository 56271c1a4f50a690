"""One node's run in a group of several: it meets the others, measures with them, and leaves its report."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.interrupts import status_of

if TYPE_CHECKING:
    from envcheck.fleet.group.meeting import GroupMember
    from envcheck.fleet.group.membership import Membership
    from envcheck.fleet.group.roll_call import Hello
    from envcheck.reports.model import RunReport
    from envcheck.runner.schema import OutcomeRow
    from envcheck.runner.state import Run


class GroupFiles(NamedTuple):
    """Where this node's report goes, and on the first node the group's; None for what cannot be written."""

    report: Path | None
    group: Path | None


class GroupRun(NamedTuple):
    """A node's part of a group: `processes` ranks where it has no GPU, and `wait` seconds for the others to come."""

    run: Run
    place: Membership
    name: str
    files: GroupFiles
    processes: int
    wait: float
    as_json: bool
    quiet: bool

    def carried_out(self) -> int:
        """Meet the other nodes, measure, write the reports, print what came of it, and return the exit code."""
        interrupted: KeyboardInterrupt | None = None
        self.run.begin()
        try:
            with self._met() as why:
                if why:
                    _not_formed(self.run, why)
                else:
                    self._measured()
        except KeyboardInterrupt as how:
            interrupted = how
        failed = self._written()
        self._print()
        if interrupted is not None:
            return status_of(interrupted)
        from envcheck.reports.model import report_of

        code = report_of(self.run).verdict.exit_code
        return code or 3 if failed else code

    @contextlib.contextmanager
    def _met(self) -> Iterator[str]:
        """Yield once all nodes are there, with why they are not where they do not come; the group ends with the block.

        Raises ConfigError where this node cannot be of the group.
        """
        from envcheck.fleet.group.meeting import Coordinator, GroupMember, NotFormedError
        from envcheck.fleet.group.session import GroupSession

        place, hello = self.place, self._hello()
        leader = Coordinator(hello, place.names, place.port, self.wait) if place.node == 0 else None
        member: GroupMember | None = None
        patience = 0.0
        try:
            try:
                member = GroupMember.join(hello, place.address, place.port, self.wait)
            except NotFormedError as error:
                yield str(error)
                return
            checks = [check.id for check in self.run.plan.checks]
            self.run.nodes = GroupSession(member, place.node, place.run, checks, self.processes)
            self.run.known |= _formed(member)
            yield ""
            patience = 5.0
        except KeyboardInterrupt:
            if member is not None:
                member.leave("it was interrupted")
            raise
        finally:
            if member is not None:
                member.leave()
            if leader is not None:
                leader.close(patience)

    def _hello(self) -> Hello:
        import platform
        import time

        from envcheck import __version__
        from envcheck.fleet.group.roll_call import Hello

        return Hello(
            run=self.place.run,
            node=self.place.node,
            nodes=self.place.nodes,
            name=self.name,
            host=platform.node(),
            tool=__version__,
            plan=", ".join(check.id for check in self.run.plan.checks),
            time=time.time(),
        )

    def _measured(self) -> None:
        from envcheck.node.collect import collect
        from envcheck.reports import terminal
        from envcheck.reports.terminal import LiveReport
        from envcheck.runner.execute import validate

        with terminal.Progress(self.run.plan) as progress:
            validate(self.run, collect, LiveReport(self.run, self.files.report, progress, self._own))

    def _own(self, report: RunReport) -> RunReport:
        from envcheck.fleet.group.outcome import of_node

        return of_node(report, self.place.node)

    def _written(self) -> bool:
        """Write the reports; return whether one could not be written, and say why."""
        from envcheck.fleet.group.outcome import of_group
        from envcheck.reports.model import report_of, write

        report, failed = report_of(self.run), False
        group = self.files.group if self.run.nodes else None
        for path, content in ((self.files.report, self._own(report)), (group, of_group(report))):
            if path is None:
                continue
            try:
                write(content, path)
            except OSError as error:
                failed = True
                click.echo(f"envcheck: {path}: {error.strerror}; free space, or give --output another place", err=True)
        return failed

    def _print(self) -> None:
        from envcheck.cli.shared.streams import console as new_console
        from envcheck.fleet.group import outcome
        from envcheck.fleet.group.outcome import FORMED, of_group
        from envcheck.reports import terminal
        from envcheck.reports.model import encode, report_of

        report = of_group(report_of(self.run))
        if self.place.node:
            why = f": {self.run.known[FORMED].summary}" if self.run.nodes is None and FORMED in self.run.known else ""
            click.echo(f"{self.name}: {self._own(report).verdict.sentence}{why}", err=self.as_json)
        elif self.as_json:
            click.echo(encode(report), nl=False)
        elif self.quiet:
            click.echo(report.verdict.sentence)
        else:
            files = self.files if self.run.nodes else self.files[:1]
            written = [f"report: {path}" for path in files if path is not None]
            console = new_console(width=terminal.width(), highlight=False)
            terminal.show(report, console, [*outcome.lines(report), *written])
        sys.stdout.flush()


def _formed(member: GroupMember) -> dict[str, OutcomeRow]:
    """Return the outcome that says which nodes came."""
    from envcheck.fleet.group.outcome import FORMED
    from envcheck.fleet.group.roll_call import clock_warning
    from envcheck.fleet.hostlist import fold
    from envcheck.runner.schema import OutcomeRow

    begun = member.begun
    clocks = dict(zip(begun.names, begun.clocks, strict=True))
    warning = clock_warning(clocks)
    came = f"{len(begun.names)} nodes came within {begun.seconds:.1f} s: {fold(begun.names)}"
    return {
        FORMED: OutcomeRow(
            id=FORMED,
            kind="env",
            status="warn" if warning else "pass",
            summary=f"{came}; {warning}" if warning else came,
            remedy="synchronise the clocks (chrony, ntpd)" if warning else "",
            code="group.clock" if warning else "",
            details={"hosts": dict(zip(begun.names, begun.hosts, strict=True)), "clock_seconds": clocks},
        )
    }


def _not_formed(run: Run, why: str) -> None:
    """Take the run to its end: a group that did not form is undetermined."""
    from envcheck.fleet.group.outcome import FORMED
    from envcheck.runner.schema import OutcomeRow
    from envcheck.runner.state import now

    summary, _, remedy = why.rpartition("; ")
    run.known[FORMED] = OutcomeRow(
        id=FORMED, kind="env", status="error", summary=summary, remedy=remedy, code="group.not-formed"
    )
    run.ended = now()
