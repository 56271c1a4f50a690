"""`envcheck fleet gate`: whether this node may take work now."""

import contextlib
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, Literal

import click
from msgspec import structs

from envcheck import safe_files
from envcheck.cli import Settings, line_and_code
from envcheck.cli.options import Duration, EnvironmentOptions, Option, command_with
from envcheck.cli.shared.process import say
from envcheck.data import state_path
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.fleet import gate, slurm_node
from envcheck.fleet.gate import Boot, GatedEnvironment, GateQuestion, NodeVerdict
from envcheck.fleet.hostlist import is_name
from envcheck.runner.container import ContainerTarget
from envcheck.runner.local_python import ChosenPython, Target, choose_python

_ALL_CHECKS: Final = "all checks"
_NO_NAME: Final = "this is no name of one node"


class GateOptions(EnvironmentOptions):
    level: Annotated[Literal["static", "quick", "standard", "full"], Option("How much to check.")] = "quick"
    max_age: Annotated[float, Option("Oldest verdict to accept.", type=Duration())] = 900.0
    budget: Annotated[float, Option("Time limit for the checks.", type=Duration())] = 60.0
    drain: Annotated[bool, Option("After a failed check, drain the node in Slurm, or taint it in Kubernetes.")] = False
    on_error: Annotated[Literal["refuse", "admit"], Option("What to do if the node cannot be judged.")] = "refuse"
    idle_only: Annotated[bool, Option("Do nothing while others hold a GPU of this node.")] = False
    kept_only: Annotated[bool, Option("Start no check: without a fresh verdict the node cannot be judged.")] = False
    max_drained: Annotated[
        float, Option("Percent of a partition that may be drained at once.", type=click.FloatRange(0, 100))
    ] = 10.0
    recheck: Annotated[bool, Option("After a repair: run what failed, and resume the node if it passes.")] = False


@command_with(GateOptions, name="gate")
def command(options: GateOptions, settings: Settings) -> int:
    """Say whether this node may take work: for a prolog, a health program or an init container."""
    if options.recheck:
        return _rechecked(gate.this_boot())
    try:
        node = gate.this_boot()
        if options.idle_only and (held := gate.gpu_users()):
            say(f"nothing is done: {held}")
            return 0
        with _ended_after(options.budget):
            verdict, source = _verdict(options, node)
    except Exception as error:  # noqa: BLE001 (none of them says that a check failed, and --on-error decides on all)
        line, code = line_and_code(error)
        return _admitted_or(options, line, code if code != 1 else UnavailableError.exit_code)
    if verdict.status == "error":
        line = f"{verdict.decided_by}; see with `envcheck run` what to do"
        if verdict.settling and gate.in_pod():  # its container is tried again; a prolog that refuses drains the node
            refuse(verdict.decided_by, "ask again after 10 minutes of uptime: links may still train", UnavailableError)
        return _admitted_or(options, line, UnavailableError.exit_code)
    return _acted(options, settings, verdict, source)


def _acted(options: GateOptions, settings: Settings, verdict: NodeVerdict, source: str) -> int:
    """Drain, taint or mark the node, as --drain asks for, and return the exit code."""
    node, failed = verdict.at, verdict.status == "fail"
    if options.drain and failed and not verdict.of_node:
        if verdict.node_unsure:
            line = f"a check of the node gave no answer; this environment fails: {verdict.decided_by}"
            return _admitted_or(options, f"{line}; see with `envcheck run` what to do", UnavailableError.exit_code)
        say(f"warning: {node.node} may take work; this environment fails: {verdict.decided_by}")
        return 0
    if options.drain and gate.in_pod():
        refused = _mark(verdict) if is_name(node.node) else _NO_NAME
        if refused:
            say(f"warning: {node.node} is not {'drained' if failed else 'marked as fit'}: {refused}")
    elif options.drain and failed:
        return _drained(options, verdict)
    if failed:
        # The last line is what Kubernetes shows as the reason of a container that failed.
        click.echo(verdict.reason)
    elif not settings.quiet:
        left = f"; {verdict.left_out} checks left out by the budget" if verdict.left_out else ""
        click.echo(f"{node.node} may take work: {verdict.level} passed, {source}{left}")
    return int(failed)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    # Raised in the main thread, it also ends what hangs.
    def expired(_number: int, _frame: FrameType | None) -> None:
        refuse(
            f"the run did not end within its budget of {seconds:g} s",
            "raise --budget, or see with `envcheck run` what hangs",
            UnavailableError,
        )

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _mark(verdict: NodeVerdict) -> str:
    from envcheck.fleet import kubernetes_node  # needs urllib3, which images lack

    return kubernetes_node.mark(verdict, os.environ)


def _drained(options: GateOptions, verdict: NodeVerdict) -> int:
    """Drain this node in Slurm, and return the exit code: Slurm itself drains it for every one but 0."""
    name = verdict.at.node
    if not is_name(name):
        say(f"warning: {name} is not drained: {_NO_NAME}")
        return 1
    try:
        refused = slurm_node.drain(name, verdict.reason, options.max_drained)
    except FileNotFoundError as error:
        say(f"warning: {name} is not drained: {error.strerror}")
        click.echo(verdict.reason)
        return 1
    except OSError as error:
        return _admitted_or(options, f"{name} is not drained: {error.strerror}; {verdict.reason}", 3)
    if refused:
        say(f"warning: {name} is not drained: {refused}; {verdict.reason}")
        return 0
    click.echo(verdict.reason)
    return 1


