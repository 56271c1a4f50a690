"""Choose the newest image of a repository that is proven for a node, and say why each newer one is not.

A tag is never believed. What a tag's name says of torch only decides which image is looked at first; what counts is the
cell in the proof. Newest torch comes first, then the newest proof.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from envcheck.matrix.facts.model import Cell, key
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.registry.attached_proofs import AttachedProofs, read_proofs, remote_images
from envcheck.registry.attachments import fallback_tag, is_own_or_fallback
from envcheck.registry.evidence import RemoteImage
from envcheck.registry.judge import ImageProofs, JudgedProof, ProofTerms, judge_image
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


class ImageCandidate(LightRecord, frozen=True):
    """An image of the repository, and the tags that lead to it."""

    digest: str
    tags: tuple[str, ...]


class ImageRefusal(LightRecord, frozen=True):
    """Why an image, or one of its proofs, was not chosen."""

    digest: str
    tags: tuple[str, ...]
    proof: str | None
    refused: Rejection


class ChosenImage(LightRecord, frozen=True):
    """The image, and the proof that it was chosen for."""

    candidate: ImageCandidate
    proof: JudgedProof
    statement: Statement


class ScreenedImage(LightRecord, frozen=True):
    """What lies beside an image, and what becomes of it without its evidence."""

    candidate: ImageCandidate
    attached: AttachedProofs
    proofs: ImageProofs


class PullChoice(LightRecord, frozen=True):
    """What was chosen, or None; what was refused on the way, and notes on the registry."""

    chosen: ChosenImage | None
    refused: list[ImageRefusal]
    notes: list[str]


def choose_named(repository: Repository, tag_or_digest: str, arch: str, terms: ProofTerms) -> PullChoice:
    """Return the image of a tag or digest, if it is proven. A tag must be what was promoted last."""
    images = [image for image in remote_images(repository, tag_or_digest, arch) if image.arch == arch]
    if not images:
        refused = Rejection(ProofRefusal.WRONG_ARCH, f"{tag_or_digest} has no image for {arch}")
        return PullChoice(None, [ImageRefusal(tag_or_digest, (), None, refused)], [])
    image = images[0]
    tag = tag_or_digest if ":" not in tag_or_digest else None
    if tag is not None:
        not_promoted = promoted(repository, tag, image.index_digest or image.manifest, terms)
        if not_promoted is not None:
            return PullChoice(None, [ImageRefusal(image.manifest, (tag,), None, not_promoted)], [])
    candidate = ImageCandidate(image.manifest, (tag,) if tag else ())
    return _best([_screened(repository, candidate, terms)], None, terms)


def choose(repository: Repository, query: ImageQuery, terms: ProofTerms) -> PullChoice:
    """Return the newest image of the repository that is proven and wanted."""
    tags = repository.tags()
    candidate_tags = [tag for tag in tags if not is_own_or_fallback(tag) and _may_be(tag, query)]
    attached_tags: dict[str, list[str]] = {}
    for tag in tags:
        attached_tags.setdefault(tag.partition(".")[0], []).append(tag)
    best: PullChoice = PullChoice(None, [], [])
    screened_digests: set[str] = set()
    for torch, group in _newest_first(candidate_tags):
        if best.chosen and torch is not None and torch < _torch(best.chosen.statement):
            break
        of_group, notes = _candidates(repository, group, query.arch)
        candidates = [one for one in of_group if one.digest not in screened_digests]
        screened_digests |= {one.digest for one in candidates}

        def screen(one: ImageCandidate) -> ScreenedImage:
            return _screened(repository, one, terms, attached_tags.get(fallback_tag(one.digest), []))

        screened = map_in_threads(screen, candidates, _AT_ONCE)
        group_choice = _best(screened, query, terms)
        newest = max([each for each in (best.chosen, group_choice.chosen) if each], key=_rank, default=None)
        best = PullChoice(newest, [*best.refused, *group_choice.refused], [*best.notes, *notes, *group_choice.notes])
    if best.chosen is None and not best.refused:
        why = f"no image for {query.arch} fits {query.cells}, target {query.target}"
        refused = Rejection(ProofRefusal.NO_PROOF, why if tags else "the repository is empty, or its name is wrong")
        best = structs.replace(best, refused=[ImageRefusal(repository.reference.name, (), None, refused)])
    return best


def _screened(
    repository: Repository, candidate: ImageCandidate, terms: ProofTerms, tags: Sequence[str] | None = None
) -> ScreenedImage:
    """Judge an image by all but its evidence, which takes longer than everything else together."""
    try:
        attached = read_proofs(repository, candidate.digest, tags)
    except LyingError as error:  # who can write to the registry could stop every pull with one image
        refused = Rejection(ProofRefusal.TAMPERED, error.message)
        return ScreenedImage(candidate, AttachedProofs([], []), ImageProofs([], None, refused))
    by_statement = structs.replace(terms, policy=structs.replace(terms.policy, rejudge=False))
    return ScreenedImage(candidate, attached, judge_image(attached.proofs, candidate.digest, by_statement))


def _best(screened: Iterable[ScreenedImage], query: ImageQuery | None, terms: ProofTerms) -> PullChoice:
    """Return the newest image whose proof holds by its evidence, too; images after it are not looked at so closely."""
    refused: list[ImageRefusal] = []
    notes: list[str] = []
    holding: list[tuple[ChosenImage, ScreenedImage]] = []
    for screened_image in screened:
        notes += screened_image.attached.notes
        image = _chosen_image(screened_image.candidate, screened_image.proofs, query)
        if image is None:
            refused += _refusals(screened_image.candidate, screened_image.proofs, query)
        else:
            holding.append((image, screened_image))
    for _, screened_image in sorted(holding, key=lambda pair: _rank(pair[0]), reverse=True):
        proofs = judge_image(screened_image.attached.proofs, screened_image.candidate.digest, terms)
        refused += _refusals(screened_image.candidate, proofs, query)
        image = _chosen_image(screened_image.candidate, proofs, query)
        if image is not None:
            return PullChoice(image, refused, notes)
    return PullChoice(None, refused, notes)


def _chosen_image(candidate: ImageCandidate, proofs: ImageProofs, query: ImageQuery | None) -> ChosenImage | None:
    proof = proofs.chosen
    if proof is None or proof.statement is None or not (query is None or _fits_query(proof.statement, query)):
        return None
    return ChosenImage(candidate, proof, proof.statement)


def _refusals(candidate: ImageCandidate, proofs: ImageProofs, query: ImageQuery | None) -> list[ImageRefusal]:
    """Return what was refused, but for proofs of images that are not wanted."""
    if not proofs.judged and proofs.refused is not None:
        return [ImageRefusal(candidate.digest, candidate.tags, None, proofs.refused)]
    return [
        ImageRefusal(candidate.digest, candidate.tags, proof.digest, proof.refused)
        for proof in proofs.judged
        if proof.refused and (query is None or proof.statement is None or _fits_query(proof.statement, query))
    ]


def _rank(one: ChosenImage) -> tuple[tuple[int, ...], str]:
    return _torch(one.statement), one.statement.facts.ended


def _torch(statement: Statement) -> tuple[int, ...]:
    cell = Cell.parse(statement.facts.cell or "")
    return key(cell.torch) if cell else ()


def _fits_query(statement: Statement, query: ImageQuery) -> bool:
    facts = statement.facts
    return fnmatch.fnmatchcase(facts.cell or "", query.cells) and facts.target in ("", query.target)


def _may_be(tag: str, query: ImageQuery) -> bool:
    """Tell whether a tag's image may be wanted; one whose name says nothing of a cell may be."""
    match = _TAG.search(tag)
    if match is None:
        return True
    return fnmatch.fnmatchcase(f"torch{match['cell']}", query.cells) and match["target"] in (None, query.target)


