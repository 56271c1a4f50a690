"""Which proof of an image holds, for which node: read, then judged by a site's policy, the node and today's limits."""

import datetime as dt
import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import structs

from envcheck import safe_files
from envcheck.checks import LEVELS
from envcheck.errors import ConfigError, EnvcheckError, refuse
from envcheck.matrix.facts.lookup import find_gpu, same_gpu
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, branch, key
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.matrix.resolver.verdict import FORWARD, LEGAL
from envcheck.node.snapshot import Snapshot
from envcheck.registry import statement as statements
from envcheck.registry.documents import digest_of
from envcheck.registry.envelope import Identities, Identity, open_envelope
from envcheck.registry.statement import MalformedError, ProofFacts, ProofRefusal, Rejection, ReportReference, Statement
from envcheck.reports.model import RunReport, rejudge
from envcheck.runner.judging import verdict
from envcheck.signing import PublicKey, load_public
from envcheck.struct_types import LightRecord, know_types

CLOCK_SKEW: Final = dt.timedelta(minutes=5)
_ARCHS: Final[dict[str, HostArch]] = {"x86_64": "x86_64", "aarch64": "aarch64"}
_SHOWN: Final = 5
_MOST: Final = 1 << 20  # bytes of a file
_FIX: Final = "docs/publish.md lists the settings of [proof] and [promote], with what to write"
_WRITE: Final = {
    "proof.max_age": "30d, 12h or 90m",
    "proof.level": ", ".join(LEVELS),
    "proof.warnings": "allow or refuse",
    "proof.mode": "gpu or cpu",
    "promote.gpus": 'a GPU and how many of it, "H100 x8"',
}
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes"}


class NamedGpus(LightRecord, frozen=True):
    """GPUs that a promotion needs a proof for: "H100 x8"."""

    gpu: str
    gpus: int


class Policy(LightRecord, frozen=True):
    """What a proof must be: signers that count, checks that passed; GPUs that a promotion needs a proof for each."""

    level: statements.Level = "standard"
    max_age: dt.timedelta = dt.timedelta(days=30)
    keys: tuple[PublicKey, ...] = ()
    identities: Identities | None = None
    required: tuple[str, ...] = ()
    warnings: Literal["allow", "refuse"] = "allow"
    rejudge: bool = True
    mode: Literal["gpu", "cpu"] = "gpu"
    promoted_on: tuple[NamedGpus, ...] = ()


DEFAULT: Final = Policy()


class _ProofTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    level: statements.Level = DEFAULT.level
    max_age: Annotated[str, msgspec.Meta(pattern=r"(?a)\A[1-9]\d{0,4}[dhm]\Z")] = "30d"
    keys: list[str] = []
    identities: list[Identity] = []
    trusted_root: str | None = None
    required: tuple[Annotated[str, msgspec.Meta(pattern=r"\S")], ...] = ()
    warnings: Literal["allow", "refuse"] = DEFAULT.warnings
    rejudge: bool = DEFAULT.rejudge
    mode: Literal["gpu", "cpu"] = DEFAULT.mode


class _PromoteTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    gpus: list[Annotated[str, msgspec.Meta(pattern=r"(?a)\A\S(.*\S)? x[1-9]\d{0,5}\Z")]] = []


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    proof: _ProofTable = msgspec.field(default_factory=_ProofTable)
    promote: _PromoteTable = msgspec.field(default_factory=_PromoteTable)


know_types(_PolicyFile)


def read_policy(path: Path) -> Policy:
    """Return the policy in a file; the paths of its keys begin at the file. Raises ConfigError with the setting."""
    try:
        tables = msgspec.toml.decode(safe_files.read_whole(path, most=_MOST), type=_PolicyFile)
    except OSError as error:
        refuse(f"cannot read {path}: {error.strerror}", "give a TOML file that you may read")
    except (ValueError, RecursionError) as error:  # of msgspec, which names the place; not UTF-8
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        why = f"not TOML: {why}" if not isinstance(error, msgspec.ValidationError) else why
        why = next((f"{place}: write {value}" for place, value in _WRITE.items() if f"`$.{place}" in why), why)
        refuse(f"{path}: {why}", _FIX)
    proof, promote = tables.proof, tables.promote
    keys, identities = tuple(_key(name, path) for name in proof.keys), _identities(proof, path)
    if not keys and identities is None:
        refuse(f"{path}: proof.keys: no key: no proof would hold", "name public keys or identities")
    if promote.gpus and proof.mode == "cpu":
        fix = 'leave them out, or set mode = "gpu" in [proof]'
        refuse(f"{path}: promote.gpus: a run on a CPU proves nothing of GPUs", fix)
    same: dict[str, Any] = {name: getattr(proof, name) for name in ("level", "required", "warnings", "rejudge", "mode")}
    return Policy(
        **same,
        max_age=dt.timedelta(**{_UNITS[proof.max_age[-1]]: int(proof.max_age[:-1])}),
        keys=keys,
        identities=identities,
        promoted_on=tuple(NamedGpus(gpu, int(n)) for gpu, _, n in (text.rpartition(" x") for text in promote.gpus)),
    )


