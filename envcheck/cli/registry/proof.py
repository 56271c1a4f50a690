"""`envcheck proof`: every proof of an image, and whether it holds here."""

import sys
from dataclasses import dataclass
from typing import Annotated

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.registry import access
from envcheck.matrix.file.load import load
from envcheck.registry.attached_proofs import read_proofs, remote_images
from envcheck.registry.judge import ImageProofs, judge_image
from envcheck.registry.references import AbsentError, parse_reference


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    reference: Annotated[str, Argument(metavar="REF")]
    policy: access.PolicyFile = None
    gpu: Annotated[str | None, Option("GPU model of another node.", metavar="NAME")] = None
    gpus: access.Gpus = None
    driver: access.Driver = None
    here: Annotated[bool, Option("--here/--no-here", "Judge for this node, or for no node.")] = True
    mirror: access.Mirror = "user"
    as_json: Annotated[bool, Option("--json", "Print envcheck/proofs/1.")] = False


@command_with(ProofOptions)
def command(options: ProofOptions, settings: Settings) -> None:
    """List every proof beside REF: whether it holds for this node, and the reason if not.

    Without --policy no key is trusted, so no proof holds; the list still shows each proof.

    \b
    envcheck proof REGISTRY/NAME:TAG --policy envcheck-policy.toml
    envcheck proof REGISTRY/NAME:TAG --gpu H100 --gpus 8 --driver 570.124.06

    Exit 0: a proof holds; 1: none does; 2: wrong usage; 3: the registry does not answer.
    """
    reference, policy, matrix = parse_reference(options.reference), access.policy(options.policy), load(settings.matrix)
    described = (options.gpu, options.gpus, options.driver)
    node = access.described_node(*described, matrix) if options.here or any(described) else None
    terms = access.terms(policy, node, matrix)
    repository = access.repository(reference, options.mirror)
    images = remote_images(repository, reference.wanted, access.architecture())
    if not images:
        message = f"{reference} has no image for {access.architecture()}"
        raise AbsentError(message, fix="name an image for this platform")
    image = images[0].manifest
    proofs = judge_image(read_proofs(repository, image), image, terms)
    if options.as_json:
        access.say_json(_document(str(reference.pinned(image)), proofs))
    else:
        _show(str(reference.pinned(image)), proofs)
        if proofs.judged and options.policy is None:
            access.say(access.NO_POLICY)
    sys.exit(0 if proofs.chosen is not None else 1)


def _show(image: str, proofs: ImageProofs) -> None:
    access.say(image)
    for proof in proofs.judged:
        word = "refused" if proof.refused else "holds"
        access.say(f"{word:8}  {access.short(proof.digest)}  {access.ran_on(proof)}")
        if proof.refused is not None:
            access.say(f"    {proof.refused.reason.value}: {proof.refused.detail}")
    if not proofs.judged and proofs.refused is not None:
        access.say(f"{proofs.refused.reason.value}: {proofs.refused.detail}")


def _document(image: str, proofs: ImageProofs) -> dict[str, object]:
    rows = [
        {
            "digest": proof.digest,
            "holds": proof.refused is None,
            "signer": proof.signer,
            "statement": proof.statement,
            **access.why(proof.refused),
        }
        for proof in proofs.judged
    ]
    reason = proofs.refused.reason.value if proofs.refused else None
    return {"schema": "envcheck/proofs/1", "image": image, "reason": reason, "proofs": rows}
