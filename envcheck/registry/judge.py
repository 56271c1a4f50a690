"""Does a proof cover a node: its GPU, how many, its driver and architecture, as data."""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from envcheck.checks import LEVELS
from envcheck.errors import ConfigError, EnvcheckError
from envcheck.matrix.facts.lookup import find_gpu
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, branch, key
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.matrix.resolver.verdict import FORWARD, LEGAL
from envcheck.node.snapshot import Snapshot
from envcheck.registry import statement as statements
from envcheck.registry.envelope import open_envelope
from envcheck.registry.evidence import unpack
from envcheck.registry.policy import Policy, age_text
from envcheck.registry.statement import MalformedError, ProofFacts, ProofRefusal, Rejection, ReportReference, Statement
from envcheck.reports.model import rejudge
from envcheck.struct_types import LightRecord

_ARCHS: Final[dict[str, HostArch]] = {"x86_64": "x86_64", "aarch64": "aarch64"}


class NodeFacts(LightRecord, frozen=True):
    """What a node is, or is to be. `models` are the different ones; `driver` and `arch` None are not asked about.

    A driver that could not be read is "", which no proof covers.
    """

    models: tuple[str, ...] = ()
    gpus: int = 0
    driver: str | None = None
    arch: str | None = None
    mig: bool = False


def node_of(snapshot: Snapshot) -> NodeFacts:
    """Return the facts of the node that the snapshot was taken on; a GPU whose model cannot be read is called "?"."""
    names = {str(gpu.signal("name").value or "?") for gpu in snapshot.gpus}
    driver = snapshot.signal("driver.version").value
    return NodeFacts(
        models=tuple(sorted(names)),
        gpus=len(snapshot.gpus),
        driver=driver if isinstance(driver, str) else "",
        arch=str(snapshot.signal("host.arch").value or ""),
        mig=any(gpu.signal("mig_mode").value == "on" for gpu in snapshot.gpus),
    )


def as_proven(facts: ProofFacts) -> NodeFacts:
    """Return the node that a proof was made on, for who asks about no node."""
    covers = facts.covers
    models = () if covers.gpu is None else (covers.gpu,)
    return NodeFacts(models, covers.gpus, covers.driver, covers.arch, covers.mig)


