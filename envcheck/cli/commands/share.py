"""`envcheck publish`, `proof`, `pull` and `promote`: proofs beside images in their registry, and pulls by them."""

import datetime as dt
import platform
import re
import stat
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import msgspec

from envcheck import signing
from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, Options, command_with
from envcheck.cli.shared.process import beating, note, print_json
from envcheck.counting import printable
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.matrix.facts.lookup import find_gpu, hint_of, is_cut
from envcheck.matrix.facts.model import Matrix, Target
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.node.collect import collect
from envcheck.registry import choosing, publishing
from envcheck.registry.attachments import is_own_or_fallback, read_proofs, remote_images
from envcheck.registry.choosing import ChosenImage, ImageQuery, PullChoice, choose, choose_named
from envcheck.registry.documents import ARCHS, AbsentError, ImageReference, is_tag, parse_reference
from envcheck.registry.envelope import KeylessSigner
from envcheck.registry.judge import (
    DEFAULT,
    JudgedProof,
    NodeFacts,
    Policy,
    ProofTerms,
    judge_image,
    node_of,
    read_policy,
)
from envcheck.registry.repository import Repository, open_repository
from envcheck.registry.statement import ProofRefusal, Rejection
from envcheck.reports.model import load as load_report
from envcheck.signing import PrivateKey

_SHOWN: Final = 10
# A branch alone is older than each of its drivers, and covers nothing.
_DRIVER: Final = re.compile(r"\d{3,4}(\.\d+){1,3}", re.ASCII)
_NO_POLICY: Final = "no --policy was given, so no key is known; pass a file that names the public keys that count"
_Gpu = Annotated[str | None, Option("GPU model of another node; nothing is read from this one.", metavar="NAME")]
_Gpus = Annotated[int | None, Option("How many GPUs that node has; 1 if not given.", type=click.IntRange(1, 1024))]
_Driver = Annotated[
    str | None, Option("Full driver version of that node: 570.124.06; not compared if not given.", metavar="VERSION")
]
_Mirror = Annotated[str, Option("Mirror profile to reach the registry with.", metavar="PROFILE")]
_PolicyFile = Annotated[Path | None, Option("The policy file; its keys are the ones that count.")]


class PublishOptions(Options):
    reference: Annotated[str, Argument(metavar="REF")]
    report: Annotated[Path, Option("The report of `envcheck run --image`.")]
    key: Annotated[Path | None, Option("The private key that signs (`envcheck key new`).")] = None
    keyless: Annotated[bool, Option("Sign as this CI job, with its OIDC token and Sigstore.")] = False
    trust_config: Annotated[Path | None, Option("A Sigstore instance of your own, as ClientTrustConfig.")] = None
    policy: Annotated[Path | None, Option("Exit 1 unless the proof holds by it for the node that ran.")] = None
    undetermined: Annotated[bool, Option("Attach a report of exit 3 too; it neither proves nor revokes.")] = False
    replace: Annotated[bool, Option("Delete this key's older proofs of the same GPUs that add nothing to it.")] = False
    mirror: _Mirror = "user"
    as_json: Annotated[bool, Option("--json", "Print envcheck/publish/1.")] = False

    def __post_init__(self) -> None:
        if (self.key is not None) == self.keyless:
            message = "--key and --keyless exclude each other" if self.keyless else "no key to sign with"
            refuse(message, "pass --key FILE (`envcheck key new FILE` makes one) or --keyless")
        if self.trust_config and not self.keyless:
            refuse("--trust-config is for --keyless", "leave it out, or sign with --keyless")
        if self.replace and self.keyless:
            refuse("--replace deletes proofs of a key", "leave it out, or sign with --key")


