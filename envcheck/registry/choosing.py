"""Choose the newest image of a repository that is proven for a node, and say why each newer one is not.

A tag is never believed. What a tag's name says of torch only decides which image is looked at first; what counts is the
cell in the proof. Newest torch comes first, then the newest proof.
"""

import collections
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from envcheck.matrix.facts.model import Cell, key
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.registry.attachments import RemoteImage, fallback_tag, is_own_or_fallback, read_proofs, remote_images
from envcheck.registry.judge import ImageProofs, JudgedProof, ListedProof, ProofTerms, judge_image
from envcheck.registry.promotions import promoted
from envcheck.registry.references import AbsentError, LyingError
from envcheck.registry.repository import Repository
from envcheck.registry.statement import ProofRefusal, Rejection, Statement
from envcheck.struct_types import LightRecord

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
    for tag in tags:
        not_promoted = promoted(repository, tag, image.index_digest or image.manifest, terms)
        if not_promoted is not None:
            return PullChoice(None, [ImageRefusal(image.manifest, tags, None, not_promoted)])
    return _best([_screened(repository, image.manifest, tags, terms)], None, terms)


def choose(repository: Repository, query: ImageQuery, terms: ProofTerms) -> PullChoice:
    """Return the newest image of the repository that is proven and wanted."""
    tags, best = repository.tags(), PullChoice(None, [])
    attached, seen = collections.defaultdict[str, list[str]](list), set[str]()
    for tag in tags:
        attached[tag.partition(".")[0]].append(tag)
    for torch, group in _newest_first([tag for tag in tags if not is_own_or_fallback(tag)], query):
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
            return remote_images(repository, tag, arch)
        except (AbsentError, LyingError) as error:
            return ImageRefusal(tag, (tag,), None, Rejection(ProofRefusal.UNKNOWN_FORMAT, error.message))

    by_digest: dict[str, list[str]] = {}
    left_out: list[ImageRefusal] = []
    for tag, listed in zip(tags, map_in_threads(images, tags, _AT_ONCE), strict=True):
        if isinstance(listed, ImageRefusal):
            left_out.append(listed)
            continue
        for image in listed:
            if image.arch == arch:
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
    return _Screened(digest, tags, attached, judge_image(attached, digest, by_statement))


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
    """Return what was refused, but for proofs of images that are not wanted."""
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
