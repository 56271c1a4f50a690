"""A model by its revision: hashes from who is trusted, bytes from a mirror, and a cache that huggingface_hub takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import (
    HubFile,
    Reference,
    Revision,
    fetch_revision,
    format_lock,
    lock_revision,
    parse_lock,
    read_revision,
    trusted_endpoint,
)
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import HuggingFace, Profile
from tests.tables import each

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/tiny"
REF = Reference("model", REPO, "main")
LARGE = "sub/weights.bin"
Hubs = Callable[[], Any]

WHOLE = f"""
import json, os
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoTokenizer
at = snapshot_download({REPO!r})
weights = open(at + "/{LARGE}", "rb").read()
words = AutoTokenizer.from_pretrained({REPO!r})("hello world")["input_ids"]
print(json.dumps([os.path.basename(at), len(weights), AutoConfig.from_pretrained({REPO!r}).hidden_size, words]))
"""


def fetched(hub: Any, at: str, to: Path) -> list[Any]:
    client = Client(connect=2.0, read=5.0)
    revision = read_revision(client, hub.url, REF)
    return fetch_revision(revision, [at], to, TransferOptions(client), lambda _: None)


def flip(hub: Any, path: str) -> None:
    content = bytearray(hub.content[path])
    content[len(content) // 2] ^= 1
    hub.content[path] = bytes(content)


def test_every_file_is_a_blob_that_the_snapshot_links_to(hubs: Hubs, tmp_path: Path) -> None:
    server = hubs()
    fetched(server, server.url, tmp_path)
    folder = tmp_path / "models--owner--tiny"
    for row in server.rows:
        link = folder / "snapshots" / COMMIT / row["path"]
        assert link.is_symlink()
        assert link.resolve().parent == (folder / "blobs").resolve()
        assert link.read_bytes() == server.content[row["path"]]
    assert (folder / "refs/main").read_text() == COMMIT
    assert sorted(path.name for path in (folder / "blobs").iterdir() if path.name.startswith(".")) == []


def test_a_snapshot_is_whole_or_not_there(hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub without a network takes whatever a snapshot's directory holds for all of it."""
    server, real, made = hubs(), Path.symlink_to, list[Path]()

    def killed(self: Path, target: Path) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(self)
        real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "symlink_to", killed)
        with pytest.raises(KeyboardInterrupt):
            fetched(server, server.url, tmp_path)
    snapshot = tmp_path / "models--owner--tiny/snapshots" / COMMIT
    assert len(made) == 2
    assert not snapshot.exists()
    fetched(server, server.url, tmp_path)
    assert {path for path in server.content if (snapshot / path).is_file()} == set(server.content)
    assert [path.name for path in snapshot.parent.iterdir()] == [COMMIT]
    # What huggingface_hub began itself is completed.
    (snapshot / LARGE).unlink()
    (snapshot / "vocab.txt").unlink()
    (snapshot / "vocab.txt").write_text("of another run")
    fetched(server, server.url, tmp_path)
    assert all((snapshot / path).read_bytes() == content for path, content in server.content.items())


@pytest.mark.parametrize("path", [LARGE, "config.json"])
def test_wrong_bytes_of_the_right_size_and_etag_are_refused(hubs: Hubs, tmp_path: Path, path: str) -> None:
    trusted, mirror = hubs(), hubs()
    flip(mirror, path)
    with pytest.raises(PromiseError):
        fetched(trusted, mirror.url, tmp_path)
    assert not (tmp_path / "models--owner--tiny/snapshots").exists()


def test_a_lock_has_every_sha256_and_needs_nobody_s_trust(hubs: Hubs, tmp_path: Path) -> None:
    origin, mirror = hubs(), hubs()
    lock = lock_revision(Client(), origin.url, REF)
    assert {file.path: file.size for file in lock.files} == {row["path"]: row["size"] for row in origin.rows}
    text = format_lock(lock)
    flip(mirror, "vocab.txt")
    repeated = parse_lock(text, "lock")
    assert format_lock(repeated) == text
    with pytest.raises(PromiseError, match="no source has the file with sha256"):
        fetch_revision(repeated, [mirror.url], tmp_path, TransferOptions(Client()), lambda _: None)


@each(
    ("change", "message"),
    [
        ({"path": "../../up"}, "leads outside"),
        ({"path": "/etc/passwd"}, "leads outside"),
        ({"path": "a\nb"}, "leads outside"),
        ({"sha1": "../../../../tmp/x"}, "leads outside"),
        ({"sha256": None}, "has no hash"),
        ({"sha256": "0"}, "has no hash"),
        ({"size": -1}, "has no hash"),
        ({"path": LARGE}, "repeated"),
        ({"path": "sub"}, "repeated"),
    ],
)
def test_a_lock_that_leads_outside_is_refused(change: dict[str, Any], message: str) -> None:
    files = [HubFile(path=path, size=1, sha256="a" * 64) for path in ("a", LARGE)]
    files[0] = msgspec.structs.replace(files[0], **change)
    lock = Revision(repo=REPO, revision=COMMIT, files=files)
    with pytest.raises(ConfigError, match=message):
        parse_lock(msgspec.json.encode(lock), "lock")


