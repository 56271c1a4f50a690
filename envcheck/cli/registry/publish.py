"""`envcheck publish`: put the proof of a run beside the image that ran."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import structs

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.registry import access
from envcheck.errors import ConfigError
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.registry import publishing
from envcheck.registry.attached_proofs import read_proofs
from envcheck.registry.envelope import KeylessSigner
from envcheck.registry.judge import JudgedProof, ProofTerms, judge_image, node_of
from envcheck.registry.publishing import Publication
from envcheck.registry.references import parse_reference
from envcheck.registry.repository import Repository
from envcheck.registry.statement import ProofRefusal, Rejection
from envcheck.reports.model import load as load_report


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    reference: Annotated[str, Argument(metavar="REF")]
    report: Annotated[Path, Option("The report of `envcheck run --image`.")]
    key: Annotated[Path | None, Option("The private key that signs (`envcheck key new`).")] = None
    keyless: Annotated[bool, Option("Sign as this CI job, with its OIDC token and Sigstore.")] = False
    trust_config: Annotated[Path | None, Option("A Sigstore instance of your own, as ClientTrustConfig.")] = None
    policy: Annotated[
        Path | None, Option("Read the proof back, and exit 1 unless it holds by this policy for the node that ran.")
    ] = None
    mirror: access.Mirror = "user"
    as_json: Annotated[bool, Option("--json", "Print envcheck/publish/1.")] = False


@command_with(PublishOptions)
def command(options: PublishOptions, settings: Settings) -> None:
    """Publish what a run of REF proved, beside the image in its registry.

    REF is the image that was pushed: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:.... The report goes beside exactly the
    image that ran. A report that failed is published too: it revokes older proofs.
    With --policy you learn at once whether `envcheck pull` believes the proof.

    Names of hosts, users and paths become pseudonyms; GPU models, driver and counts stay.

    \b
    envcheck run --image REGISTRY/NAME@sha256:... --output report.json
    envcheck publish REGISTRY/NAME@sha256:... --report report.json --key release

    Exit 0: published; 1: a report proves nothing about this image, and nothing was published, or the proof does not
    hold by --policy; 2: wrong usage; 3: the registry does not answer, or refuses.
    """
    _check(options)
    judge_by = None if options.policy is None else (access.policy(options.policy), load_matrix(settings.matrix))
    key = access.private_key(options.key) if options.key else None
    report = load_report(options.report)
    reference = parse_reference(options.reference)
    by = key or _keyless(options)
    repository = access.repository(reference, options.mirror)
    prepared = publishing.prepare(repository, reference.wanted, report)
    done = publishing.publish(repository, prepared, by)
    judged = None
    try:
        if judge_by:
            # Only now: a proof may expire while somebody types a password, or while a registry is slow.
            terms = access.terms(judge_by[0], node_of(report.snapshot), judge_by[1])
            judged = _read_back(repository, prepared.image.manifest, done.proof, terms)
    finally:
        _show(done, judged, as_json=options.as_json)  # what was published is there, whatever came after it
    sys.exit(1 if judged and judged.refused else 0)


def _check(options: PublishOptions) -> None:
    if (options.key is not None) == options.keyless:
        message = "--key and --keyless exclude each other" if options.keyless else "no key to sign with"
        raise ConfigError(message, fix="pass --key FILE (`envcheck key new FILE` makes one) or --keyless")
    if options.trust_config and not options.keyless:
        message = "--trust-config is for --keyless"
        raise ConfigError(message, fix="leave it out, or sign with --keyless")


def _read_back(repository: Repository, image: str, proof: str, terms: ProofTerms) -> JudgedProof:
    """Return the proof as the registry gives it back, judged for the node that ran."""
    judged = judge_image(read_proofs(repository, image), image, terms).judged
    lost = Rejection(ProofRefusal.NO_PROOF, "the registry took the proof, and does not list it")
    return next((one for one in judged if one.digest == proof), JudgedProof(proof, None, None, lost))


def _keyless(options: PublishOptions) -> KeylessSigner:
    if options.trust_config is None and load_profile(options.mirror).closed:
        message = f"the mirror profile {options.mirror} is closed, and --keyless asks Sigstore's public instance"
        raise ConfigError(message, fix="pass --trust-config with an instance of your own, or sign with --key")
    return KeylessSigner(options.trust_config)


def _show(one: Publication, proof: JudgedProof | None, *, as_json: bool) -> None:
    if as_json:
        holds = None if proof is None else proof.refused is None
        read_back = {"holds": holds, **access.why(proof.refused if proof else None)}
        row = {**structs.asdict(one), "result": one.statement.predicate.result, **read_back}
        access.say_json({"schema": "envcheck/publish/1", "published": [row]})
        return
    access.say(f"published {one.statement.predicate.result} at level {one.statement.facts.level} beside")
    access.say(f"  {one.image}")
    access.say(f"  proof  {one.proof}")
    access.say(f"  signed by {one.signer}")
    if one.note:
        access.say(f"  note: {one.note}")
    if proof is not None:
        access.say(f"  read back: {'refused' if proof.refused else 'holds'} for the node that ran")
        if proof.refused is not None:
            access.say(f"    {proof.refused.reason.value}: {proof.refused.detail}")