def _key(name: str, path: Path) -> PublicKey:
    try:
        return load_public(path.parent / name)
    except (ConfigError, ValueError) as error:  # ValueError: a NUL in the path
        refuse(f"{path}: proof.keys: {getattr(error, 'message', error)}", "name public keys, relative to this file")


def _identities(proof: _ProofTable, path: Path) -> Identities | None:
    """Return the identities, whose certificates are verified by the trusted root alone."""
    if not proof.identities and proof.trusted_root is None:
        return None
    if not proof.identities:
        refuse(f"{path}: proof.trusted_root: no identity that it would verify", "name identities, or leave it out")
    fix = "name Sigstore's trusted_root.json, relative to this file"
    if proof.trusted_root is None:
        refuse(f"{path}: proof.identities: no trusted_root to verify them by", fix)
    root = path.parent / proof.trusted_root
    try:
        identities = Identities(tuple(proof.identities), safe_files.read_whole(root, most=_MOST))
        identities.check()
    except (OSError, ValueError) as error:
        refuse(f"{path}: proof.trusted_root: cannot read {root}: {getattr(error, 'strerror', error)}", fix)
    except ConfigError as error:
        refuse(f"{path}: proof.trusted_root: {error.message}", error.fix)
    return identities


class NodeFacts(LightRecord, frozen=True):
    """What a node is, or is to be. `models` are the different ones; `driver` and `arch` None are not asked about."""

    models: tuple[str, ...] = ()
    gpus: int = 0
    driver: str | None = None
    arch: str | None = None
    mig: bool = False


class ListedProof(LightRecord, frozen=True):
    """A bundle beside an image, or why it cannot be read; `evidence` fetches the report that its statement names."""

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
    """One proof, which holds where `refused` is None; `unread_end`: when the run of a signed, unreadable one ended."""

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


def judge_image(attached: Sequence[ListedProof], image: str, terms: ProofTerms) -> ImageProofs:
    """Judge everything that lies beside an image's digest; the refusal that came furthest stands for all."""
    read = [read_statement(one, image, terms.policy) for one in attached]
    fails = [one for one in read if one.unread_end or (one.statement and not one.statement.passed)]
    fails.sort(key=_ended, reverse=True)
    judged = [_judge(proof, fails, one.evidence, terms) for one, proof in zip(attached, read, strict=True)]
    judged.sort(key=lambda one: (_ended(one), one.digest), reverse=True)
    chosen = next((one for one in judged if one.refused is None), None)
    order = list(ProofRefusal)
    refusals = [one.refused for one in judged if one.refused]
    refusals.append(
        Rejection(ProofRefusal.NO_PROOF, "nothing lies beside this image; run it, then `envcheck publish` its report")
    )
    furthest = max(refusals, key=lambda refused: order.index(refused.reason))
    return ImageProofs(judged, chosen, None if chosen else furthest)


def _ended(proof: JudgedProof) -> dt.datetime:
    return proof.statement.ended if proof.statement else dt.datetime.min.replace(tzinfo=dt.timezone.utc)


def read_statement(listed: ListedProof, image: str, policy: Policy) -> JudgedProof:
    """Return a statement about this image by whom the policy allows, or the refusal."""
    if isinstance(listed.bundle, Rejection):
        return JudgedProof(listed.digest, None, None, listed.bundle)
    opened = open_envelope(listed.bundle, statements.PAYLOAD_TYPE, policy.keys, policy.identities)
    if isinstance(opened, Rejection):
        return JudgedProof(listed.digest, None, None, opened)
    try:
        statement = statements.decode(opened.payload)
    except MalformedError as error:
        refused = Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
        return JudgedProof(listed.digest, None, opened.signer, refused, statements.unread_end(opened.payload, image))
    named = [f"sha256:{subject.digest.sha256}" for subject in statement.subject]
    if named != [image] or statement.facts.image.manifest != image:
        why = f"it is about {', '.join(named[:3]) or 'no image'}, not {image}"
        return JudgedProof(listed.digest, None, opened.signer, Rejection(ProofRefusal.WRONG_SUBJECT, why))
    return JudgedProof(listed.digest, statement, opened.signer, None)


