"""Which image of a repository is taken: the newest that is proven for a node, or the one that an alias was promoted to.

A tag is never believed: whoever can write to the registry moves it. What its name says of torch decides which image is
looked at first; what counts is the cell in the proof, and a signed promotion for an alias.
"""

import collections
import datetime as dt
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import structs

from envcheck.errors import EnvcheckError, refuse
from envcheck.matrix.facts.model import Cell, key
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.registry import attachments, judge
from envcheck.registry.attachments import PROMOTION_TYPE, RemoteImage, fallback_tag, read_proofs, remote_images
from envcheck.registry.documents import AbsentError, LyingError
from envcheck.registry.envelope import open_envelope, sign
from envcheck.registry.judge import ImageProofs, JudgedProof, ListedProof, NamedGpus, ProofTerms, judge_image
from envcheck.registry.repository import Repository
from envcheck.registry.statement import (
    Digest,
    MalformedError,
    ProofRefusal,
    Rejection,
    Statement,
    decode_json,
    instant,
    written,
)
from envcheck.signing import PrivateKey
from envcheck.struct_types import LightRecord, know_types

_TAG: Final = re.compile(r"(?P<cell>\d+\.\d+\.\d+-(?:cpu|cu\d{2,4})-py3\d{1,2}t?)(?:-(?P<target>[a-z]+))?(?![a-z0-9])")
_AT_ONCE: Final = 8


class ImageQuery(LightRecord, frozen=True):
    """What is wanted of a repository: cells by a glob, one target, one architecture in an image's words (amd64)."""

    cells: str
    target: str
    arch: str


class ImageRefusal(LightRecord, frozen=True):
    """Why an image, or one of its proofs, was not chosen."""

    digest: str
    tags: tuple[str, ...]
    proof: str | None
    refused: Rejection


class ChosenImage(LightRecord, frozen=True):
    """The image, and the proof that it was chosen for."""

    digest: str
    proof: JudgedProof
    statement: Statement


class PullChoice(LightRecord, frozen=True):
    """What was chosen, or None, and what was refused on the way."""

    chosen: ChosenImage | None
    refused: list[ImageRefusal]


class _Screened(LightRecord, frozen=True):
    """An image with the tags that lead to it, what lies beside it, and what becomes of it without its evidence."""

    digest: str
    tags: tuple[str, ...]
    attached: list[ListedProof]
    proofs: ImageProofs


def choose_named(repository: Repository, tag_or_digest: str, arch: str, terms: ProofTerms) -> PullChoice:
    """Return the image of a tag or digest, if it is proven. A tag must be what was promoted last."""
    images = [image for image in remote_images(repository, tag_or_digest, arch) if image.arch == arch]
    tags = () if ":" in tag_or_digest else (tag_or_digest,)
    if not images:
        refused = Rejection(ProofRefusal.WRONG_ARCH, f"{tag_or_digest} has no image for {arch}")
        return PullChoice(None, [ImageRefusal(tag_or_digest, (), None, refused)])
    image = images[0]
    not_promoted = promoted(repository, tags[0], image.index_digest or image.manifest, terms) if tags else None
    if not_promoted is not None:
        return PullChoice(None, [ImageRefusal(image.manifest, tags, None, not_promoted)])
    return _best([_screened(repository, image.manifest, tags, terms)], None, terms)


