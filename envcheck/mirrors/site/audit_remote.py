"""Judge a mirror from outside, by what it sends: whatever is wrong there can only be said."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from envcheck.errors import UnavailableError
from envcheck.mirrors.hf import Reference, Revision, file_url
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.locate import Found, Need, locate
from envcheck.mirrors.profile import Index
from envcheck.mirrors.site.audit import Cache, Finding
from envcheck.mirrors.site.audit_disk import CHUNK
from envcheck.mirrors.urls import host_of


def refuse_silent(base: str, client: Client) -> None:
    """Raise UnavailableError where nobody answers there at all: it would be said of every file."""
    try:
        client.get(f"{base}/").close()
    except NetworkError as error:
        with contextlib.suppress(NetworkError):  # it is there, and merely sends its visitors somewhere odd
            if client.shake(base) is not None:
                return
        message = f"nobody to audit at {host_of(base)}: {error}"
        raise UnavailableError(message, fix="check the URL, and --ca where its authority is private") from error


def listed(base: str, needs: Iterable[Need], client: Client) -> tuple[list[Found], list[Finding]]:
    """Return where the mirror has each file of the needs, and what its indexes do not list under a lock's hash."""
    indexes = {"pypi": [Index(url=f"{base}/pypi/simple")], "pytorch": [Index(url=f"{base}/pytorch/whl/{{variant}}")]}
    answers = [_listed(need, indexes, client) for need in needs]
    found = [file for answer in answers if isinstance(answer, list) for file in answer]
    return found, [answer for answer in answers if isinstance(answer, Finding)]


def _listed(need: Need, indexes: Mapping[str, Sequence[Index]], client: Client) -> list[Found] | Finding:
    try:
        return locate([need], indexes, client)
    except UnavailableError as error:
        return Finding(need.project, "not to be had", error.message)


def models(base: str, revisions: Iterable[Revision]) -> list[Found]:
    """Return where an endpoint of Hugging Face's kind has each file of locked models and data sets."""
    refs = [(one, Reference(one.kind, one.repo, one.revision)) for one in revisions]
    return [
        Found(
            f"{ref.repo}@{ref.revision[:12]}/{file.path}",
            str(file.sha256),
            file.size,
            (file_url(base, ref, file.path),),
        )
        for one, ref in refs
        for file in one.files
    ]


def served(files: Sequence[Found], client: Client, cache: Cache) -> Iterator[Finding]:
    """Yield what a mirror sends; what it does not have cached, it fetches for this."""
    yield from (dataclasses.replace(_served(file, client), cache=cache) for file in files)


def _served(file: Found, client: Client) -> Finding:
    url = file.urls[0]
    digest = hashlib.sha256()
    try:
        with client.get(url) as answer:
            if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
                return Finding(file.name, "not to be had", f"it answers {answer.status}")
            for chunk in answer.chunks(CHUNK):
                digest.update(chunk)
    except NetworkError as error:
        return Finding(file.name, "not to be had", str(error))
    if digest.hexdigest() == file.sha256:
        return Finding(file.name, "clean", by="lock")
    about = f"{urlsplit(url).path} has {digest.hexdigest()}, the lock {file.sha256}"
    return Finding(file.name, "poisoned", about, by="lock")