@each("change", [{"revision": "main"}, {"repo": "../x"}, {"ref": "../../x"}, {"ref": "a/../b"}])
def test_a_lock_of_no_commit_is_refused(change: dict[str, str]) -> None:
    lock = Revision(repo=REPO, revision=COMMIT, files=[HubFile(path="a", size=1, sha256="a" * 64)])
    with pytest.raises(ConfigError, match="no valid repository, commit"):
        parse_lock(msgspec.json.encode(msgspec.structs.replace(lock, **change)), "lock")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a\\..\\x", "", LARGE])
def test_an_endpoint_s_listing_that_leads_outside_is_refused(hubs: Hubs, tmp_path: Path, path: str) -> None:
    server = hubs()
    server.rows[0] = {**server.rows[0], "path": path}
    with pytest.raises(UnavailableError, match="it lists"):
        fetched(server, server.url, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_who_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envcheck.mirrors.hub.default_endpoint", lambda: None)
    mirror = Profile(name="m", hf=HuggingFace(endpoint="https://mirror.example"))
    both = Profile(name="m", hf=HuggingFace(endpoint="https://mirror.example", trusted="https://origin.example"))
    assert trusted_endpoint(both, mirror=False) == "https://origin.example"
    assert trusted_endpoint(mirror, mirror=True) == "https://mirror.example"
    monkeypatch.setenv("HF_ENDPOINT", "https://another-mirror.example")
    with pytest.raises(ConfigError, match="a mirror cannot confirm its own files"):
        trusted_endpoint(mirror, mirror=False)
    monkeypatch.setattr("envcheck.mirrors.hub.default_endpoint", lambda: "https://origin.example")
    assert trusted_endpoint(mirror, mirror=False) == "https://origin.example"


def test_what_lacks_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("envcheck.mirrors.hub.default_endpoint", lambda: None)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    lock = Revision(repo=REPO, revision=COMMIT, files=[HubFile(path="a", size=1, sha256="a" * 64)])
    (tmp_path / "model.lock").write_bytes(format_lock(lock))

    def error_text(*words: str) -> str:
        result = CliRunner().invoke(cli, [*words, "--mirror", "none"], standalone_mode=False)
        assert isinstance(result.exception, ConfigError)
        return str(result.exception)

    assert error_text("fetch", "--lock", str(tmp_path / "model.lock")).startswith(
        "the mirror profile none has no hf.endpo"
    )
    nobody = error_text("lock", "--model", "org/name")
    assert "no trusted endpoint" in nobody
    assert "--trust-mirror" not in nobody
    for command in ("fetch", "lock"):
        assert error_text(command, "--model", "org@").startswith(
            "'org@' is not the name of a model; write OWNER/NAME@COMMIT"
        )


def test_the_commands(hubs: Hubs, tmp_path: Path) -> None:
    origin, mirror = hubs(), hubs()
    profile = tmp_path / "p.yaml"
    profile.write_text(f"hf: {{endpoint: '{mirror.url}', trusted: '{origin.url}'}}\n")
    lock, cache = tmp_path / "tiny.lock", tmp_path / "cache"

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, [*words, "--mirror", str(profile)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "4 files" in run("lock", "--model", f"{REPO}@main", "--output", str(lock))
    assert mirror.paths == []
    document = json.loads(run("fetch", "--lock", str(lock), "--output", str(cache), "--json"))
    assert sum(file["moved"] for file in document["files"]) == sum(row["size"] for row in origin.rows)
    assert {host for file in document["files"] for host in file["sources"]} == {mirror.netloc}
    assert "HF_HUB_OFFLINE=1" in run("fetch", "--model", f"{REPO}@main", "--output", str(cache))


@pytest.mark.tools
def test_through_a_real_mirror_server_and_into_real_clients_without_a_network(
    hubs: Hubs, mirrored: Callable[[Any], str], run_hub: Callable[..., str], tmp_path: Path
) -> None:
    server = hubs()
    cache = tmp_path / "cache"
    fetched(server, mirrored(server), cache)
    server.shutdown()
    assert json.loads(run_hub(WHOLE, cache, HF_HUB_OFFLINE="1")) == [COMMIT, 3_000_001, 8, [2, 5, 6, 3]]
