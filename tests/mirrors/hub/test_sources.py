"""A model's bytes from several endpoints in order: what the first has wrong or not at all comes from the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError, PromiseError
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import Reference, fetch_revision, read_revision
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.load import parse
from tests.tables import each

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/tiny"
REF = Reference("model", REPO, "main")
LARGE = "sub/weights.bin"
Hubs = Callable[[], Any]


def flip(hub: Any, path: str, at: int = 0) -> None:
    content = bytearray(hub.content[path])
    content[at] ^= 1
    hub.content[path] = bytes(content)


def fetched(origin: Any, endpoints: list[str], to: Path) -> tuple[dict[str, set[str]], list[str]]:
    """Fetch the model; return the hosts that gave each file, and what a person was told."""
    notes: list[str] = []
    client = Client(connect=1.0, read=2.0)
    revision = read_revision(client, origin.url, REF)
    fetched_files = fetch_revision(revision, endpoints, to, TransferOptions(client, note=notes.append), lambda _: None)
    names = {file.blob: file.path for file in revision.files}
    for file in revision.files:
        at = to / "models--owner--tiny/snapshots" / COMMIT / file.path
        assert at.read_bytes() == origin.repo.files[file.path]
    return {names[one.path.name]: set(one.sources) for one in fetched_files}, notes


def test_all_comes_from_the_first_that_is_right(hubs: Hubs, tmp_path: Path) -> None:
    origin, first, second = hubs(), hubs(), hubs()
    sources, notes = fetched(origin, [first.url, second.url], tmp_path)
    assert set().union(*sources.values()) == {first.netloc}
    assert second.paths == notes == []


@pytest.mark.parametrize("path", [LARGE, "config.json"])
def test_what_the_first_endpoint_lacks_comes_from_the_second(hubs: Hubs, tmp_path: Path, path: str) -> None:
    origin, first, second = hubs(), hubs(), hubs()
    del first.content[path]
    sources, _ = fetched(origin, [first.url, second.url], tmp_path)
    assert sources.pop(path) == {second.netloc}
    assert set().union(*sources.values()) == {first.netloc}


@pytest.mark.parametrize("path", [LARGE, "vocab.txt"])
def test_where_all_have_it_wrong_the_file_is_named_and_the_snapshot_is_not_there(
    hubs: Hubs, tmp_path: Path, path: str
) -> None:
    origin, first, second = hubs(), hubs(), hubs()
    flip(first, path)
    flip(second, path)
    with pytest.raises(PromiseError, match=path):
        fetched(origin, [first.url, second.url], tmp_path)
    assert not (tmp_path / "models--owner--tiny/snapshots").exists()
    assert not (tmp_path / "models--owner--tiny/refs").exists()


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False)


def test_a_profile_names_them_in_order_and_who_is_trusted(hubs: Hubs, tmp_path: Path) -> None:
    origin, first, second = hubs(), hubs(), hubs()
    del first.content["vocab.txt"]
    (tmp_path / "p.yaml").write_text(
        f"hf:\n  endpoint: {first.url}\n  fallbacks: [{second.url}]\n  trusted: {origin.url}\n"
    )
    words = ("fetch", "--model", REPO, "--mirror", str(tmp_path / "p.yaml"), "--output", str(tmp_path / "to"))
    files = json.loads(run(*words, "--json").stdout)["files"]
    assert {host for file in files for host in file["sources"]} == {first.netloc, second.netloc}
    assert not any(path.startswith(f"/{REPO}") for path in origin.paths)


@each(
    ("text", "message"),
    [
        ("hf: {fallbacks: ['https://b.example']}", "hf.fallbacks: fallbacks without an endpoint"),
        (
            "hf:\n  endpoint: https://a.example\n  fallbacks: [b.example]",
            "p.yaml:3: hf.fallbacks[0]: 'b.example' is not a URL",
        ),
        ("hf: {endpoint: 'https://a.example', fallback: []}", "use one of endpoint, fallbacks, trusted"),
        ("hf: {endpoint: 'https://a.example', fallbacks: ['https://me:x@b.example']}", "a user or password in"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse(text.encode(), Path("p.yaml"))
    assert message in str(failed.value)