def uncovered(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    """Return why a proof does not cover the node, None where it does. A proof on a CPU covers its architecture."""
    covers = facts.covers
    if node.arch is not None and node.arch != covers.arch:
        return Rejection(ProofRefusal.WRONG_ARCH, f"proven on {covers.arch}, not on {node.arch or 'an unknown one'}")
    if facts.mode != "gpu":
        return None
    return _other_gpus(facts, node, matrix) or _other_driver(facts, node, matrix)


def concerns(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> bool:
    """Tell whether a failed run says something about the node: on fewer or more of its GPUs, on its driver or older.

    A run that failed before it could say which GPU or driver it was on concerns every one.
    """
    covers = facts.covers
    if node.arch is not None and node.arch != covers.arch:
        return False
    if facts.mode == "cpu" or covers.gpu is None:
        return True
    if node.gpus and (covers.mig != node.mig or not any(_same(covers.gpu, m, matrix) for m in node.models)):
        return False
    try:
        return not (covers.driver and node.driver) or key(node.driver) >= key(covers.driver)
    except ValueError:
        return True


def _other_gpus(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    covers, wrong = facts.covers, ProofRefusal.WRONG_GPU
    if not node.gpus or not node.models:
        return Rejection(wrong, f"proven on {covers.gpu}, and this node shows no GPU")
    uncovered = [model for model in node.models if covers.gpu is None or not _same(covers.gpu, model, matrix)]
    if uncovered:
        return Rejection(wrong, f"proven on {covers.gpu}, not on {' and '.join(uncovered)}")
    if covers.mig != node.mig:
        return Rejection(wrong, f"proven with MIG {_switch(covers.mig)}, and it is {_switch(node.mig)} here")
    if node.gpus > covers.gpus:
        proven = f"{covers.gpus} GPU{'' if covers.gpus == 1 else 's'}"
        return Rejection(ProofRefusal.TOO_FEW_GPUS, f"proven on {proven}, and this node has {node.gpus}")
    return None


def _other_driver(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    proven, node_driver = facts.covers.driver, node.driver
    if node_driver is None:
        return None
    if not node_driver or proven is None:
        return Rejection(ProofRefusal.DRIVER_UNSUPPORTED, "the driver of this node or of the proof is not known")
    try:
        if key(node_driver) < key(proven):
            return Rejection(ProofRefusal.DRIVER_TOO_OLD, f"proven on driver {proven}, and this node has {node_driver}")
        why = _unsupported(facts, node_driver, proven, matrix)
    except (ConfigError, ValueError) as error:
        why = f"cannot be resolved for driver {node_driver[:40]}: {error}"
    return Rejection(ProofRefusal.DRIVER_UNSUPPORTED, why) if why else None


def _unsupported(facts: ProofFacts, node_driver: str, proven: str, matrix: Matrix) -> str:
    """Return why today's resolver does not say that the cell runs here as it was proven; "" where it does."""
    verdict, reason = _verdict(facts, node_driver, matrix)
    forward = (verdict if node_driver == proven else _verdict(facts, proven, matrix)[0]) == FORWARD
    if verdict not in LEGAL:
        return f"{facts.cell} on driver {node_driver}: {verdict}: {reason}"
    if forward and branch(node_driver) != branch(proven):
        return f"proven with forward compatibility on R{branch(proven)}, which says nothing of R{branch(node_driver)}"
    if verdict == FORWARD and not forward:
        return f"{facts.cell} needs forward compatibility on driver {node_driver}, and was proven without"
    return ""


def _verdict(facts: ProofFacts, driver: str, matrix: Matrix) -> tuple[str, str]:
    """Return what the resolver says today of the proof's cell and GPU on a driver, and why."""
    cell = Cell.parse(facts.cell or "")
    if cell is None:
        return "no-wheel", f"{facts.cell!r} is not a cell"
    gpu = facts.covers.gpu or ""
    is_known = find_gpu(matrix, gpu) is not None
    query = Query(
        torch=f"=={cell.torch}",
        variant=cell.variant,
        python=cell.python,
        driver=driver,
        gpus=[gpu] if is_known else [],
        cc=[] if is_known or facts.covers.cc is None else [facts.covers.cc],
        arch=_ARCHS.get(facts.covers.arch),
    )
    resolution = resolve(matrix, query)
    return resolution.verdict, "; ".join(resolution.reasons[:1])


def _same(one: str, other: str, matrix: Matrix) -> bool:
    """Tell whether two names mean one model: by the matrix, else by the letter."""
    models = find_gpu(matrix, one), find_gpu(matrix, other)
    return models[0] == models[1] if all(models) else one == other


def _switch(on: bool) -> str:  # noqa: FBT001 (a fact)
    return "on" if on else "off"


CLOCK_SKEW: Final = dt.timedelta(minutes=5)


class ListedProof(LightRecord, frozen=True):
    """What a registry lists beside an image: a bundle, or why it could not be read.

    `evidence` fetches the report that a statement refers to; it is called only for a proof that holds but for today's
    limits. It returns why where the report is not there.
    """

    digest: str
    bundle: bytes | Rejection
    evidence: Callable[[ReportReference], bytes | Rejection]


class ProofTerms(LightRecord, frozen=True):
    """By what proofs are judged: a policy, a node (None: none is asked about), the time, and the facts of today."""

    policy: Policy
    node: NodeFacts | None
    now: dt.datetime
    matrix: Matrix


class JudgedProof(LightRecord, frozen=True):
    """One proof and what became of it: it holds where `refused` is None.

    `statement` is None where it could not be believed at all. `signer` is the id of its key, or its identity.
    `unread_end` is when the run of a statement ended that cannot be read.
    """

    digest: str
    statement: Statement | None
    signer: str | None
    refused: Rejection | None
    unread_end: dt.datetime | None = None


class ImageProofs(LightRecord, frozen=True):
    """The proofs of an image, the newest first, and the newest that holds; `refused` says why where none does."""

    judged: list[JudgedProof]
    chosen: JudgedProof | None
    refused: Rejection | None


def judge_image(attached: Sequence[ListedProof], image: str, terms: ProofTerms) -> ImageProofs:
    """Judge everything that lies beside an image's digest; the first refusal in the order of words stands for all."""
    read = [_read(each, image, terms.policy) for each in attached]
    fails = [each for each in read if each.unread_end or (each.statement is not None and not each.statement.passed)]
    judged = [_judge(each, fails, one.evidence, terms) for one, each in zip(attached, read, strict=True)]
    judged.sort(key=lambda each: (_ended(each), each.digest), reverse=True)
    accepted = next((each for each in judged if each.refused is None), None)
    if accepted is not None:
        return ImageProofs(judged, accepted, None)
    if not judged:
        return ImageProofs([], None, Rejection(ProofRefusal.NO_PROOF, "nothing lies beside this image"))
    # The one that came furthest says most.
    order = list(ProofRefusal)
    furthest = max((each.refused for each in judged if each.refused), key=lambda refused: order.index(refused.reason))
    return ImageProofs(judged, None, furthest)


def _read(attached: ListedProof, image: str, policy: Policy) -> JudgedProof:
    """Return a statement about this image by whom the policy allows, or the refusal."""
    if isinstance(attached.bundle, Rejection):
        return JudgedProof(attached.digest, None, None, attached.bundle)
    opened = open_envelope(attached.bundle, statements.PAYLOAD_TYPE, policy.keys, policy.identities)
    if isinstance(opened, Rejection):
        return JudgedProof(attached.digest, None, None, opened)
    try:
        statement = statements.decode(opened.payload)
    except MalformedError as error:
        refused = Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
        unread_end = statements.unread_end(opened.payload, image)
        return JudgedProof(attached.digest, None, opened.signer, refused, unread_end)
    named = [f"sha256:{subject.digest.sha256}" for subject in statement.subject]
    if named != [image] or statement.facts.image.manifest != image:
        refused = Rejection(
            ProofRefusal.WRONG_SUBJECT, f"it is about {', '.join(named[:3]) or 'no image'}, not {image}"
        )
        return JudgedProof(attached.digest, None, opened.signer, refused)
    return JudgedProof(attached.digest, statement, opened.signer, None)


def _judge(
    proof: JudgedProof,
    fails: Sequence[JudgedProof],
    evidence: Callable[[ReportReference], bytes | Rejection],
    terms: ProofTerms,
) -> JudgedProof:
    if proof.refused is not None or proof.statement is None:
        return proof
    statement = proof.statement
    refused = (
        _by_itself(statement, terms)
        or _elsewhere(statement, terms)
        or _too_little(statement, terms.policy)
        or _too_old(statement, terms)
        or _taken_back(statement, fails, terms)
        or (_by_todays_limits(statement, evidence, terms) if terms.policy.rejudge else None)
    )
    return structs.replace(proof, refused=refused)


def _by_itself(statement: Statement, terms: ProofTerms) -> Rejection | None:
    facts, predicate = statement.facts, statement.predicate
    if statement.ended > terms.now + CLOCK_SKEW:
        return Rejection(ProofRefusal.FROM_THE_FUTURE, f"it ended at {facts.ended}, and it is {_text(terms.now)} here")
    if not statement.passed:
        checks = ", ".join(predicate.failed_tests[:5]) or f"exit code {facts.exit_code}"
        return Rejection(ProofRefusal.FAILED, f"the run failed: {checks}")
    if predicate.result == "WARNED" and terms.policy.warnings == "refuse":
        return Rejection(ProofRefusal.FAILED, f"the policy refuses warnings: {', '.join(predicate.warned_tests[:5])}")
    if facts.mode != "gpu" and terms.policy.mode == "gpu":
        return Rejection(ProofRefusal.NOT_A_GPU_RUN, "it ran on a CPU")
    return None


def _elsewhere(statement: Statement, terms: ProofTerms) -> Rejection | None:
    return None if terms.node is None else uncovered(statement.facts, terms.node, terms.matrix)


def _too_little(statement: Statement, policy: Policy) -> Rejection | None:
    level = statement.facts.level
    if LEVELS.index(level) < LEVELS.index(policy.level):
        return Rejection(ProofRefusal.LEVEL_TOO_LOW, f"level {level}, and the policy asks for {policy.level}")
    missing = [check for check in policy.required if check not in statement.predicate.passed_tests]
    if missing:
        why = f"not among the passed checks: {', '.join(missing)}{_suggestion(missing, statement)}"
        return Rejection(ProofRefusal.CHECK_MISSING, why)
    return None


def _suggestion(missing: Sequence[str], statement: Statement) -> str:
    """Return which checks of the run a name that it does not have may stand for."""
    predicate = statement.predicate
    checks = {*predicate.passed_tests, *predicate.warned_tests, *predicate.failed_tests}
    checks |= {skipped.id for skipped in statement.facts.skipped}
    near = [match for name in missing if name not in checks for match in difflib.get_close_matches(name, checks, 1)]
    return f" (did you mean {' and '.join(near)}?)" if near else ""


def _too_old(statement: Statement, terms: ProofTerms) -> Rejection | None:
    age = terms.now - statement.ended
    if age <= terms.policy.max_age:
        return None
    allowed = age_text(terms.policy.max_age)
    return Rejection(ProofRefusal.EXPIRED, f"it ended at {statement.facts.ended}, and the policy allows {allowed}")


def _taken_back(statement: Statement, fails: Sequence[JudgedProof], terms: ProofTerms) -> Rejection | None:
    """Return the newest failed run since, if it says something about the node. At the same second the fail counts."""
    node = terms.node or as_proven(statement.facts)
    for fail in sorted(fails, key=_ended, reverse=True):
        if fail.unread_end and fail.unread_end >= statement.ended:
            why = f"a newer statement cannot be read, and its run may have failed ({fail.digest[:19]})"
            return Rejection(ProofRefusal.FAILED_SINCE, f"{why}; use a newer envcheck")
        if fail.statement is None or fail.statement.ended < statement.ended:
            continue
        facts = fail.statement.facts
        if facts.mode in (statement.facts.mode, "unknown") and concerns(facts, node, terms.matrix):
            checks = ", ".join(fail.statement.predicate.failed_tests[:5])
            why = f"a run that ended at {facts.ended} failed{f': {checks}' if checks else ''} ({fail.digest[:19]})"
            return Rejection(ProofRefusal.FAILED_SINCE, why)
    return None


def _by_todays_limits(
    statement: Statement, evidence: Callable[[ReportReference], bytes | Rejection], terms: ProofTerms
) -> Rejection | None:
    reference = statement.facts.report
    content = evidence(reference)
    if isinstance(content, Rejection):
        return content
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != reference.digest:
        return Rejection(ProofRefusal.TAMPERED, f"the report is not the one that was stated: {reference.digest}")
    try:
        rejudged = rejudge(unpack(content), terms.matrix)
    except MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
    except EnvcheckError as error:
        return Rejection(ProofRefusal.STALE_LIMITS, f"cannot be judged again: {error}")
    outcomes = {outcome.id: outcome.status for outcome in rejudged.report.outcomes}
    if rejudged.report.verdict.status == "pass" and all(
        outcomes.get(check) == "pass" for check in terms.policy.required
    ):
        return None
    changed = ", ".join(f"{check} {before} then, {after} now" for check, before, after in rejudged.changed[:5])
    return Rejection(ProofRefusal.STALE_LIMITS, f"by today's limits: {changed or rejudged.report.verdict.sentence}")


def _ended(proof: JudgedProof) -> dt.datetime:
    return proof.statement.ended if proof.statement else dt.datetime.min.replace(tzinfo=dt.timezone.utc)


def _text(moment: dt.datetime) -> str:
    return statements.written(moment)