def choose(repository: Repository, query: ImageQuery, terms: ProofTerms) -> PullChoice:
    """Return the newest image of the repository that is proven and wanted."""
    tags, best = repository.tags(), PullChoice(None, [])
    attached, seen = collections.defaultdict[str, list[str]](list), set[str]()
    for tag in tags:
        attached[tag.partition(".")[0]].append(tag)
    for torch, group in _newest_first([tag for tag in tags if not attachments.is_own_or_fallback(tag)], query):
        if best.chosen and torch is not None and torch < _torch(best.chosen.statement):
            break
        images, left_out = _images(repository, group, query.arch)

        def screen(digest: str, images: dict[str, list[str]] = images) -> _Screened:
            return _screened(repository, digest, tuple(images[digest]), terms, attached[fallback_tag(digest)])

        screened = map_in_threads(screen, [digest for digest in images if digest not in seen], _AT_ONCE)
        seen |= images.keys()
        found = _best(screened, query, terms)
        newest = max([each for each in (best.chosen, found.chosen) if each], key=_rank, default=None)
        best = PullChoice(newest, [*best.refused, *left_out, *found.refused])
    if best.chosen is None and not best.refused:
        why = f"no image for {query.arch} fits {query.cells}, target {query.target}"
        refused = Rejection(ProofRefusal.NO_PROOF, why if tags else "there is no such repository, or it has no tags")
        best = structs.replace(best, refused=[ImageRefusal(repository.reference.name, (), None, refused)])
    return best


def _images(repository: Repository, tags: Sequence[str], arch: str) -> tuple[dict[str, list[str]], list[ImageRefusal]]:
    """Return the tags of each image for an architecture by its digest, and the tags that lead to none."""

    def images(tag: str) -> list[RemoteImage] | ImageRefusal:
        try:
            return [image for image in remote_images(repository, tag, arch) if image.arch == arch]
        except (AbsentError, LyingError) as error:
            return ImageRefusal(tag, (tag,), None, Rejection(ProofRefusal.UNKNOWN_FORMAT, error.message))

    by_digest: dict[str, list[str]] = {}
    left_out: list[ImageRefusal] = []
    for tag, listed in zip(tags, map_in_threads(images, tags, _AT_ONCE), strict=True):
        if isinstance(listed, ImageRefusal):
            left_out.append(listed)
            continue
        for image in listed:
            by_digest.setdefault(image.manifest, []).append(tag)
    return by_digest, left_out


def _screened(
    repository: Repository, digest: str, tags: tuple[str, ...], terms: ProofTerms, listed: Sequence[str] | None = None
) -> _Screened:
    """Judge an image by all but its evidence, which takes longer than everything else together."""
    try:
        attached = read_proofs(repository, digest, listed)
    except LyingError as error:  # who can write to the registry could stop every pull with one image
        refused = Rejection(ProofRefusal.TAMPERED, error.message)
        return _Screened(digest, tags, [], ImageProofs([], None, refused))
    by_statement = structs.replace(terms, policy=structs.replace(terms.policy, rejudge=False))
    proofs = judge_image(attached, digest, by_statement)
    # What nobody chooses is not kept: many images, each with all that may be attached to one, would fill the memory.
    return _Screened(digest, tags, attached if proofs.chosen else [], proofs)


def _best(screened: Iterable[_Screened], query: ImageQuery | None, terms: ProofTerms) -> PullChoice:
    """Return the newest image whose proof holds by its evidence, too; images after it are not looked at so closely."""
    refused: list[ImageRefusal] = []
    holding: list[tuple[ChosenImage, _Screened]] = []
    for one in screened:
        image = _chosen(one, one.proofs, query)
        if image is None:
            refused += _refusals(one, one.proofs, query)
        else:
            holding.append((image, one))
    for _, one in sorted(holding, key=lambda pair: _rank(pair[0]), reverse=True):
        proofs = judge_image(one.attached, one.digest, terms)
        refused += _refusals(one, proofs, query)
        image = _chosen(one, proofs, query)
        if image is not None:
            return PullChoice(image, refused)
    return PullChoice(None, refused)


def _chosen(one: _Screened, proofs: ImageProofs, query: ImageQuery | None) -> ChosenImage | None:
    proof = proofs.chosen
    if proof is None or proof.statement is None or not _is_wanted(proof.statement, query):
        return None
    return ChosenImage(one.digest, proof, proof.statement)