def _judge(
    proof: JudgedProof,
    fails: Sequence[JudgedProof],
    evidence: Callable[[ReportReference], bytes | Rejection],
    terms: ProofTerms,
) -> JudgedProof:
    statement, refused = proof.statement, proof.refused
    if statement is not None:
        refused = (
            _by_itself(statement, terms)
            or (uncovered(statement.facts, terms.node, terms.matrix) if terms.node else None)
            or _too_little(statement, terms)
            or _taken_back(statement, fails, terms)
            or (_by_todays_limits(statement, evidence, terms) if terms.policy.rejudge else None)
        )
    return structs.replace(proof, refused=refused)


def _by_itself(statement: Statement, terms: ProofTerms) -> Rejection | None:
    facts, predicate = statement.facts, statement.predicate
    if statement.ended > terms.now + CLOCK_SKEW:
        why = f"it ended at {facts.ended}, and it is {statements.written(terms.now)} here"
        return Rejection(ProofRefusal.FROM_THE_FUTURE, why)
    if not statement.passed:
        checks = ", ".join(predicate.failed_tests[:_SHOWN]) or f"exit code {facts.exit_code}"
        did = "was undetermined" if statement.word == "UNDETERMINED" else "failed"
        return Rejection(ProofRefusal.FAILED, f"the run {did}: {checks}")
    if predicate.result == "WARNED" and terms.policy.warnings == "refuse":
        why = f"the policy refuses warnings: {', '.join(predicate.warned_tests[:_SHOWN])}"
        return Rejection(ProofRefusal.FAILED, why)
    if facts.mode != "gpu" and terms.policy.mode == "gpu":
        return Rejection(ProofRefusal.NOT_A_GPU_RUN, 'it ran on a CPU; for a trial write mode = "cpu" in [proof]')
    return None


def _too_little(statement: Statement, terms: ProofTerms) -> Rejection | None:
    level, policy = statement.facts.level, terms.policy
    if LEVELS.index(level) < LEVELS.index(policy.level):
        return Rejection(ProofRefusal.LEVEL_TOO_LOW, f"level {level}, and the policy asks for {policy.level}")
    missing = [check for check in policy.required if check not in statement.predicate.passed_tests]
    if missing:
        return Rejection(ProofRefusal.CHECK_MISSING, f"not among the passed checks: {', '.join(missing)}")
    if terms.now - statement.ended > policy.max_age:
        why = f"it ended at {statement.facts.ended}, and the policy allows {policy.max_age}"
        return Rejection(ProofRefusal.EXPIRED, why)
    return None


def _taken_back(statement: Statement, fails: Sequence[JudgedProof], terms: ProofTerms) -> Rejection | None:
    """Return the newest failed run since, if it says something about the node. At the same second the fail counts.

    It takes back a proof of its level or a higher one, and a lower one that says the same check passed.
    """
    covers = statement.facts.covers
    models = () if covers.gpu is None else (covers.gpu,)
    node = terms.node or NodeFacts(models, covers.gpus, covers.driver, covers.arch, covers.mig)
    for fail in fails:
        if fail.unread_end and fail.unread_end >= statement.ended:
            why = f"a newer statement cannot be read, and its run may have failed ({fail.digest[:19]})"
            return Rejection(ProofRefusal.FAILED_SINCE, f"{why}; use a newer envcheck")
        if fail.statement is None or fail.statement.ended < statement.ended:
            continue
        facts = fail.statement.facts
        claimed = {*statement.predicate.passed_tests, *statement.predicate.warned_tests}
        lower = LEVELS.index(statement.facts.level) < LEVELS.index(facts.level)
        if fail.statement.word == "UNDETERMINED" or (lower and not claimed.intersection(fail.statement.failed)):
            continue
        if facts.mode in (statement.facts.mode, "unknown") and concerns(facts, node, terms.matrix):
            checks = ", ".join(fail.statement.failed[:_SHOWN])
            where = f"level {facts.level}, {facts.covers.gpu or 'no GPU'} x{facts.covers.gpus}"
            why = f"a run ({where}) that ended at {facts.ended} failed{f': {checks}' if checks else ''}"
            return Rejection(ProofRefusal.FAILED_SINCE, f"{why} ({fail.digest[:19]})")
    return None


