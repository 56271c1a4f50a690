"""The statement that a report makes about an image, or why it can make none. A failed report makes one, too."""

import contextlib
import datetime as dt
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from envcheck.checks import LEVELS, limits
from envcheck.errors import EnvcheckError, UnavailableError, refuse
from envcheck.matrix.facts.model import Cell
from envcheck.registry import attachments
from envcheck.registry import statement as statements
from envcheck.registry.attachments import REPORT_TYPE, RemoteImage, attach, remote_images
from envcheck.registry.documents import ARCHS, digest_of
from envcheck.registry.envelope import BUNDLE_ANNOTATIONS, BUNDLE_TYPE, KeylessSigner, sign
from envcheck.registry.judge import Policy, contradiction, read_statement
from envcheck.registry.repository import Repository
from envcheck.registry.statement import Covers, Level, MalformedError, ProofRefusal, Sha256, Statement
from envcheck.reports.model import RunReport
from envcheck.runner.planning import discover
from envcheck.runner.schema import ImageFacts
from envcheck.signing import PrivateKey, PublicKey
from envcheck.struct_types import LightRecord

MEDIA_TYPE: Final = "application/vnd.envcheck.report.v1+json+gzip"
_AGAIN: Final = "run `envcheck run --image REF` to its end, and publish that report"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_DOTTED: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")


class UnprovableError(EnvcheckError):
    """A report that proves nothing about the image it is to be published beside (exit 1)."""

    exit_code = 1


class PackedReport(LightRecord, frozen=True):
    """The blob, what the statement says of it, and the report that it holds."""

    content: bytes
    reference: statements.ReportReference
    report: RunReport


def pack(report: RunReport) -> PackedReport:
    """Return the evidence: without names, and compressed to the same bytes each time."""
    from envcheck.reports.redact import redact  # noqa: PLC0415 (who only reads a report does without its patterns)

    published = redact(report)
    plain = msgspec.json.encode(published)
    if len(plain) > statements.MOST_REPORT:
        message = f"the report has {len(plain) >> 20} MiB, more than the {statements.MOST_REPORT >> 20} MiB of a proof"
        raise UnprovableError(message, fix="run it without --repeat, and publish that report")
    content = gzip.compress(plain, compresslevel=9, mtime=0)
    return PackedReport(content, statements.ReportReference(digest=digest_of(content), size=len(content)), published)


def image_arch(report: RunReport) -> str:
    """Return the architecture of the host that ran, in an image's words."""
    return ARCHS.get(report.host.arch, report.host.arch)


def ran(report: RunReport, images: Sequence[RemoteImage]) -> RemoteImage:
    """Return the image that the report is about. Raises UnprovableError where it is none of them, or open which."""
    facts = report.target.image or ImageFacts(runs_as="", program="", history=0, secrets=[])
    id_, pulled = report.target.image_id, {name.rpartition("@")[2] for name in facts.repository_digests}
    same_arch = {image.manifest: image for image in images if image.arch == image_arch(report)}
    for field, stated in (  # the strongest first; the config holds the layers and all settings
        ("manifest", {facts.manifest_digest, id_}),
        ("config", {facts.config_digest, id_}),
        ("index_digest", {facts.index_digest, id_} - {None}),
        ("manifest", pulled),
        ("index_digest", pulled),
    ):
        fitting = [image for image in same_arch.values() if getattr(image, field) in stated]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            message = f"the report fits {len(fitting)} images: {', '.join(sorted(one.manifest for one in fitting))}"
            raise UnprovableError(message, fix="publish by digest: REPOSITORY@sha256:...")
    digests = {facts.manifest_digest, facts.config_digest, facts.index_digest, id_} - {None}
    stated_ids = ", ".join(sorted(map(str, digests))) or "no digest is stated"
    listed = ", ".join(same_arch) or "no image for this architecture"
    message = f"the report is about another image ({stated_ids}); the registry has {listed}"
    raise UnprovableError(message, fix="push the image that was run, or run the one in the registry")