@command_with(PublishOptions)
def publish(options: PublishOptions, settings: Settings) -> int:
    """Publish what a run of REF proved, beside the image in its registry."""
    judge_by = None if options.policy is None else (read_policy(options.policy), load_matrix(settings.matrix))
    key = _private_key(options.key) if options.key else None
    report, reference = load_report(options.report), parse_reference(options.reference)
    by = key or _keyless(options)
    repository = open_repository(reference, load_profile(options.mirror))
    prepared = publishing.prepare(repository, reference.wanted, report, undetermined=options.undetermined)
    done = publishing.publish(repository, prepared, by)
    judged, replaced = None, list[str]()
    try:
        if judge_by:
            # Only now: a proof may expire while somebody types a password, or while a registry is slow.
            by_now = terms(judge_by[0], node_of(report.snapshot), judge_by[1])
            judged = _read_back(repository, prepared.image.manifest, done.proof, by_now)
        if key and options.replace and not (judged and judged.refused):
            replaced = publishing.delete_replaced(repository, prepared, key.public)
    finally:
        # What was published is there, whatever came after it.
        _show_published(done, judged, replaced, as_json=options.as_json)
    return 1 if judged and judged.refused else 0


def _read_back(repository: Repository, image: str, proof: str, terms: ProofTerms) -> JudgedProof:
    judged = judge_image(read_proofs(repository, image), image, terms).judged
    lost = Rejection(ProofRefusal.NO_PROOF, "the registry took the proof, and does not list it")
    return next((one for one in judged if one.digest == proof), JudgedProof(proof, None, None, lost))


def _keyless(options: PublishOptions) -> KeylessSigner:
    if options.trust_config is None and load_profile(options.mirror).closed:
        refuse(
            f"the mirror profile {options.mirror} is closed, and --keyless asks Sigstore's public instance",
            "pass --trust-config with an instance of your own, or sign with --key",
        )
    return KeylessSigner(options.trust_config)


def _show_published(
    one: publishing.Publication, proof: JudgedProof | None, replaced: list[str], *, as_json: bool
) -> None:
    refused = proof.refused if proof else None
    if as_json:
        read_back = {"holds": None if proof is None else refused is None, **_why(refused)}
        row = {**msgspec.structs.asdict(one), "result": one.statement.word, "replaced": replaced, **read_back}
        print_json({"schema": "envcheck/publish/1", "published": [row]})
        return
    _say(
        f"published {one.statement.word} at level {one.statement.facts.level} beside",
        f"  {one.image}",
        f"  proof  {one.proof}",
        f"  signed by {one.signer}",
        *([f"  note: {one.note}"] if one.note else []),
        *(f"  deleted {digest}, which it replaces" for digest in replaced),
        *([f"  read back: {'refused' if refused else 'holds'} for the node that ran"] if proof else []),
        *([f"    {_because(refused)}"] if refused else []),
    )


class ProofOptions(Options):
    reference: Annotated[str, Argument(metavar="REF")]
    policy: _PolicyFile = None
    gpu: _Gpu = None
    gpus: _Gpus = None
    driver: _Driver = None
    here: Annotated[bool, Option("--here/--no-here", "Judge for this node, or for no node.")] = True
    mirror: _Mirror = "user"
    as_json: Annotated[bool, Option("--json", "Print envcheck/proofs/1.")] = False


@command_with(ProofOptions)
def proof(options: ProofOptions, settings: Settings) -> int:
    """List every proof beside REF: whether it holds for this node, and the reason if not."""
    reference, policy = parse_reference(options.reference), read_policy(options.policy) if options.policy else DEFAULT
    matrix = load_matrix(settings.matrix)
    elsewhere = any((options.gpu, options.gpus, options.driver))
    node = _node(options, matrix) if options.here or elsewhere else None
    repository = open_repository(reference, load_profile(options.mirror))
    images = remote_images(repository, reference.wanted, _architecture())
    if not images:
        refuse(f"{reference} has no image for {_architecture()}", "name an image for this platform", AbsentError)
    digest = images[0].manifest
    image = str(reference.pinned(digest))
    proofs = judge_image(read_proofs(repository, digest), digest, terms(policy, node, matrix))
    if options.as_json:
        reason = proofs.refused.reason.value if proofs.refused else None
        rows = [_row(one) for one in proofs.judged]
        print_json({"schema": "envcheck/proofs/1", "image": image, "reason": reason, "proofs": rows})
        return int(proofs.chosen is None)
    _say(image)
    for one in proofs.judged:
        _say(f"{'refused' if one.refused else 'holds':8}  {_short(one.digest)}  {_ran_on(one)}")
        _say(*([f"    {_because(one.refused)}"] if one.refused else []))
    if proofs.judged and options.policy is None:
        _say(_NO_POLICY)
    if not proofs.judged and proofs.refused is not None:
        _say(_because(proofs.refused))
    return int(proofs.chosen is None)


