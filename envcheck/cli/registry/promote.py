"""`envcheck promote`: move an alias to a proven image."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.registry import access
from envcheck.errors import ConfigError
from envcheck.matrix.file.load import load
from envcheck.registry import promotions
from envcheck.registry.attachments import is_own_or_fallback
from envcheck.registry.promotions import GateResult
from envcheck.registry.references import ImageReference, is_tag, parse_reference


@dataclass(frozen=True, kw_only=True)
class PromoteOptions:
    reference: Annotated[str, Argument(metavar="REF@sha256:...")]
    tags: Annotated[tuple[str, ...], Option("--to", "The alias to move. Repeatable.", metavar="TAG")]
    policy: Annotated[Path, Option("The policy that the proofs must meet.")]
    key: Annotated[Path, Option("The private key that signs the promotion.")]
    mirror: access.Mirror = "user"
    plan_only: Annotated[bool, Option("--dry-run", "Say whether the policy is met, and write nothing.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/promote/1.")] = False


@command_with(PromoteOptions)
def command(options: PromoteOptions, settings: Settings) -> None:
    """Promote an image to aliases, if its proofs meet the policy for each of the GPUs that it names.

    The promotion is signed, and the alias moves last: an interrupted promotion moves no alias; run it again to complete
    it. To promote into another repository, copy the image there first: `oras cp --recursive`.

    \b
    envcheck promote registry.example/torch@sha256:... --to stable \\
      --policy envcheck-policy.toml --key release

    Exit 0: the aliases name the image; 1: the policy is not met; 2: wrong usage; 3: the registry does not answer, or
    refuses.
    """
    source = parse_reference(options.reference)
    _check(options.tags, source)
    policy = access.policy(options.policy)
    key = access.private_key(options.key)
    if key.public.id not in {allowed.id for allowed in policy.keys}:
        message = f"{options.key}: the policy does not name this key, so that its promotion would not count"
        raise ConfigError(message, fix="add its .pub to proof.keys, or sign with a key that is there")
    terms = access.terms(policy, None, load(settings.matrix))
    for named in policy.promoted_on:
        access.refuse_unknown_gpu(named.gpu, f"{options.policy}: promote.gpus", terms.matrix)
    repository = access.repository(source, options.mirror)
    gates = promotions.gate(repository, source.wanted, terms)
    met = all(gate.refused is None for gate in gates)
    moves = met and not options.plan_only
    moved = promotions.promote(repository, options.tags, gates, key, terms) if moves else []
    if options.as_json:
        access.say_json(_document(source, gates, moved))
    else:
        _show(source, gates, moved)
    sys.exit(0 if met else 1)


def _check(tags: tuple[str, ...], source: ImageReference) -> None:
    if source.digest is None:
        message = f"{source} is not a digest, and a tag may move meanwhile"
        raise ConfigError(message, fix="pass REPOSITORY@sha256:..., as `envcheck publish` prints it")
    for tag in tags:
        if is_own_or_fallback(tag) or not is_tag(tag):
            message = f"--to {tag}: not a tag for an image, or reserved for what is attached to one"
            raise ConfigError(message, fix="use letters, digits, _, . and -, as in stable or 2.8")


def _show(source: ImageReference, gates: list[GateResult], moved: list[str]) -> None:
    for gate in gates:
        if gate.proof is not None:
            access.say(f"met      {gate.name}: {access.ran_on(gate.proof)}")
        elif gate.refused is not None:
            access.say(f"not met  {gate.name}: {gate.refused.reason.value}: {gate.refused.detail}")
    for alias in moved:
        access.say(f"promoted {alias} to {source}")


def _document(source: ImageReference, gates: list[GateResult], moved: list[str]) -> dict[str, object]:
    rows = [
        {"gpus": gate.name, "proof": gate.proof.digest if gate.proof else None, **access.why(gate.refused)}
        for gate in gates
    ]
    return {"schema": "envcheck/promote/1", "image": str(source), "gates": rows, "aliases": moved}
