"""Find what is attached to an image: the union of three places, none of which is believed.

The referrers API may be missing, or answer with nothing; the fallback index loses entries when two write it, and holds
what anybody put there; own tags may be deleted. Each manifest that one of them names is read, hashed, and must itself
name the subject. What a descriptor says of a manifest (type, annotations) is not used.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec

from envcheck.registry.oci.attachments import fallback_tag, own_start, own_tags
from envcheck.registry.oci.documents import Descriptor, ImageManifest
from envcheck.registry.oci.references import is_digest
from envcheck.registry.oci.registry_errors import AbsentError, LyingError, RegistryUnavailableError
from envcheck.registry.oci.repository import Repository
from envcheck.struct_types import LightRecord, know_types

# Manifests that are read at once, and the most that are attached to one image before something is wrong.
_AT_ONCE: Final = 8
_MOST: Final = 10_000
# Statuses by which a registry says that it has no referrers API.
_NO_API: Final = (400, 404, 405, 501)

Reason = Literal["tampered", "wrong-subject"]


class _List(msgspec.Struct):
    manifests: list[Any]


know_types(_List)


class Referrer(LightRecord, frozen=True):
    """An artifact that is attached to the subject: read, hashed, and naming the subject itself."""

    descriptor: Descriptor
    manifest: ImageManifest
    content: bytes


class RefusedReferrer(LightRecord, frozen=True):
    """What was listed and must not count: `named` is its digest or tag."""

    named: str
    reason: Reason
    detail: str


class Referrers(LightRecord, frozen=True):
    """What is attached to a manifest. `dangling` was listed and is gone; it may have been deleted on purpose."""

    artifacts: list[Referrer]
    dangling: list[str]
    refused: list[RefusedReferrer]
    notes: list[str]


class StatedArtifacts(LightRecord, frozen=True):
    """Artifacts of one type that need not be read: `digests` returns those that another artifact names exactly.

    A digest stands for its bytes, so that what is stated to be of this type cannot be anything else.
    """

    kind: str
    digests: Callable[[Referrer], list[str]]


def referrers(
    repository: Repository,
    subject: str,
    tags: Sequence[str] | None = None,
    unread: StatedArtifacts | None = None,
) -> Referrers:
    """Return what is attached to a digest, in the order of the digests.

    `tags` are those of the repository, for a caller that asks for many subjects. What a list says that it is `unread`
    is read last, and not at all if an artifact that was read states its digest. Raise an error if one of the places
    cannot be read: what it would have listed may be a failure that revokes an earlier success.
    """
    notes: list[str] = []
    listed = {**_from_api(repository, subject, notes), **_from_index(repository, subject, notes)}
    tagged = own_tags(subject, repository.tags() if tags is None else tags)
    total = len(listed) + len(tagged)
    if total > _MOST:
        message = f"{repository.reference.name} lists {total} artifacts for {subject}, more than {_MOST}"
        raise LyingError(message, fix="delete what nobody needs, or use another repository")
    last = {digest for digest, kind in listed.items() if unread is not None and kind == unread.kind}
    results = _read_all(repository, subject, {digest: "" for digest in listed if digest not in last})
    stated = _stated(results, unread) & last
    results += _read_all(repository, subject, dict.fromkeys(sorted(last - stated), ""))
    # Only what was read stands for its own tag: a list may name a digest that begins like that of another artifact.
    read = {own_start(one.descriptor.digest) for one in results if isinstance(one, Referrer)} | set(
        map(own_start, stated)
    )
    results += _read_all(repository, subject, {tag: start for tag, start in tagged.items() if start not in read})
    by_digest = {one.descriptor.digest: one for one in results if isinstance(one, Referrer)}
    refused = [one for one in results if isinstance(one, RefusedReferrer)]
    absent = [one for one in results if isinstance(one, str)]
    listed_starts = {own_start(name) for name in (*absent, *(one.named for one in refused)) if is_digest(name)}
    return Referrers(
        artifacts=[by_digest[digest] for digest in sorted(by_digest)],
        dangling=sorted(name for name in absent if name not in by_digest and tagged.get(name) not in listed_starts),
        refused=[one for one in refused if tagged.get(one.named) not in listed_starts],
        notes=notes,
    )


def _stated(results: Sequence[Referrer | RefusedReferrer | str], unread: StatedArtifacts | None) -> set[str]:
    if unread is None:
        return set()
    return {digest for one in results if isinstance(one, Referrer) for digest in unread.digests(one)}


def _read_all(
    repository: Repository, subject: str, starts: Mapping[str, str]
) -> list[Referrer | RefusedReferrer | str]:
    """Read digests and own tags at once; the value of a tag is how its digest begins."""

    def read(name: str) -> Referrer | RefusedReferrer | str:
        return _read(repository, subject, name, starts[name])

    if len(starts) <= 1:
        return [read(name) for name in starts]
    with concurrent.futures.ThreadPoolExecutor(min(_AT_ONCE, len(starts))) as pool:
        return list(pool.map(read, starts))


def _read(repository: Repository, subject: str, name: str, start: str) -> Referrer | RefusedReferrer | str:
    """Return the artifact of a digest or an own tag, or why it does not count; its name alone if it is gone."""
    try:
        manifest = repository.manifest(name)
        named = manifest.subject
        image = manifest.image()
    except AbsentError:
        return name
    except LyingError as error:
        return RefusedReferrer(name, "tampered", error.message)
    if start and not manifest.digest.startswith(f"sha256:{start}"):
        return RefusedReferrer(name, "tampered", f"the tag {name} leads to {manifest.digest}")
    if named is None or named.digest != subject:
        other = "nothing" if named is None else named.digest
        return RefusedReferrer(name, "wrong-subject", f"{manifest.digest} is attached to {other}")
    return Referrer(manifest.descriptor, image, manifest.content)


def _from_index(repository: Repository, subject: str, notes: list[str]) -> dict[str, str]:
    """Return the digests in the fallback index. Some registries resolve its tag to the subject itself."""
    tag = fallback_tag(subject)
    try:
        manifest = repository.manifest(tag)
    except AbsentError:
        return {}
    except LyingError as error:
        notes.append(f"the index {tag} was not used: {error.message}")
        return {}
    if manifest.digest == subject or not manifest.is_index:
        notes.append(f"the tag {tag} leads to no index of artifacts; it was not used")
        return {}
    return _listed(manifest.content, f"the index {tag}", notes)


def _from_api(repository: Repository, subject: str, notes: list[str]) -> dict[str, str]:
    """Return the digests that the referrers API lists. Registries without one answer 404, or 200 with anything."""
    path = f"/v2/{repository.reference.repository}/referrers/{subject}"
    digests: dict[str, str] = {}
    if repository.lacks_referrers:
        return digests
    for number, reply in enumerate(repository.pages(path, f"the referrers of {subject[:19]}", (200, *_NO_API))):
        if reply.status not in _NO_API:
            digests |= _listed(reply.body, "the referrers API", notes)
            if len(digests) > _MOST:
                break  # `referrers` refuses so many; all pages of them would fill the memory
        elif number:
            message = f"{repository.reference.registry} lists the referrers of {subject[:19]} in part only"
            raise RegistryUnavailableError(message, fix="try again; ask who runs the registry")
        elif reply.status == HTTPStatus.NOT_FOUND and not _is_error(reply.body):
            repository.lacks_referrers = True  # no words of a registry: there is no such path, whatever the subject
    return digests


def _is_error(body: bytes) -> bool:
    """Tell whether an answer is an error as registries write it, which may be about this subject alone."""
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _listed(content: bytes, where: str, notes: list[str]) -> dict[str, str]:
    """Return the digests of a list, and the artifact types that it states; a bad entry does not hide the others."""
    try:
        entries = msgspec.json.decode(content, type=_List).manifests
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        notes.append(f"{where} answers with no list; it was not used")
        return {}
    named = [(entry.get("digest"), str(entry.get("artifactType", ""))) for entry in entries if isinstance(entry, dict)]
    usable = [(digest, kind) for digest, kind in named if isinstance(digest, str) and is_digest(digest)]
    if len(usable) < len(entries):
        notes.append(f"{where}: {len(entries) - len(usable)} entries name no sha256 digest; they were not used")
    return dict(usable)
