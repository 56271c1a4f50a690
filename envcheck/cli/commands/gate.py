"""`envcheck fleet gate`: whether this node may take work now."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, Literal

import click

from envcheck.cli import Settings, line_and_code
from envcheck.cli.options import Duration, Option, command_with
from envcheck.cli.shared.process import say
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.fleet import gate
from envcheck.fleet.gate import Boot, GatedEnvironment, GateQuestion, NodeVerdict
from envcheck.fleet.hostlist import is_name
from envcheck.node.subprocesses import output
from envcheck.runner.container import ContainerTarget
from envcheck.runner.local_python import ChosenPython, LocalPython, Target, answering, choose_python, others_may_change

_DRAIN_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    python: Annotated[str | None, Option("The interpreter, or environment, to judge.", metavar="PATH")] = None
    image: Annotated[str | None, Option("A local image to judge, best by digest.", metavar="REF")] = None
    level: Annotated[Literal["static", "quick", "standard", "full"], Option("How much to check.")] = "quick"
    require_gpu: Annotated[bool, Option("Fail if there is no GPU, instead of skipping.")] = False
    max_age: Annotated[float, Option("Oldest verdict to accept.", type=Duration())] = 900.0
    budget: Annotated[float, Option("Time limit for the checks.", type=Duration())] = 60.0
    drain: Annotated[bool, Option("After a failed check, drain the node in Slurm, or taint it in Kubernetes.")] = False
    on_error: Annotated[
        Literal["refuse", "admit"],
        Option("What to do if the node cannot be judged: refuse (exit 2 or 3), or admit (exit 0)."),
    ] = "refuse"


@command_with(GateOptions, name="gate", short_help="Whether this node may take work now.")
def command(options: GateOptions, settings: Settings) -> int:
    """Say whether this node may take work: for a prolog, a health program or an init container.

    \b
    envcheck fleet gate --image REF@sha256:... --require-gpu --drain
    envcheck fleet gate --max-age 15m --budget 60s

    The last verdict of `envcheck run` or of this command counts if it is fresh and is of this environment, node,
    boot, driver and number of GPUs, and of this level or a higher one. Otherwise the checks run, within --budget.
    Verdicts are kept below the user's $ENVCHECK_HOME.

    Exit 0: the node may take work; 1: a check failed; 2: wrong usage; 3: undetermined.
    Only 1 drains, with the reason "envcheck: CHECK: WHAT". In a pod of Kubernetes, 1 sets the taint envcheck/unfit
    and 0 removes it (`envcheck fleet render kubernetes --drain`).
    """
    try:
        node = gate.this_boot()
        with ended_after(options.budget):
            verdict, source = _verdict(options, node)
    except Exception as error:  # noqa: BLE001 (none of them says that a check failed, and --on-error decides on all)
        line, code = line_and_code(error)
        return _admitted_or(options, line, code if code != 1 else UnavailableError.exit_code)
    if verdict.status == "error":
        line = f"{verdict.decided_by}; see with `envcheck run` what to do"
        return _admitted_or(options, line, UnavailableError.exit_code)
    failed = verdict.status == "fail"
    if options.drain and (failed or gate.in_pod()):
        act = _mark if gate.in_pod() else _drain
        refused = act(node.node, verdict) if is_name(node.node) else "this is no name of one node"
        if refused:
            say(f"warning: {node.node} is not {'drained' if failed else 'marked as fit'}: {refused}")
    if failed:
        # The last line is what Kubernetes shows as the reason of a container that failed.
        click.echo(verdict.reason)
    elif not settings.quiet:
        left = f"; {verdict.left_out} checks left out by the budget" if verdict.left_out else ""
        click.echo(f"{node.node} may take work: {verdict.level} passed, {source}{left}")
    return int(failed)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise UnavailableError in the main thread once the block has taken so long: it also ends what hangs."""

    def expired(_number: int, _frame: FrameType | None) -> None:
        message = f"the run did not end within its budget of {seconds:g} s"
        raise UnavailableError(message, fix="raise --budget, or see with `envcheck run` what hangs")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _mark(node: str, verdict: NodeVerdict) -> str:
    from envcheck.fleet import kubernetes_node  # needs urllib3, which images lack

    why = (verdict.check, verdict.reason) if verdict.status == "fail" else ("", "")
    return kubernetes_node.mark(node, *why, os.environ)


def _drain(node: str, verdict: NodeVerdict) -> str:
    """Drain a node in Slurm and return "", or why that did not happen; without it the reason is "Prolog error"."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return "scontrol is not on PATH"
    arguments = ("update", f"nodename={node}", "state=drain", f"reason={verdict.reason}")
    try:
        output(Path(scontrol), *arguments, timeout=_DRAIN_SECONDS)
    except OSError as error:
        return f"scontrol: {error.strerror or error}"
    return ""


def _verdict(options: GateOptions, node: Boot) -> tuple[NodeVerdict, str]:
    subject, target = _subject(options)
    question = GateQuestion(subject, options.level, options.require_gpu, options.max_age)
    path = gate.path_of(node.node, subject)
    kept = gate.read(path)
    if kept is not None and not gate.why_unusable(kept, question, node):
        return kept, f"{node.uptime - kept.at.uptime:.0f} s ago"
    if target is None:
        image, python = options.image, options.python
        target = ContainerTarget(image, python=python) if image else LocalPython(answering(_python(options)))
    report = gate.run_checks(target, options.level, options.budget, require_gpu=options.require_gpu)
    new = gate.of_report(report, subject, gate.this_boot(), gate.keep_report(report, path))
    if new is None:
        message = "the run was cut short"
        raise UnavailableError(message, fix="see with `envcheck run` what ends it")
    try:
        gate.keep(new)
    except OSError as error:
        say(f"warning: the verdict is not kept: {error.strerror}; give $ENVCHECK_HOME a directory of yours")
    return new, "now"


def _subject(options: GateOptions) -> tuple[GatedEnvironment, Target | None]:
    """Return which environment is meant; with its target where the engine was needed to tell."""
    if options.image is None:
        python = _python(options).python
        return GatedEnvironment(kind="python", name=str(python), state=gate.fingerprint(python)), None
    if gate.by_digest(options.image):
        return gate.image_subject(options.image, None, options.python), None
    target = ContainerTarget(options.image, python=options.python)
    return gate.image_subject(options.image, target.facts.image_id, options.python), target


def _python(options: GateOptions) -> ChosenPython:
    chosen = choose_python(Path(options.python) if options.python else None)
    if why := others_may_change(chosen.python):
        refuse(f"{why}, and root would run it", "gate with an environment of root's, or run the gate as that user")
    return chosen


def _admitted_or(options: GateOptions, line: str, code: int) -> int:
    admitted = options.on_error == "admit"
    kind = "wrong configuration" if code == ConfigError.exit_code else "undetermined"
    say(f"{kind}: {line}{'; admitted by --on-error admit' if admitted else ''}")
    return 0 if admitted else code
