"""`envcheck pull`: fetch the newest image that is proven for this node."""

import sys
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.registry import access
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import engines
from envcheck.images.engines import GPUS
from envcheck.matrix.file.load import load
from envcheck.registry.choosing import ChosenImage, ImageQuery, PullChoice, choose, choose_named
from envcheck.registry.references import ImageReference, is_tag, parse_reference

_SHOWN: Final = 10
_TARGET: Final = "runtime"


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    what: Annotated[str | None, Argument(metavar="[CELL|REF]")] = None
    source: Annotated[
        str | None, Option("--from", "Choose in this repository; the argument is a cell or glob.", metavar="REPOSITORY")
    ] = None
    target: Annotated[
        Literal["runtime", "devel", "train", "jupyter"] | None,
        Option("Which target of a cell to choose with --from.  [default: runtime]"),
    ] = None
    policy: access.PolicyFile = None
    gpu: Annotated[str | None, Option("GPU model of another node; nothing is read from this one.", metavar="NAME")] = (
        None
    )
    gpus: access.Gpus = None
    driver: access.Driver = None
    engine: Annotated[Literal["auto", "docker", "podman"], Option("Which engine pulls.")] = "auto"
    mirror: access.Mirror = "user"
    plan_only: Annotated[bool, Option("--dry-run", "Choose and say why; pull nothing.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/pull/1.")] = False


@command_with(PullOptions)
def command(options: PullOptions, settings: Settings) -> None:
    """Pull the newest image that is proven for this node, by its digest.

    With --from, all images of the repository are considered: newest torch first, then the newest proof. With REF,
    that image alone; a tag counts only if it names what was promoted to it last (`envcheck promote`).

    \b
    envcheck pull --from registry.example/torch --policy envcheck-policy.toml
    envcheck pull 'torch2.8*' --from registry.example/torch --policy POLICY
    envcheck pull registry.example/torch@sha256:... --policy POLICY --dry-run

    Exit 0: pulled, or chosen with --dry-run; 1: no image is proven for this node; 2: wrong usage; 3: the registry or
    the engine does not answer.
    """
    reference = _reference(options)
    policy, matrix = access.policy(options.policy), load(settings.matrix)
    node = access.described_node(options.gpu, options.gpus, options.driver, matrix)
    terms = access.terms(policy, node, matrix)
    repository = access.repository(reference, options.mirror)
    if options.source is None:
        choice = choose_named(repository, reference.wanted, access.architecture(), terms)
    else:
        query = ImageQuery(options.what or "*", options.target or _TARGET, access.architecture())
        choice = choose(repository, query, terms)
    pulled = None
    if choice.chosen is not None and not options.plan_only:
        pulled = _pull(reference, choice.chosen, options)
    if options.as_json:
        access.say_json(_document(reference, choice, pulled, options))
    else:
        _show(reference, choice, pulled, options)
    sys.exit(0 if choice.chosen is not None else 1)


def _reference(options: PullOptions) -> ImageReference:
    name = options.source or options.what
    if name is None or (options.source is None and "/" not in name):
        message = "no repository to pull from" if name is None else f"{name} names no repository"
        raise ConfigError(message, fix="add --from REPOSITORY, or pass REGISTRY/NAME:TAG")
    reference = parse_reference(name)
    if options.source is None and options.target is not None:
        message = f"--target {options.target} chooses among the images of --from"
        raise ConfigError(message, fix="leave it out, or pass --from REPOSITORY")
    if options.source is not None and (reference.tag or reference.digest):
        message = f"--from {options.source} names one image"
        raise ConfigError(message, fix="leave out the tag and digest, or pass it without --from")
    return reference


def _pull(reference: ImageReference, chosen: ChosenImage, options: PullOptions) -> dict[str, str]:
    """Return the engine that has the image now, and the local name."""
    pinned = str(reference.pinned(chosen.digest))
    try:
        engine = engines.find(options.engine)
        if engine == "venv":
            message = "neither docker nor podman answers"
            raise UnavailableError(message, fix="")  # noqa: TRY301 (its fix is that of the others)
        connected = engines.connect(engine)
        connected.pull(pinned)
    except UnavailableError as error:
        fix = f"start the engine, or pass --dry-run and pull {pinned} elsewhere"
        raise UnavailableError(error.message, fix=fix) from error
    name = engines.local_name(engine, f"envcheck/torch:{local_tag(chosen)}")
    connected.tag(pinned, name)
    return {"engine": engine, "name": name}


def local_tag(chosen: ChosenImage) -> str:
    """Return the tag of cell and target; of a proof that calls them what no tag can be, the image's digest."""
    facts = chosen.statement.facts
    tag = f"{(facts.cell or 'image').removeprefix('torch')}-{facts.target or 'runtime'}"
    return tag if is_tag(tag) else chosen.digest.replace(":", "-")


def _show(reference: ImageReference, choice: PullChoice, pulled: dict[str, str] | None, options: PullOptions) -> None:
    chosen = choice.chosen
    if chosen is not None:
        access.say(str(reference.pinned(chosen.digest)))
        access.say(f"  {chosen.statement.facts.cell}, proven: {access.ran_on(chosen.proof)}")
    else:
        access.say(f"{reference}: no image is proven for this node")
    for refusal in choice.refused[:_SHOWN]:
        named = f" ({', '.join(refusal.tags[:2])})" if refusal.tags else ""
        access.say(f"refused {access.short(refusal.digest)}{named}: {refusal.refused.reason.value}")
        proof = f"proof {access.short(refusal.proof)}: " if refusal.proof else ""
        access.say(f"    {proof}{refusal.refused.detail}")
    if len(choice.refused) > _SHOWN:
        access.say(f"and {len(choice.refused) - _SHOWN} more; --json lists all")
    if chosen is None and options.policy is None:
        access.say(access.NO_POLICY)
    if pulled is not None:
        engine, name = pulled["engine"], pulled["name"]
        gpu = f"{GPUS[engine]} " if chosen and chosen.statement.facts.mode == "gpu" else ""
        access.say(f"{engine} run --rm -it {gpu}{name}")


def _document(
    reference: ImageReference, choice: PullChoice, pulled: dict[str, str] | None, options: PullOptions
) -> dict[str, object]:
    chosen = choice.chosen
    cells = options.what if options.source else None
    refused = [
        {"digest": one.digest, "tags": one.tags, "proof": one.proof, **access.why(one.refused)}
        for one in choice.refused
    ]
    return {
        "schema": "envcheck/pull/1",
        "wanted": {"reference": str(reference), "cells": cells, "target": options.target or _TARGET},
        "chosen": str(reference.pinned(chosen.digest)) if chosen else None,
        "proof": chosen.proof.digest if chosen else None,
        "statement": chosen.statement if chosen else None,
        "pulled": pulled,
        "refused": refused,
    }