def _candidates(repository: Repository, tags: Sequence[str], arch: str) -> tuple[list[ImageCandidate], list[str]]:
    """Return the images for an architecture behind these tags, each once, and notes on tags that lead to none."""
    notes: list[str] = []
    known: dict[str, RemoteImage] = {}

    def images(tag: str) -> list[RemoteImage]:
        try:
            return remote_images(repository, tag, arch, known)
        except (AbsentError, LyingError) as error:
            notes.append(f"the tag {tag} was left out: {error.message}")
            return []

    images_by_tag = map_in_threads(images, tags, _AT_ONCE)
    by_digest: dict[str, list[str]] = {}
    for tag, listed in zip(tags, images_by_tag, strict=True):
        for image in listed:
            if image.arch == arch:
                by_digest.setdefault(image.manifest, []).append(tag)
    return [ImageCandidate(digest, tuple(names)) for digest, names in by_digest.items()], sorted(notes)


def _newest_first(tags: Sequence[str]) -> list[tuple[tuple[int, ...] | None, list[str]]]:
    """Return the tags by what they say of torch: those that say nothing first, then the newest."""
    groups: dict[tuple[int, ...] | None, list[str]] = {}
    for tag in tags:
        match = _TAG.search(tag)
        groups.setdefault(key(match["cell"].partition("-")[0]) if match else None, []).append(tag)
    return sorted(groups.items(), key=lambda item: (item[0] is None, item[0] or ()), reverse=True)