def _row(proof: JudgedProof) -> dict[str, Any]:
    shown = {"digest": proof.digest, "holds": proof.refused is None, "signer": proof.signer}
    return {**shown, "statement": proof.statement, **_why(proof.refused)}


class PullOptions(Options):
    what: Annotated[str | None, Argument(metavar="[CELL|REF]")] = None
    source: Annotated[str | None, Option("--from", "Choose in this repository.", metavar="REPOSITORY")] = None
    target: Annotated[
        Target | None,
        Option("Which target of a cell to choose with --from.  [default: runtime]"),
    ] = None
    policy: _PolicyFile = None
    gpu: _Gpu = None
    gpus: _Gpus = None
    driver: _Driver = None
    engine: Annotated[Literal["auto", "docker", "podman"], Option("Which engine pulls.")] = "auto"
    mirror: _Mirror = "user"
    plan_only: Annotated[bool, Option("--dry-run", "Choose and say why; pull nothing.")] = False
    list_all: Annotated[bool, Option("--all", "List what was refused, also where an image is chosen.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/pull/1.")] = False

    @property
    def query(self) -> ImageQuery:
        """Return what is chosen among the images of --from."""
        return ImageQuery(self.what or "*", self.target or "runtime", _architecture())

    @property
    def reference(self) -> ImageReference:
        """Return the repository, or the image. Raises ConfigError."""
        name = self.source or self.what
        if name is None or (self.source is None and "/" not in name):
            message = "no repository to pull from" if name is None else f"{name} names no repository"
            refuse(message, "add --from REPOSITORY, or pass REGISTRY/NAME:TAG")
        reference = parse_reference(name)
        if self.source is None and self.target is not None:
            message = f"--target {self.target} chooses among the images of --from"
            refuse(message, "leave it out, or pass --from REPOSITORY")
        if self.source is not None and (reference.tag or reference.digest):
            refuse(f"--from {self.source} names one image", "leave out the tag and digest, or pass it without --from")
        return reference


@command_with(PullOptions)
def pull(options: PullOptions, settings: Settings) -> int:
    """Pull the newest image that is proven for this node, by its digest."""
    reference, policy = options.reference, read_policy(options.policy) if options.policy else DEFAULT
    matrix = load_matrix(settings.matrix)
    by = terms(policy, _node(options, matrix), matrix)
    repository = open_repository(reference, load_profile(options.mirror))
    what = f"the images of {reference.name} are" if options.source else f"{reference.name} is"
    fewer = "; a CELL makes it fewer" if options.source and not options.what else ""
    with beating(f"{what} looked at{fewer}", quiet=settings.quiet):
        if options.source is None:
            choice = choose_named(repository, reference.wanted, _architecture(), by)
        else:
            choice = choose(repository, options.query, by)
    pulled = None
    if choice.chosen is not None and not options.plan_only:
        pulled = _pulled(str(reference.pinned(choice.chosen.digest)), choice.chosen, options.engine)
    if options.as_json:
        _print_choice(reference, choice, pulled, options)
    else:
        _show_choice(reference, choice, pulled, options)
    return int(choice.chosen is None)


def _pulled(pinned: str, chosen: ChosenImage, wanted: str) -> dict[str, str]:
    from envcheck.images import engines  # all but a real pull need none, and it is a tenth of their start

    try:
        engine = engines.find(wanted)
        if engine == "venv":
            refuse("neither docker nor podman answers", "", UnavailableError)
        connected = engines.connect(engine)
    except UnavailableError as error:
        fix = f"start the engine, or pass --dry-run and pull {pinned} elsewhere"
        raise UnavailableError(error.message, fix=fix) from error
    connected.pull(pinned)
    name = engines.local_name(engine, f"envcheck/torch:{local_tag(chosen)}")
    before, now = connected.inspect(name), connected.inspect(pinned)
    if before and now and before.id != now.id:
        note(f"{name} was the image {before.id[:19]} here, and is {now.id[:19]} now")
    connected.tag(pinned, name)
    return {"engine": engine, "name": name}


