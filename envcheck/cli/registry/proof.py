"""`envcheck proof`: every proof of an image, and whether it holds here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click
import msgspec

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
    policy: Annotated[Path | None, Option("The policy file; its keys are the ones that count.")] = None
    gpu: Annotated[str | None, Option("GPU model of another node.", metavar="NAME")] = None
    gpus: access.Gpus = None
    driver: access.Driver = None
    here: Annotated[bool, Option("--here/--no-here", "Judge for this node, or for no node.")] = True
    mirror: Annotated[str, Option("Mirror profile to reach the registry with.", metavar="PROFILE")] = "user"
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
    node = access.DescribedNode(options.gpu, options.gpus, options.driver, options.here).facts(matrix)
    terms = access.terms(policy, node, matrix)
    repository = access.repository(reference, options.mirror)
    images = remote_images(repository, reference.wanted, access.architecture())
    if not images:
        message = f"{reference} has no image for {access.architecture()}"
        raise AbsentError(message, fix="name an image for this platform")
    image = images[0].manifest
    attached = read_proofs(repository, image)
    proofs = judge_image(attached.proofs, image, terms)
    name = str(reference.pinned(image))
    if options.as_json:
        click.echo(_document(name, proofs, attached.notes))
    else:
        _show(name, proofs, attached.notes)
        if options.gpu is not None and options.driver is None:
            access.say(access.NO_DRIVER)
        if proofs.judged and options.policy is None:
            access.say(access.NO_POLICY)
    sys.exit(0 if proofs.chosen is not None else 1)


def _show(image: str, proofs: ImageProofs, notes: list[str]) -> None:
    access.say(image)
    for proof in proofs.judged:
        access.say(f"{access.standing(proof):8}  {access.short(proof.digest)}  {access.ran_on(proof)}")
        if proof.refused is not None:
            access.say(f"    {proof.refused.reason.value}: {proof.refused.detail}")
    if not proofs.judged and proofs.refused is not None:
        access.say(f"{proofs.refused.reason.value}: {proofs.refused.detail}")
    for note in notes:
        access.say(f"note: {note}")


def _document(image: str, proofs: ImageProofs, notes: list[str]) -> str:
    rows = [
        {
            "digest": proof.digest,
            "holds": proof.refused is None,
            "signer": proof.signer,
            "reason": proof.refused.reason.value if proof.refused else None,
            "detail": proof.refused.detail if proof.refused else "",
            "statement": proof.statement,
        }
        for proof in proofs.judged
    ]
    reason = proofs.refused.reason.value if proofs.refused else None
    document = {"schema": "envcheck/proofs/1", "image": image, "reason": reason, "proofs": rows, "notes": notes}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
