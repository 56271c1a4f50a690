"""Which proof of an image holds for a node under a policy, and why each other one does not.

A proof is judged in the order of `ProofRefusal`. A newer failed run of the same image, stated by an allowed key, takes
back an older pass if it concerns the node; one that nobody signed takes back only what nobody signed. A newer statement
that cannot be read, of a later envcheck for example, may be of a failed run: it takes back an older pass, too.
"""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from envcheck.checks import LEVELS
from envcheck.errors import EnvcheckError
from envcheck.matrix.facts.model import Matrix
from envcheck.registry.proofs import statement as statements
from envcheck.registry.proofs.covers import NodeFacts, as_proven, concerns, uncovered
from envcheck.registry.proofs.envelope import open_envelope
from envcheck.registry.proofs.evidence import unpack
from envcheck.registry.proofs.policy import Policy, age_text
from envcheck.registry.proofs.refusals import ProofRefusal, Rejection
from envcheck.registry.proofs.statement import ReportReference, Statement
from envcheck.registry.proofs.strict_json import MalformedError
from envcheck.reports.rejudge import rejudge
from envcheck.struct_types import LightRecord

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

    `statement` is None where it could not be believed at all. `signer` is the id of its key, or its identity; without
    one nothing is proven, whatever holds. `unread_end` is when the run of a statement ended that cannot be read.
    """

    digest: str
    statement: Statement | None
    signer: str | None
    refused: Rejection | None
    unread_end: dt.datetime | None = None

    @property
    def proven(self) -> bool:
        """Tell whether it holds and somebody whom the policy names signed it."""
        return self.refused is None and self.signer is not None


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
    if opened.signer is None and not policy.unsigned:
        return JudgedProof(attached.digest, None, None, Rejection(ProofRefusal.UNSIGNED, "nobody signed it"))
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
        or _taken_back(proof, statement, fails, terms)
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


def _taken_back(
    proof: JudgedProof, statement: Statement, fails: Sequence[JudgedProof], terms: ProofTerms
) -> Rejection | None:
    """Return the newest failed run since, if it says something about the node. At the same second the fail counts."""
    node = terms.node or as_proven(statement.facts)
    for fail in sorted(fails, key=_ended, reverse=True):
        heard = fail.signer is not None or proof.signer is None
        if heard and fail.unread_end and fail.unread_end >= statement.ended:
            why = f"a newer statement cannot be read, and its run may have failed ({fail.digest[:19]})"
            return Rejection(ProofRefusal.FAILED_SINCE, f"{why}; use a newer envcheck")
        if fail.statement is None or fail.statement.ended < statement.ended:
            continue
        facts = fail.statement.facts
        if heard and facts.mode in (statement.facts.mode, "unknown") and concerns(facts, node, terms.matrix):
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