def refuse_unpublishable(report: RunReport, *, undetermined: bool = False) -> None:
    """Raise UnprovableError for a report that proves nothing of any image, whichever a registry has.

    One of exit 3 says neither that the image holds nor that it fails; with `undetermined` it is published as that.
    """
    if report.target.kind != "image":
        refuse(f"the report is of a Python ({report.target.name}), not of an image", _AGAIN, UnprovableError)
    outcomes = {outcome.id: outcome for outcome in report.outcomes}
    open_checks = [check.id for check in report.plan.checks if check.id not in outcomes]
    if not report.ended or open_checks:
        message = f"the report is unfinished{f': {len(open_checks)} checks were not run' if open_checks else ''}"
        raise UnprovableError(message, fix=_AGAIN)
    times = {outcomes[check.id].rounds for check in report.plan.checks}
    if len(times) > 1 or min(times, default=1) < report.plan.repeat:
        refuse(f"the repeat is unfinished: not every check was run {report.plan.repeat} times", _AGAIN, UnprovableError)
    if why := contradiction(report):
        raise UnprovableError(why, fix="publish the file that `envcheck run` wrote")
    if report.verdict.exit_code == UnavailableError.exit_code and not undetermined:
        message = f"the run is undetermined ({report.verdict.sentence}), which neither proves nor revokes"
        raise UnprovableError(message, fix="run it again, or pass --undetermined to attach it as such")
    if report.mode == "cpu" and report.plan.require_gpu:
        message = "the run required a GPU, and torch saw none: the node failed, and nothing is known of the image"
        raise UnprovableError(message, fix="run it on a node whose GPUs torch sees")


def state(packed: PackedReport, image: RemoteImage, levels: Mapping[str, str]) -> Statement:
    """Return what a publishable report says of its image, by the `levels` of all checks, or raise UnprovableError."""
    report = packed.report
    missing = _missing(report, levels)
    covers, level, cell = _covers(report), _level(report, missing), _cell(report)
    failed = report.verdict.status != "pass" or bool(_ids(report, "fail", "error"))
    if not failed:
        _refuse_unproven(report, covers, missing, cell)
    facts = statements.ProofFacts(
        tool=report.tool,
        cell=cell,
        target=report.promises.get("target", ""),
        level=level if level and not failed else cast("Level", report.plan.level),
        mode=report.mode,
        exit_code=report.verdict.exit_code,
        started=_time(report.started),
        ended=_time(report.ended),
        image=statements.ProvenImage(manifest=image.manifest, config=image.config),
        covers=covers,
        report=packed.reference,
        undetermined=_ids(report, "error"),
    )
    predicate = statements.TestResult(
        result="FAILED" if failed else "WARNED" if _ids(report, "warn") else "PASSED",
        configuration=_configuration(report),
        passed_tests=_ids(report, "pass"),
        warned_tests=_ids(report, "warn"),
        failed_tests=_ids(report, "fail", "error"),
        envcheck=facts,
    )
    digest = Sha256(sha256=image.manifest.removeprefix("sha256:"))
    statement = Statement(subject=[statements.Subject(name=image.repository, digest=digest)], predicate=predicate)
    try:  # a failed run in a form that no reader takes would take nothing back
        return statements.decode(msgspec.json.encode(statement))
    except MalformedError as error:
        refuse(f"the report cannot be stated: {error}", _AGAIN, UnprovableError)


def _refuse_unproven(report: RunReport, covers: Covers, missing: Mapping[str, str], cell: str | None) -> None:
    """Refuse a pass that would not say what of: which hardware, which torch, which level."""
    lowest = sorted(check for check, level in missing.items() if level == LEVELS[0])
    labelled, measured = Cell.parse(report.promises.get("cell", "")), _measured_cell(report)
    message = ""
    # A build from source has neither release nor variant.
    if labelled and measured and (labelled.torch, labelled.variant) != (measured.torch, measured.variant):
        message = f"the image's labels name {cell}, and it has torch {report.environment.get('torch')}"
    elif report.mode == "unknown":
        message = "no check ran torch, so the run proves nothing of the image"
    elif lowest:
        message = f"it ran without checks of level {LEVELS[0]} ({', '.join(lowest[:3])}), so it proves no level"
    elif cell is None:
        message = "neither the image's labels nor torch say which cell this is"
    elif report.mode == "gpu" and (covers.gpu is None or covers.driver is None or not covers.gpus):
        message = "the report does not say which GPU and driver it ran on"
    elif report.mode == "gpu" and (fewest := _fewest_gpus(report)) < covers.gpus:
        message = f"the report names {covers.gpus} GPUs, and a check of all GPUs measured on {fewest} of them"
    if message:
        raise UnprovableError(message, fix="run `envcheck run --image REF --level standard` without --only and --skip")