def local_tag(chosen: ChosenImage) -> str:
    """Return the tag of cell and target; of a proof that calls them what no tag can be, the image's digest."""
    facts = chosen.statement.facts
    tag = f"{(facts.cell or 'image').removeprefix('torch')}-{facts.target or 'runtime'}"
    return tag if is_tag(tag) else chosen.digest.replace(":", "-")


def _show_choice(
    reference: ImageReference, choice: PullChoice, pulled: dict[str, str] | None, options: PullOptions
) -> None:
    chosen = choice.chosen
    if chosen is not None:
        proven = f"  {chosen.statement.facts.cell}, proven: {_ran_on(chosen.proof)}"
        _say(str(reference.pinned(chosen.digest)), proven)
    else:
        _say(f"{reference}: no image is proven for this node")
    most = len(choice.refused) if options.list_all else 0 if chosen else _SHOWN
    for refusal in choice.refused[:most]:
        named = f" ({', '.join(refusal.tags[:2])})" if refusal.tags else ""
        by = f"proof {_short(refusal.proof)}: " if refusal.proof else ""
        _say(f"refused {_short(refusal.digest)}{named}: {refusal.refused.reason.value}")
        _say(f"    {by}{refusal.refused.detail}")
    if len(choice.refused) > most:
        _say(f"{len(choice.refused) - most} more refused; --all lists them")
    if chosen is None and options.policy is None:
        _say(_NO_POLICY)
    if pulled is not None:
        from envcheck.images import engines

        gpus = chosen is not None and chosen.statement.facts.mode == "gpu"
        _say(f"{pulled['engine']} run --rm -it {engines.run_options(pulled['engine'], gpus=gpus)} {pulled['name']}")


def _print_choice(
    reference: ImageReference, choice: PullChoice, pulled: dict[str, str] | None, options: PullOptions
) -> None:
    chosen, cells = choice.chosen, options.what if options.source else None
    refused = [
        {"digest": one.digest, "tags": one.tags, "proof": one.proof, **_why(one.refused)} for one in choice.refused
    ]
    print_json(
        {
            "schema": "envcheck/pull/1",
            "wanted": {"reference": str(reference), "cells": cells, "target": options.query.target},
            "chosen": str(reference.pinned(chosen.digest)) if chosen else None,
            "proof": chosen.proof.digest if chosen else None,
            "statement": chosen.statement if chosen else None,
            "pulled": pulled,
            "refused": refused,
        }
    )


class PromoteOptions(Options):
    reference: Annotated[str, Argument(metavar="REF@sha256:...")]
    tags: Annotated[tuple[str, ...], Option("--to", "The alias to move. Repeatable.", metavar="TAG")]
    policy: Annotated[Path, Option("The policy that the proofs must meet.")]
    key: Annotated[Path, Option("The private key that signs the promotion.")]
    mirror: _Mirror = "user"
    plan_only: Annotated[bool, Option("--dry-run", "Say whether the policy is met, and write nothing.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/promote/1.")] = False

    @property
    def source(self) -> ImageReference:
        """Return the image. Raise ConfigError unless it is named by digest, and each alias is a tag for images."""
        source = parse_reference(self.reference)
        if source.digest is None:
            message = f"{source} is not a digest, and a tag may move meanwhile"
            refuse(message, "pass REPOSITORY@sha256:..., as `envcheck publish` prints it")
        for tag in self.tags:
            if is_own_or_fallback(tag) or not is_tag(tag):
                message = f"--to {tag}: not a tag for an image, or reserved for what is attached to one"
                refuse(message, "use letters, digits, _, . and -, as in stable or 2.8")
        return source


