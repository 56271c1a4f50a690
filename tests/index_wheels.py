"""Real wheels of the package index that this machine's clients use, for tests that open or install them."""

import contextlib
import functools
import io
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from envcheck.mirrors import index as simple_api
from envcheck.mirrors.index import parse_file_name, with_default_url
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import network_indexes


@functools.cache
def listed(project: str) -> list[simple_api.IndexFile]:
    """Return the files of a project on the index that this machine's clients use, none without one."""
    profile = load_profile("host")
    for index in network_indexes(profile.pypi, closed=profile.closed):
        url = simple_api.page_url(with_default_url(index, "pypi"), project)
        with contextlib.suppress(NetworkError):
            return simple_api.read_page(hub_client(profile), url)
    return []


def url_of(name: str, version: str, tags: list[str]) -> str:
    """Return the URL of the wheel that the facts were read off: for CPython 3.12 where there is one."""
    choices = []
    for file in listed(name):
        if file.name.endswith("x86_64.whl") and "linux" in file.name:
            _, actual, wheel_tags = parse_file_name(file.name)
            pythons = {f"{tag.interpreter}-{tag.abi}" for tag in wheel_tags}
            if actual == Version(version) and pythons & set(tags):
                choices.append((not pythons & {"cp312-cp312"}, "cp311-cp311" not in pythons, file.name, file.url))
    if not choices:
        pytest.skip(f"the package index does not have {name} {version}")
    return min(choices)[-1]


def unpack(directory: Path, name: str, version: str, tag: str) -> Path:
    """Unpack a wheel as an installer does, without its requirements; skip if the index does not have it."""
    with hub_client(load_profile("host")).get(url_of(name, version, [tag])) as answer:
        content = b"".join(answer.chunks(1 << 20))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(directory)
    return directory
