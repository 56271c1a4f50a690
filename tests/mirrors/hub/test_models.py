"""A model by its revision: hashes from who is trusted, bytes from a mirror, and a cache that huggingface_hub takes."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.fetch import request as fetch_retries
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
from tests.certificates import self_signed
from tests.http_server import Answer, Request, Server, Servers
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub, Repo
from tests.tables import each

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


def fetched(hub: Any, at: str, to: Path, *more: str) -> list[Any]:
    client = Client(connect=2.0, read=5.0)
    revision = read_revision(client, hub.url, REF)
    return fetch_revision(revision, [at, *more], to, TransferOptions(client), lambda _: None)


def flip(hub: Any, path: str) -> None:
    content = bytearray(hub.content[path])
    content[len(content) // 2] ^= 1
    hub.content[path] = bytes(content)


def test_a_file_system_without_links_gets_copies(hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """github.com/huggingface/huggingface_hub/issues/1882: an exFAT disk. huggingface_hub reads such a snapshot, too."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refused)
    server, snapshot = hubs(), tmp_path / "models--owner--tiny/snapshots" / COMMIT
    for _ in range(2):
        fetched(server, server.url, tmp_path)
        assert {path: (snapshot / path).read_bytes() for path in server.content} == server.content
        assert not any(path.is_symlink() for path in snapshot.rglob("*"))


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
def test_what_the_first_endpoint_lacks_or_has_wrong_comes_from_the_second(
    hubs: Hubs, tmp_path: Path, path: str
) -> None:
    origin, first, second = hubs(), hubs(), hubs()
    fetched(origin, first.url, tmp_path / "first", second.url)
    assert second.paths == []
    del first.content["vocab.txt"]
    flip(first, path)
    names = {file.blob: file.path for file in read_revision(Client(), origin.url, REF).files}
    sources = {names[one.path.name]: one.sources for one in fetched(origin, first.url, tmp_path / "both", second.url)}
    assert [set(sources.pop(name)) for name in ("vocab.txt", path)] == [{second.netloc}] * 2
    assert {host for given in sources.values() for host in given} == {first.netloc}
    flip(second, path)
    with pytest.raises(PromiseError, match=path):
        fetched(origin, first.url, tmp_path / "none", second.url)
    assert not (tmp_path / "none/models--owner--tiny/snapshots").exists()
    assert not (tmp_path / "none/models--owner--tiny/refs").exists()


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
    ("file", "change", "message"),
    [
        *(({"path": path}, {}, "leads outside") for path in ("../../up", "/etc/passwd", "a\nb")),
        ({"sha1": "../../../../tmp/x"}, {}, "leads outside"),
        *((wrong, {}, "has no hash") for wrong in ({"sha256": None}, {"sha256": "0"}, {"size": -1})),
        *(({"path": path}, {}, "repeated") for path in (LARGE, "sub")),
        *(({}, {"ref": ref}, "no valid repository, commit") for ref in ("../../x", "a/../b")),
        ({}, {"revision": "main"}, "no valid repository, commit"),
        ({}, {"repo": "../x"}, "no valid repository, commit"),
    ],
)
def test_a_lock_that_leads_outside_or_is_of_no_commit_is_refused(
    file: dict[str, Any], change: dict[str, str], message: str
) -> None:
    files = [
        HubFile(**{"path": path, "size": 1, "sha256": "a" * 64, **more}) for path, more in (("a", file), (LARGE, {}))
    ]
    lock = Revision(repo=REPO, revision=COMMIT, files=files)
    with pytest.raises(ConfigError, match=message):
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

    lacks = error_text("fetch", "--lock", str(tmp_path / "model.lock"))
    assert lacks.startswith("the mirror profile none has no hf.endpo")
    nobody = error_text("lock", "--model", "org/name")
    assert "no trusted endpoint" in nobody
    assert "--trust-mirror" not in nobody
    for command in ("fetch", "lock"):
        nameless = error_text(command, "--model", "org@")
        assert nameless.startswith("'org@' is not the name of a model; write OWNER/NAME@COMMIT")


def profile(tmp_path: Path, endpoint: Hub, trusted: Hub) -> str:
    (tmp_path / "p.yaml").write_text(f"hf: {{endpoint: '{endpoint.url}', trusted: '{trusted.url}'}}\n")
    return str(tmp_path / "p.yaml")


def run(*words: str) -> Result:
    result = CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False)
    assert not result.return_value, result.output
    return result


def test_the_commands(hubs: Hubs, tmp_path: Path) -> None:
    origin, mirror = hubs(), hubs()
    by = ("--mirror", profile(tmp_path, mirror, origin), "--output")
    lock, cache = tmp_path / "tiny.lock", tmp_path / "cache"
    assert "4 files" in run("lock", "--model", f"{REPO}@main", *by, str(lock)).stdout
    assert mirror.paths == []
    document = json.loads(run("fetch", "--lock", str(lock), *by, str(cache), "--json").stdout)
    assert sum(file["moved"] for file in document["files"]) == sum(row["size"] for row in origin.rows)
    assert {host for file in document["files"] for host in file["sources"]} == {mirror.netloc}
    assert "HF_HUB_OFFLINE=1" in run("fetch", "--model", f"{REPO}@main", *by, str(cache)).stdout


