"""Read which releases of a project the Python index lists that are newer than the known ones, with their METADATA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from packaging.version import Version
from torch_listing import in_parallel
from wheel_metadata import read_metadata

from envcheck.mirrors.index import IndexFile, parse_file_name, read_project, unavailable
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.model import Profile


class ListedRelease(NamedTuple):
    """A release on an index: its Linux wheels, and METADATA of one of them (None: the index does not serve it)."""

    project: str
    version: Version
    files: list[IndexFile]
    metadata: str | None


class ListedReleases(NamedTuple):
    """The newer releases, the newest of each minor, and the projects that the index has no page of."""

    releases: list[ListedRelease]
    absent: list[str]


def read_newer_releases(client: Client, profile: Profile, newest: Mapping[str, str]) -> ListedReleases:
    """Return the releases of these projects that are newer than `newest`, the newest one of each minor.

    Pre-releases count only for a project whose newest known release is one. Raises UnavailableError if the index
    cannot be read.
    """
    pages = in_parallel(lambda name: read_project(client, profile.pypi, profile, "pypi", "", name), [*newest])
    listed = [
        ListedRelease(name, version, files, None)
        for name, page in zip(newest, pages, strict=True)
        for version, files in newer_releases(page or [], name, Version(newest[name])).items()
    ]
    texts = in_parallel(lambda release: _metadata(client, release.files[0]), listed)
    releases = [release._replace(metadata=text) for release, text in zip(listed, texts, strict=True)]
    return ListedReleases(releases, [name for name, page in zip(newest, pages, strict=True) if page is None])


def newer_releases(files: Iterable[IndexFile], project: str, newest: Version) -> dict[Version, list[IndexFile]]:
    """Return the Linux wheels of the newest release of each minor above `newest`, oldest release first."""
    versions: dict[Version, list[IndexFile]] = {}
    for file in files:
        try:
            name, version, tags = parse_file_name(file.name)
        except ValueError:
            continue
        usable = name == project and not file.yanked and version > newest and not version.local
        early = version.is_prerelease and not newest.is_prerelease
        if usable and not early and any(tag.platform == "any" or _is_linux(tag.platform) for tag in tags):
            versions.setdefault(version, []).append(file)
    minors = {version.release[:2]: version for version in sorted(versions)}
    return {version: versions[version] for version in sorted(minors.values())}


def _is_linux(platform: str) -> bool:
    return "linux" in platform and "musl" not in platform and platform.endswith(("x86_64", "aarch64"))


def _metadata(client: Client, file: IndexFile) -> str | None:
    try:
        return read_metadata(client, file)
    except NetworkError as error:
        raise unavailable(file.url, f"{file.name}: {error}") from error