@command_with(PromoteOptions)
def promote(options: PromoteOptions, settings: Settings) -> int:
    """Promote an image to aliases, if its proofs meet the policy for each of the GPUs that it names."""
    source, policy, key = options.source, read_policy(options.policy), _private_key(options.key)
    if key.public.id not in {allowed.id for allowed in policy.keys}:
        refuse(
            f"{options.key}: the policy does not name this key, so that its promotion would not count",
            "add its .pub to proof.keys, or sign with a key that is there",
        )
    by = terms(policy, None, load_matrix(settings.matrix))
    for named in policy.promoted_on:
        _refuse_unknown_gpu(named.gpu, f"{options.policy}: promote.gpus", by.matrix)
    repository = open_repository(source, load_profile(options.mirror))
    gates = choosing.gate(repository, source.wanted, by)
    met = all(gate.refused is None for gate in gates)
    moves = met and not options.plan_only
    moved = choosing.promote(repository, options.tags, gates, key, by) if moves else []
    if options.as_json:
        digests = [gate.proof.digest if gate.proof else None for gate in gates]
        rows = [{"gpus": g.name, "proof": proof, **_why(g.refused)} for g, proof in zip(gates, digests, strict=True)]
        print_json({"schema": "envcheck/promote/1", "image": str(source), "gates": rows, "aliases": moved})
        return int(not met)
    for gate in gates:
        if gate.proof is not None:
            _say(f"met      {gate.name}: {_ran_on(gate.proof)}")
        elif gate.refused is not None:
            _say(f"not met  {gate.name}: {_because(gate.refused)}")
    _say(*(f"promoted {alias} to {source}" for alias in moved))
    return int(not met)


def _node(options: ProofOptions | PullOptions, matrix: Matrix) -> NodeFacts:
    if options.driver is not None and not _DRIVER.fullmatch(options.driver):
        message = f"--driver {options.driver} is not a whole driver version"
        refuse(message, "write it as nvidia-smi prints it: 570.124.06")
    if options.gpu is not None:
        _refuse_unknown_gpu(options.gpu, "--gpu", matrix)
        return NodeFacts((options.gpu,), options.gpus or 1, options.driver, platform.machine())
    if options.gpus is not None or options.driver is not None:
        given = "--gpus" if options.gpus is not None else "--driver"
        refuse(f"{given} describes a node whose GPU is not named", "add --gpu NAME")
    return node_of(collect())


def _refuse_unknown_gpu(name: str, where: str, matrix: Matrix) -> None:
    """Refuse a short name that the matrix does not have; a proof names its GPU as the driver does, or by that name."""
    if not is_cut(name) and (name.startswith("NVIDIA ") or find_gpu(matrix, name) is not None):
        return
    message = f"{where} {name[:60]!r}: no such GPU in the matrix"
    refuse(message, f"{hint_of(matrix, name)} (or write it as nvidia-smi prints it: NVIDIA ...)")


def _architecture() -> str:
    return ARCHS.get(platform.machine(), platform.machine())


def terms(policy: Policy, node: NodeFacts | None, matrix: Matrix) -> ProofTerms:
    """Return what proofs are judged by now."""
    return ProofTerms(policy, node, dt.datetime.now(dt.timezone.utc).replace(microsecond=0), matrix)


def _private_key(path: Path) -> PrivateKey:
    """Return the key in a file, with the password of the environment, or one that is typed at a terminal."""
    secret = signing.password()
    try:
        key = signing.load_private(path, secret)
    except ConfigError as error:
        if secret is not None or signing.PASSWORD not in error.fix or not sys.stdin.isatty():
            raise
        typed: str = click.prompt(f"password of {path}", hide_input=True, default="", show_default=False, err=True)
        key = signing.load_private(path, typed.encode())
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        note(f"other users of this machine can read the key {path}; run: chmod 600 {path}")
    return key


def _say(*lines: str) -> None:
    """Print lines. What a registry or a proof calls itself steers no terminal, and makes no line of its own."""
    for line in lines:
        click.echo(printable(" ".join(line.splitlines())))


def _because(refused: Rejection) -> str:
    return f"{refused.reason.value}: {refused.detail}"


def _why(refused: Rejection | None) -> dict[str, str | None]:
    return {"reason": refused.reason.value if refused else None, "detail": refused.detail if refused else ""}


def _short(name: str) -> str:
    return name[:19] if name.startswith("sha256:") else name


def _ran_on(proof: JudgedProof) -> str:
    if proof.statement is None:
        return "is not trusted"
    facts, covers = proof.statement.facts, proof.statement.facts.covers
    where = f"{covers.gpu} x{covers.gpus}, driver {covers.driver}" if facts.mode == "gpu" else f"CPU {covers.arch}"
    return f"{proof.statement.word.lower()}, level {facts.level}, {where}, {facts.ended}"