@pytest.mark.parametrize("below", ["", "blobs", "snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/sub", "refs"])
def test_a_directory_that_is_a_link_is_refused(hubs: Hubs, tmp_path: Path, below: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    planted = tmp_path / "to" / "models--owner--tiny" / below
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    with pytest.raises(ConfigError, match="has the name of a directory"):
        fetched(hub := hubs(), hub.url, tmp_path / "to")
    assert list(victim.iterdir()) == []


def test_links_under_the_names_of_temporary_files_are_not_followed(hubs: Hubs, tmp_path: Path) -> None:
    hub = hubs()
    victim, folder = tmp_path / "victim", tmp_path / "to" / "models--owner--tiny"
    victim.mkdir()
    kept = victim / "kept"
    kept.write_bytes(b"kept")
    (folder / "blobs").mkdir(parents=True)
    for row in hub.rows:
        blob = row["lfs"]["oid"] if "lfs" in row else row["oid"]
        (folder / "blobs" / f".{blob}.{blob[:8]}.part").symlink_to(kept)
    fetched(hub, hub.url, tmp_path / "to")
    assert (kept.read_bytes(), list(victim.iterdir())) == (b"kept", [kept])
    snapshot = folder / "snapshots" / COMMIT
    assert all((snapshot / row["path"]).read_bytes() == hub.content[row["path"]] for row in hub.rows)


ELSEWHERE = "or use `fetch --lock FILE`, which needs no lookup"


def lookup_error(endpoint: str, ref: Reference = REF) -> str:
    with pytest.raises(UnavailableError) as failed:
        read_revision(Client(connect=0.5, read=0.5), endpoint, ref)
    assert "\n" not in str(failed.value)
    return str(failed.value)


def test_a_host_that_does_not_resolve_or_is_not_trusted(servers: Servers, tmp_path: Path) -> None:
    fix = "check the name, the revision and the endpoint (`hf: {trusted: URL}` in the profile)"
    message = lookup_error("https://x.invalid")
    assert message == f"model owner/tiny@main: x.invalid: the name does not resolve; {fix}, {ELSEWHERE}"
    rogue = servers.start(Server(lambda _: Answer(), tls=self_signed(tmp_path, "127.0.0.1").context))
    told = f"{rogue.netloc}: TLS: self-signed certificate; set its CA certificate as `ca:`"
    assert told in lookup_error(rogue.url)


@each(
    ("status", "fix"),
    [
        (401, "check the name; if it is private or gated, set `hf: {token: allow}` or `credentials:` in the profile"),
        (404, "check the name, the revision and the endpoint (`hf: {trusted: URL}` in the profile)"),
        (503, "run it again later"),
    ],
)
def test_an_answer_that_is_none(hubs: Hubs, monkeypatch: pytest.MonkeyPatch, status: int, fix: str) -> None:
    monkeypatch.setattr(fetch_retries, "WAITS", (0.01,))
    server = hubs()
    server.busy = [status] * 9
    at = f"model owner/tiny@main: {server.netloc}"
    assert lookup_error(server.url) == f"{at}: it answers {status}; {fix}, {ELSEWHERE}"


def test_a_repository_and_a_revision_that_are_not_there(hubs: Hubs) -> None:
    server = hubs()
    for ref in (Reference("model", "owner/other", "main"), Reference("dataset", "owner/tiny", "main")):
        message = lookup_error(server.url, ref)
        assert message.startswith(f"{ref.kind} {ref.repo}@main: {server.netloc}: it answers 404; check")
    assert "@nosuch: " in lookup_error(server.url, Reference("model", "owner/tiny", "nosuch"))
    assert "it answers 404" in lookup_error(server.url, Reference("model", "owner/tiny", "f" * 40))


@pytest.fixture
def listing(servers: Servers) -> Callable[[Callable[[str], tuple[list[dict[str, Any]], str]]], str]:
    """Give a function that starts a hub whose pages of a list, and the links to the next, are made of the query."""

    def start(page: Callable[[str], tuple[list[dict[str, Any]], str]]) -> str:
        def answer(request: Request) -> Answer:
            path, _, query = request.path.partition("?")
            rows, link = page(query) if "/tree/" in path else ({"sha": "a" * 40}, "")
            return Answer(200, json.dumps(rows).encode(), {"Link": f'<?{link}>; rel="next"'} if link else {})

        return servers.start(Server(answer)).url

    return start


def row(name: str, size: object = 1, **more: object) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": size, "oid": "0" * 40, **more}


def test_a_list_of_several_pages_is_read_to_its_end(listing: Any) -> None:
    following = {"recursive=true&expand=false": "c=2", "c=2": "c=3", "c=3": ""}
    folder = {"type": "directory", "path": "d"}
    endpoint = listing(lambda query: ([folder] if query == "c=2" else [row(query[-1])], following[query]))
    files = read_revision(Client(), endpoint, REF).files
    assert [file.path for file in files] == ["e", "3"]


@each(
    ("page", "message"),
    [
        (lambda _query: ([{"type": "directory", "path": "d"}], "c=x"), "its list of files does not end after 0 files"),
        (lambda query: ([row(f"f{len(query)}")], f"{query}x"), "its list of files does not end after 6 files"),
        (lambda _query: ([row("a"), row("./a")], ""), "it lists 'a' twice"),
    ],
)
def test_a_list_without_an_end_is_no_list(
    listing: Any, monkeypatch: pytest.MonkeyPatch, page: Callable[[str], Any], message: str
) -> None:
    """A list was cut at its ten thousandth page and taken for all that there is."""
    monkeypatch.setattr("envcheck.mirrors.hub._PAGES", 6)
    assert message in lookup_error(listing(page))


@pytest.mark.tools
def test_the_real_clients_read_it_without_a_network(hubs: Hubs, run_hub: Callable[..., str], tmp_path: Path) -> None:
    server = hubs()
    cache = tmp_path / "cache"
    fetched(server, server.url, cache)
    server.shutdown()
    assert json.loads(run_hub(WHOLE, cache, HF_HUB_OFFLINE="1")) == [COMMIT, 3_000_001, 8, [2, 5, 6, 3]]


ROWS = [{"text": f"row {number}", "label": number % 2} for number in range(2000)]
TEST = [{"text": "unseen", "label": 1}]
CARD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*.jsonl}
  - {split: test, path: data/test.jsonl}