def _refusals(one: _Screened, proofs: ImageProofs, query: ImageQuery | None) -> list[ImageRefusal]:
    if not proofs.judged and proofs.refused is not None:
        return [ImageRefusal(one.digest, one.tags, None, proofs.refused)]
    return [
        ImageRefusal(one.digest, one.tags, proof.digest, proof.refused)
        for proof in proofs.judged
        if proof.refused and (proof.statement is None or _is_wanted(proof.statement, query))
    ]


def _is_wanted(statement: Statement, query: ImageQuery | None) -> bool:
    facts = statement.facts
    return query is None or (fnmatch.fnmatchcase(facts.cell or "", query.cells) and facts.target in ("", query.target))


def _rank(one: ChosenImage) -> tuple[tuple[int, ...], str]:
    return _torch(one.statement), one.statement.facts.ended


def _torch(statement: Statement) -> tuple[int, ...]:
    cell = Cell.parse(statement.facts.cell or "")
    return key(cell.torch) if cell else ()


def _newest_first(tags: Sequence[str], query: ImageQuery) -> list[tuple[tuple[int, ...] | None, list[str]]]:
    """Return the tags that may be wanted by what they say of torch: those that say nothing first, then the newest."""
    groups = collections.defaultdict[tuple[int, ...] | None, list[str]](list)
    for tag in tags:
        match = _TAG.search(tag)
        if match is None:
            groups[None].append(tag)
        elif fnmatch.fnmatchcase(f"torch{match['cell']}", query.cells) and match["target"] in (None, query.target):
            groups[key(match["cell"].partition("-")[0])].append(tag)
    return sorted(groups.items(), key=lambda item: (item[0] is None, item[0] or ()), reverse=True)


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The word that an alias is to name an image. `proofs` are the digests of the proofs that were looked at."""

    schema: Literal["envcheck/promotion/1"] = "envcheck/promotion/1"
    alias: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    digest: Digest
    at: str
    proofs: list[Digest]


know_types(Promotion)


class NotProvenError(EnvcheckError):
    """The policy asks for what the image or its alias does not have (exit 1)."""

    exit_code = 1


class GateResult(LightRecord, frozen=True):
    """What the proofs say of one kind of GPUs that the policy names."""

    gpus: NamedGpus
    proof: JudgedProof | None
    refused: Rejection | None

    @property
    def name(self) -> str:
        """Return the GPUs as the policy writes them."""
        return f"{self.gpus.gpu} x{self.gpus.gpus}" if self.gpus.gpus else self.gpus.gpu


def judge_gpus(gpus: NamedGpus, images: Mapping[str, Sequence[ListedProof]], terms: ProofTerms) -> GateResult:
    """Judge the images for GPUs that the policy names, whatever their driver; one proof of one image suffices."""
    node = judge.NodeFacts(models=(gpus.gpu,), gpus=gpus.gpus) if gpus.gpus else None
    terms = structs.replace(terms, node=node)
    judged = [judge_image(listed, image, terms) for image, listed in images.items()]
    proof = next((one.chosen for one in judged if one.chosen), None)
    return GateResult(gpus, proof, None if proof else judged[0].refused)


def gate(repository: Repository, tag_or_digest: str, terms: ProofTerms) -> list[GateResult]:
    """Return, for each kind of GPUs that the policy names, or for any node, the proof that holds or why none does.

    Each image of an index has a result too where none of its proofs holds: engines take whichever fits their machine.
    """
    remotes = attachments.whole_images(repository, tag_or_digest)
    if len({image.arch for image in remotes}) != len(remotes):
        what = f"{repository.reference.name}: {tag_or_digest} has two images of one architecture"
        refuse(what, "promote one by its own digest", NotProvenError)
    kinds = terms.policy.promoted_on or (NamedGpus("any node", 0),)
    images = {image.manifest: read_proofs(repository, image.manifest) for image in remotes}
    found = [judge_gpus(gpus, images, terms) for gpus in kinds]
    for image in remotes if len(remotes) > 1 else ():
        alone = [judge_gpus(gpus, {image.manifest: images[image.manifest]}, terms) for gpus in kinds]
        if all(one.refused for one in alone):
            found.append(GateResult(NamedGpus(f"the image for {image.arch}", 0), None, alone[0].refused))
    return found


def promote(
    repository: Repository, tags: Sequence[str], gates: Sequence[GateResult], key: PrivateKey, terms: ProofTerms
) -> list[str]:
    """Sign the promotion of the image to each tag, move the tag after it, and return the aliases that were moved."""
    manifest = repository.manifest(repository.reference.wanted)
    proofs = sorted({one.proof.digest for one in gates if one.proof})
    for tag in tags:
        alias = alias_name(repository, tag)
        document = Promotion(alias=alias, digest=manifest.digest, at=written(terms.now), proofs=proofs)
        envelope = sign(msgspec.json.encode(document), PROMOTION_TYPE, key)
        attachments.attach(repository, manifest.descriptor, PROMOTION_TYPE, envelope)
        refused = refuse_alias(_signed(repository, manifest.digest, terms), alias, manifest.digest, terms.now)
        if refused is not None:
            refuse(f"{alias} was not moved: {refused.detail}", "check the clocks of who promotes", NotProvenError)
        repository.push_manifest(manifest.content, manifest.media_type, tag)
    return [alias_name(repository, tag) for tag in tags]


def alias_name(repository: Repository, tag: str) -> str:
    """Return an alias as promotions name it: a promotion is of one tag of one repository."""
    return f"{repository.reference.name}:{tag}"


def promoted(repository: Repository, tag: str, digest: str, terms: ProofTerms) -> Rejection | None:
    """Return why the image that a tag leads to is not the one that was promoted last; None where it is."""
    try:
        signed = _signed(repository, digest, terms)
    except NotProvenError as error:
        return Rejection(ProofRefusal.ALIAS_NOT_PROMOTED, error.message)
    return refuse_alias(signed, alias_name(repository, tag), digest, terms.now)


def refuse_alias(promotions: Sequence[Promotion], alias: str, digest: str, now: dt.datetime) -> Rejection | None:
    """Return why the newest promotion of an alias is not to this digest; None where it is."""
    mine = [one for one in promotions if one.alias == alias]
    newest = max((instant(one.at) for one in mine), default=now)
    named = sorted({one.digest for one in mine if instant(one.at) == newest})
    if not mine:
        why = f"nobody promoted {alias}; name the image by its digest, or promote it"
    elif newest > now + judge.CLOCK_SKEW:
        why = f"the promotion of {alias} is from the future"
    elif len(named) > 1:
        why = f"{alias} was promoted to {len(named)} images in the same second"
    elif named != [digest]:
        why = f"{alias} was promoted to {named[0]} at {written(newest)}, not to {digest}"
    else:
        return None
    return Rejection(ProofRefusal.ALIAS_NOT_PROMOTED, why)


def _signed(repository: Repository, digest: str, terms: ProofTerms) -> list[Promotion]:
    tags = repository.tags()
    promotions: list[Promotion] = []
    for subject in sorted({digest, *attachments.promotion_tags(tags)}):
        attached, unread = attachments.attached_promotions(repository, subject, tags)
        if unread:
            # It may be the newest: somebody who moves an alias back would hide it so.
            message = f"the promotion {unread[0]} cannot be read, and may be the newest"
            raise NotProvenError(message, fix="look at who wrote it; delete the tag if it is no promotion of yours")
        for envelope in attached:
            opened = open_envelope(envelope, PROMOTION_TYPE, terms.policy.keys)
            if isinstance(opened, Rejection):
                continue
            try:
                promotions.append(decode_json(opened.payload, Promotion))
                instant(promotions[-1].at)
            except MalformedError as error:
                what = f"{repository.reference.name}: a signed promotion cannot be read: {error}"
                refuse(what, "use a newer envcheck", NotProvenError)
    return promotions