def _by_todays_limits(
    statement: Statement, evidence: Callable[[ReportReference], bytes | Rejection], terms: ProofTerms
) -> Rejection | None:
    reference = statement.facts.report
    content = evidence(reference)
    if isinstance(content, Rejection):
        return content
    if digest_of(content) != reference.digest:
        return Rejection(ProofRefusal.TAMPERED, f"the report is not the one that was stated: {reference.digest}")
    try:
        report = unpack(content)
        why = contradiction(report)
        return Rejection(ProofRefusal.TAMPERED, why) if why else _judged_again(report, terms)
    except MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
    except EnvcheckError as error:
        return Rejection(ProofRefusal.STALE_LIMITS, f"cannot be judged again: {error}")


def _judged_again(report: RunReport, terms: ProofTerms) -> Rejection | None:
    rejudged = rejudge(report, terms.matrix)
    outcomes = rejudged.report.outcomes
    passed, warned = ([one.id for one in outcomes if one.status == status] for status in ("pass", "warn"))
    if warned and terms.policy.warnings == "refuse":
        why = f"judged again, and the policy refuses warnings: {', '.join(warned[:_SHOWN])}"
        return Rejection(ProofRefusal.STALE_LIMITS, why)
    if rejudged.report.verdict.status == "pass" and set(passed).issuperset(terms.policy.required):
        return None
    changed = ", ".join(f"{check} {before} then, {after} now" for check, before, after in rejudged.changed[:_SHOWN])
    return Rejection(ProofRefusal.STALE_LIMITS, f"by today's limits: {changed or rejudged.report.verdict.sentence}")


def contradiction(report: RunReport) -> str:
    """Return how a report's verdict contradicts its outcomes: somebody edited one of them; "" where it does not."""
    told = report.verdict
    made = verdict(report.outcomes, report.mode, complete=bool(report.ended))
    if (told.status, told.exit_code) == (made.status, made.exit_code):
        return ""
    return f"the report's verdict is {told.status} (exit {told.exit_code}), and its outcomes make it {made.status}"


def unpack(content: bytes) -> RunReport:
    """Return the report. Raises MalformedError for what is none, or is too large when unpacked."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            return statements.decode_json(stream.read(statements.MOST_REPORT + 1), RunReport, statements.MOST_REPORT)
    except (OSError, EOFError, zlib.error):
        why = "it is not gzip"
    except MalformedError as error:
        why = str(error)
    message = f"the report cannot be read: {why}"
    raise MalformedError(message)


def concerns(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> bool:
    """Tell whether a failed run says something about the node: on fewer or more of its GPUs, on its driver or older."""
    covers = facts.covers
    if node.arch is not None and node.arch != covers.arch:
        return False
    if facts.mode == "cpu" or covers.gpu is None:
        return True
    if node.gpus and (covers.mig != node.mig or not any(same_gpu(matrix, covers.gpu, model) for model in node.models)):
        return False
    try:
        return not (covers.driver and node.driver) or key(node.driver) >= key(covers.driver)
    except ValueError:
        return True


def uncovered(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    """Return why a proof does not cover the node, None where it does. A proof on a CPU covers its architecture."""
    covers = facts.covers
    if node.arch is not None and node.arch != covers.arch:
        return Rejection(ProofRefusal.WRONG_ARCH, f"proven on {covers.arch}, not on {node.arch or 'an unknown one'}")
    if facts.mode != "gpu":
        return None
    models = node.models if node.gpus else ()
    others = [model for model in models if covers.gpu is None or not same_gpu(matrix, covers.gpu, model)]
    if others or not models or covers.mig != node.mig:
        states = ["with MIG" if mig else "without MIG" for mig in (covers.mig, node.mig)]
        here = " and ".join(others or models) or "no GPU"
        return Rejection(ProofRefusal.WRONG_GPU, f"proven on {covers.gpu} {states[0]}; here is {here} {states[1]}")
    if node.gpus > covers.gpus:
        return Rejection(ProofRefusal.TOO_FEW_GPUS, f"proven on {covers.gpus} GPUs, and this node has {node.gpus}")
    return None if node.driver is None else _other_driver(facts, node.driver, matrix)


def _other_driver(facts: ProofFacts, node_driver: str, matrix: Matrix) -> Rejection | None:
    proven = facts.covers.driver
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