def _rechecked(node: Boot) -> int:
    """Run what failed on this node again, keep the verdicts where the gate reads them, and resume the node."""
    if "ENVCHECK_HOME" not in os.environ and Path(gate.STATE, "gate").is_dir():
        os.environ["ENVCHECK_HOME"] = gate.STATE
    kept = gate.to_recheck(node.node) if is_name(node.node) else []
    if not kept:
        refuse(
            f"no verdict of {node.node} is kept in {state_path('gate')}",
            "give its node's name in SLURMD_NODENAME, and the directory in ENVCHECK_HOME",
        )
    new, unanswered = _run_all_again(kept, node)
    for verdict in new:
        if verdict.status != "pass":
            say(f"{verdict.status}: {verdict.decided_by}")
    # What is the environment's fault has drained no node, and holds none.
    if any(verdict.of_node for verdict in new):
        return 1
    if unanswered or any(verdict.node_unsure or verdict.status == "error" for verdict in new):
        return UnavailableError.exit_code
    passed = {name for verdict in new for name in verdict.covered}
    if gate.in_pod():
        mode = max((verdict.mode for verdict in new), key=lambda mode: mode == "gpu")
        refused = _mark(structs.replace(new[0], status="pass", mode=mode, covered=(*passed,)))
    else:
        try:
            refused = slurm_node.resume(node.node)
        except OSError as error:
            refuse(
                f"{node.node} passed, and is not resumed: {error.strerror}",
                "resume it as root, by scontrol",
                UnavailableError,
            )
    again = ", ".join(name for verdict in kept for name in verdict.again if name in passed) or _ALL_CHECKS
    click.echo(f"{node.node} passed again ({again}){f'; not resumed: {refused}' if refused else ', and is resumed'}")
    return 0


def _run_all_again(kept: list[NodeVerdict], node: Boot) -> tuple[list[NodeVerdict], bool]:
    """Return the new verdicts, and whether a fault of the node, found in an environment that is gone, has no answer."""
    answers, gone = list[NodeVerdict](), dict[NodeVerdict, ConfigError]()
    for verdict in kept:
        try:
            answers.append(_run_again(verdict, node))
        except ConfigError as error:  # noqa: PERF203 (a node keeps few verdicts)
            gone[verdict] = error
            file = gate.path_of(node.node, verdict.subject)
            say(f"left out: {verdict.subject.name}: {error.message}; delete {file}")
    if not answers:
        raise next(iter(gone.values()))
    answered = {name for answer in answers for name in answer.covered}
    return answers, any(verdict.of_node and not answered.issuperset(verdict.again) for verdict in gone)


def _run_again(kept: NodeVerdict, node: Boot) -> NodeVerdict:
    """Run what failed; all checks if the node was booted, or its driver, GPUs or environment changed since."""
    image, _, inside = kept.subject.name.partition(" ")
    is_image = kept.subject.kind == "image"
    options = GateOptions(image=image, python=inside or None) if is_image else GateOptions(python=kept.subject.name)
    subject, target = _subject(options)
    was, now = ((at.boot, at.driver, at.gpus) for at in (kept.at, node))
    same = was == now and subject == kept.subject
    say(f"{node.node}: running {', '.join(kept.again) if same and kept.again else _ALL_CHECKS} in {subject.name}")
    question = GateQuestion(subject, kept.level, kept.require_gpu, math.inf)
    new = _run(target or options.target(), question, None, kept.again if same else ())
    new = gate.merged(new, kept) if same else new
    if new.status == "error" or (
        new.node_unsure and not new.of_node
    ):  # the failure stays until an answer takes it back
        return new
    try:
        gate.keep(new)
    except OSError as error:
        refuse(f"the verdict of {node.node} is not kept: {error.strerror}", "run it as root", UnavailableError)
    return new


def _run(target: Target, question: GateQuestion, budget: float | None, only: tuple[str, ...] = ()) -> NodeVerdict:
    report = gate.run_checks(target, question.level, budget, require_gpu=question.require_gpu, only=only)
    now = gate.this_boot()
    gate.keep_report(report, gate.path_of(now.node, question.subject))
    verdict = gate.of_report(report, question.subject, now)
    if verdict is None:
        refuse("the run was cut short", "see with `envcheck run` what ends it", UnavailableError)
    return verdict


def _verdict(options: GateOptions, node: Boot) -> tuple[NodeVerdict, str]:
    subject, target = _subject(options)
    question = GateQuestion(subject, options.level, options.require_gpu, options.max_age)
    kept = gate.read(gate.path_of(node.node, subject))
    why = gate.why_unusable(kept, question, node) if kept is not None else "none was kept"
    if kept is not None and not why:
        return kept, f"{node.uptime - kept.at.uptime:.0f} s ago"
    if options.kept_only:
        refuse(f"no verdict to go by: {why}", "health.sh or a sweep renews it while the node is idle", UnavailableError)
    new = _run(target or options.target(), question, options.budget)
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
    if why := safe_files.others_may_change(chosen.python):
        refuse(f"{why}, and root would run it", "gate with an environment of root's, or run the gate as that user")
    return chosen


def _admitted_or(options: GateOptions, line: str, code: int) -> int:
    admitted = options.on_error == "admit"
    kind = "wrong configuration" if code == ConfigError.exit_code else "undetermined"
    say(f"{kind}: {line}{'; admitted by --on-error admit' if admitted else ''}")
    return 0 if admitted else code