---
"""
CONTENT = {
    "README.md": CARD.encode(),
    "data/train-00000-of-00002.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS[:1000]).encode(),
    "data/train-00001-of-00002.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS[1000:]).encode(),
    "data/test.jsonl": "".join(json.dumps(row) + "\n" for row in TEST).encode(),
}
LARGE_PARTS = frozenset(path for path in CONTENT if "train" in path)
READ = f"""
import json, os
from huggingface_hub import snapshot_download
at = snapshot_download({REPO!r}, repo_type="dataset", local_files_only=True)
from datasets import load_dataset
found = load_dataset(at)
print(json.dumps([os.path.basename(at), {{name: list(rows) for name, rows in found.items()}}]))
"""


@pytest.fixture
def server(hubs: Callable[[], Hub]) -> Hub:
    hub = hubs()
    hub.repos[f"datasets/{REPO}"] = Repo(CONTENT, LARGE_PARTS)
    return hub


@pytest.mark.parametrize("revision", ["", f"@{COMMIT}"])
def test_it_lies_where_huggingface_hub_looks_for_datasets(server: Hub, tmp_path: Path, revision: str) -> None:
    by = ("--mirror", profile(tmp_path, server, server), "--output", str(tmp_path / "to"))
    text = " ".join(run("fetch", "--dataset", f"{REPO}{revision}", *by).output.split())
    folder = tmp_path / "to/datasets--owner--tiny"
    snapshot = folder / "snapshots" / COMMIT
    assert {path: (snapshot / path).read_bytes() for path in CONTENT} == CONTENT
    blobs = {(snapshot / path).readlink().name for path in CONTENT}
    assert {path.name for path in (folder / "blobs").iterdir()} == blobs
    assert (folder / "refs/main").exists() == (not revision)
    assert not (tmp_path / "to/models--owner--tiny").exists()
    assert "use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE=" in text
    # github.com/huggingface/huggingface_hub/pull/4492: without refs/main a client must name the revision.
    assert (f"and with revision='{COMMIT}'" in text) == bool(revision)


def test_a_lock_of_a_dataset_is_of_the_dataset(server: Hub, tmp_path: Path) -> None:
    mirror, lock = profile(tmp_path, server, server), tmp_path / "data.lock"
    run("lock", "--dataset", REPO, "--mirror", mirror, "--output", str(lock))
    assert {file["path"] for file in json.loads(lock.read_bytes())["files"]} == set(CONTENT)
    assert json.loads(lock.read_bytes())["kind"] == "dataset"
    server.requests.clear()
    done = run("fetch", "--lock", str(lock), "--mirror", mirror, "--output", str(tmp_path / "to"))
    assert done.stderr.splitlines()[0].startswith(f"{len(CONTENT)} files, ")
    assert all(path.startswith(f"/datasets/{REPO}/resolve/{COMMIT}/") for path in server.paths)
    assert (tmp_path / "to/datasets--owner--tiny/snapshots" / COMMIT / "README.md").read_text() == CARD


@pytest.mark.tools
def test_its_own_library_reads_every_row_without_a_network(
    server: Hub, run_hub: Callable[..., str], tmp_path: Path
) -> None:
    run("fetch", "--dataset", REPO, "--mirror", profile(tmp_path, server, server), "--output", str(tmp_path / "to"))
    server.shutdown()
    home = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    at, rows = json.loads(run_hub(READ, tmp_path / "to", **home))
    assert at == COMMIT
    assert rows == {"train": ROWS, "test": TEST}