def _missing(report: RunReport, levels: Mapping[str, str]) -> dict[str, str]:
    """Return the checks that were not run and do apply here, each with its level."""
    planned = {check.id: check.level for check in report.plan.checks}
    # What the plan does not have was not run, whatever the outcomes say.
    done = {outcome.id for outcome in report.outcomes if not outcome.left_out and outcome.id in planned}
    return {check: level for check, level in {**planned, **levels}.items() if check not in done}


def _level(report: RunReport, missing: Mapping[str, str]) -> Level | None:
    """Return the highest level of the plan whose checks were all run."""
    highest = None
    for level in LEVELS[: LEVELS.index(report.plan.level) + 1]:
        if level in missing.values():
            break
        highest = cast("Level", level)
    return highest


def _cell(report: RunReport) -> str | None:
    cell = Cell.parse(report.promises.get("cell", "")) or _measured_cell(report)
    return str(cell) if cell else None


def _measured_cell(report: RunReport) -> Cell | None:
    torch, _, variant = str(report.environment.get("torch") or "").partition("+")
    python = "".join(str(report.environment.get("python") or "").split(".")[:2])
    return Cell.parse(f"torch{torch}-{variant}-py{python}")


def _covers(report: RunReport) -> Covers:
    listed = report.environment.get("devices")
    devices = [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
    gpus = report.snapshot.gpus
    on_gpu = report.mode != "cpu"
    names = {str(device["name"]) for device in devices if device.get("name")} if on_gpu else set()
    if on_gpu and not names:
        names = {value for gpu in gpus if isinstance(value := gpu.signal("name").value, str)}
    if len(names) > 1:
        refuse(
            f"the run was on GPUs of several models: {', '.join(sorted(names))}",
            "run it on one, with CUDA_VISIBLE_DEVICES",
            UnprovableError,
        )
    driver = str(report.snapshot.signal("driver.version").value or "")
    capability = str(devices[0].get("capability") or "") if devices else ""
    mig = any(gpu.signal("mig_mode").value == "on" for gpu in gpus)
    mig = mig or any(str(device.get("uuid") or "").startswith("MIG-") for device in devices)
    return Covers(
        gpu=next(iter(names), None),
        cc=capability if on_gpu and _DOTTED.fullmatch(capability) else None,
        gpus=len(devices) if on_gpu else 0,
        driver=driver if on_gpu and _DOTTED.fullmatch(driver) else None,
        arch=report.host.arch,
        mig=on_gpu and mig,
    )


def _fewest_gpus(report: RunReport) -> int:
    """Return on how many GPUs each check was measured that passed and that has a rank on every one; 0 without any."""
    on_all = {check.id for check in report.plan.checks if check.ranks == 0}
    passed = [o for o in report.outcomes if o.status in ("pass", "warn") and o.id in on_all]
    counts = (sum(isinstance(rank, dict) and bool(rank.get("is_cuda")) for rank in o.ranks) for o in passed)
    return min(filter(None, counts), default=0)


def _configuration(report: RunReport) -> list[statements.Subject]:
    items = [("limits", hashlib.sha256(limits.FILE.read_bytes()).hexdigest())]
    if _HEX.fullmatch(lock := report.promises.get("lock", "")):
        items.append(("lock", lock))
    return [statements.Subject(name=name, digest=Sha256(sha256=digest)) for name, digest in items]


def _ids(report: RunReport, *statuses: str) -> list[str]:
    return sorted(outcome.id for outcome in report.outcomes if outcome.status in statuses)


def _time(text: str) -> str:
    with contextlib.suppress(ValueError, OverflowError):  # OverflowError: the last day of the year 9999, west of UTC
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return statements.written(moment)
    message = f"{text[:40]!r} is not a time with a zone"
    raise UnprovableError(message, fix=_AGAIN)


class Publication(LightRecord, frozen=True):
    """One report beside its image. `proof` and `report` are the digests of the artifacts."""

    image: str
    statement: Statement
    report: str
    proof: str
    signer: str
    note: str


class PreparedProof(LightRecord, frozen=True):
    """A report that is ready to be published."""

    image: RemoteImage
    packed: PackedReport
    statement: Statement


def prepare(
    repository: Repository, tag_or_digest: str, report: RunReport, *, undetermined: bool = False
) -> PreparedProof:
    """Return what the report says of the image that it ran. Nothing is written."""
    refuse_unpublishable(report, undetermined=undetermined)
    image = ran(report, remote_images(repository, tag_or_digest, image_arch(report)))
    packed = pack(report)
    levels = {module.id: module.check.level for module in discover()}
    return PreparedProof(image, packed, state(packed, image, levels))


def publish(repository: Repository, one: PreparedProof, by: PrivateKey | KeylessSigner) -> Publication:
    """Attach the report and then the statement; whoever is interrupted in between has published no proof."""
    payload = msgspec.json.encode(one.statement)
    envelope = sign(payload, statements.PAYLOAD_TYPE, by) if isinstance(by, PrivateKey) else by.sign(payload)
    subject = repository.manifest(one.image.manifest).descriptor
    report = attach(repository, subject, REPORT_TYPE, one.packed.content, media_type=MEDIA_TYPE)
    proof = attach(repository, subject, BUNDLE_TYPE, envelope, BUNDLE_ANNOTATIONS, inline=True)
    return Publication(
        image=str(repository.reference.pinned(one.image.manifest)),
        statement=one.statement,
        report=report.descriptor.digest,
        proof=proof.descriptor.digest,
        signer=by.public.id if isinstance(by, PrivateKey) else str(by.identity),
        note=proof.note,
    )


def delete_replaced(repository: Repository, one: PreparedProof, by: PublicKey) -> list[str]:
    """Delete the older proofs of this key that the published one replaces, with their reports; return their digests.

    A failed run stays: it may take back proofs of other nodes. So do all reports where somebody else's proof, which may
    rest on them, is there, and everything where the new proof is not listed. Raise an EnvcheckError where none can be
    deleted.
    """
    image, policy = one.image.manifest, Policy(keys=(by,))
    proofs = [read_statement(proof, image, policy) for proof in attachments.read_proofs(repository, image)]
    stated = {proof.digest: proof.statement for proof in proofs if proof.statement}
    if one.statement not in stated.values():
        return []
    # What is deleted already, and has its tag still, rests on nothing.
    alone = all(proof.refused is None or proof.refused.reason is ProofRefusal.DANGLING for proof in proofs)
    gone = [digest for digest, statement in stated.items() if _replaces(one.statement, statement)]
    kept = {statement.facts.report.digest for digest, statement in stated.items() if digest not in gone}
    reports = {stated[digest].facts.report.digest for digest in gone} - kept
    evidence = {
        artifact.descriptor.digest: REPORT_TYPE
        for artifact in (attachments.referrers(repository, image).artifacts if gone and alone else ())
        if artifact.manifest.kind == REPORT_TYPE and {layer.digest for layer in artifact.manifest.layers} <= reports
    }
    attachments.detach(repository, image, {**dict.fromkeys(gone, BUNDLE_TYPE), **evidence})
    return gone


def _replaces(new: Statement, old: Statement) -> bool:
    """Tell whether no policy is met by the older pass that the newer one does not meet."""
    said, before = new.facts, old.facts
    same = ("covers", "mode", "cell", "target")
    return (
        (new.passed and old.passed and new.ended > old.ended)
        and all(getattr(said, name) == getattr(before, name) for name in same)
        and LEVELS.index(said.level) >= LEVELS.index(before.level)
        and set(new.predicate.passed_tests).issuperset(old.predicate.passed_tests)
        and set(old.predicate.warned_tests).issuperset(new.predicate.warned_tests)
    )
