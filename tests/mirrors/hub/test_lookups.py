"""A lookup that fails names the host that was asked, why, and what to do: in one line."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import retries as fetch_retries
from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client

REF = hub_revision.Reference("model", "owner/tiny", "main")
Hubs = Callable[[], Any]
ELSEWHERE = "or `fetch --lock FILE`, which asks nobody"


@pytest.fixture
def silent() -> Iterator[str]:
    """Return an endpoint that takes connections and says nothing."""
    with socket.create_server(("127.0.0.8", 0)) as server:
        yield f"http://127.0.0.8:{server.getsockname()[1]}"


@pytest.fixture
def rogue(tmp_path: Path) -> Iterator[str]:
    """Return an endpoint whose certificate nobody signed."""
    words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=x"]
    named = [*words, "-addext", "subjectAltName=IP:127.0.0.7", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", "req", *named], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.7", 0)) as server:

        def shake() -> None:
            taken, _ = server.accept()
            try:
                context.wrap_socket(taken, server_side=True)
            except (ssl.SSLError, OSError):
                taken.close()

        threading.Thread(target=shake, daemon=True).start()
        yield f"https://127.0.0.7:{server.getsockname()[1]}"


def told(endpoint: str, ref: hub_revision.Reference = REF) -> str:
    with pytest.raises(UnavailableError) as failed:
        hub_download.read_revision(Client(connect=0.5, read=0.5), endpoint, ref)
    assert "\n" not in str(failed.value)
    return str(failed.value)


def test_a_name_that_does_not_resolve() -> None:
    fix = f"see that it can be reached from here (`hf: {{trusted: URL}}` in the profile names another), {ELSEWHERE}"
    assert told("https://x.invalid") == f"model owner/tiny@main: x.invalid: the name does not resolve; {fix}"


def test_a_host_where_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.9", 0))
        at = f"127.0.0.9:{free.getsockname()[1]}"
    assert told(f"http://{at}").startswith(f"model owner/tiny@main: {at}: no connection; see that it can be reached")


def test_a_host_that_says_nothing(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_retries, "WAITS", ())
    said = told(silent)
    assert f"{silent.removeprefix('http://')}: it stalled; see that it can be reached from here" in said


def test_a_host_whose_certificate_is_not_trusted(rogue: str) -> None:
    said = told(rogue)
    assert f"{rogue.removeprefix('https://')}: TLS: self-signed certificate; set its CA certificate as `ca:`" in said


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (401, "no such repository, or a private or gated one: `hf: {token: allow}` or `credentials:` in the profile"),
        (403, "no such repository, or a private or gated one: `hf: {token: allow}` or `credentials:` in the profile"),
        (404, f"check the name and the revision, {ELSEWHERE}"),
        (429, f"run it again later, {ELSEWHERE}"),
        (503, f"run it again later, {ELSEWHERE}"),
    ],
)
def test_an_answer_that_is_none(hubs: Hubs, monkeypatch: pytest.MonkeyPatch, status: int, fix: str) -> None:
    monkeypatch.setattr(fetch_retries, "WAITS", (0.01,))
    server = hubs()
    server.busy = [status] * 9
    assert told(server.url) == f"model owner/tiny@main: {server.netloc}: it answers {status}; {fix}"


def test_a_repository_and_a_revision_that_are_not_there(hubs: Hubs) -> None:
    server = hubs()
    for ref in (
        hub_revision.Reference("model", "owner/other", "main"),
        hub_revision.Reference("dataset", "owner/tiny", "main"),
    ):
        assert told(server.url, ref).startswith(f"{ref.kind} {ref.repo}@main: {server.netloc}: it answers 404; check")
    assert "@nosuch: " in told(server.url, hub_revision.Reference("model", "owner/tiny", "nosuch"))
    assert "it answers 404" in told(server.url, hub_revision.Reference("model", "owner/tiny", "f" * 40))


def test_what_is_no_hub(hubs: Hubs) -> None:
    server = hubs()
    server.repo.commits = ("no commit",)
    assert f"{server.netloc}: it names no commit; see that it is a hub (`hf: {{trusted: URL}}`" in told(server.url)


def test_the_command_says_it_in_one_line_and_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("hf: {endpoint: 'https://y.invalid', trusted: 'https://x.invalid'}\n")
    for command in ("fetch", "lock"):
        words = [
            sys.executable,
            "-m",
            "envcheck",
            command,
            "--model",
            "owner/tiny",
            "--mirror",
            str(tmp_path / "p.yaml"),
        ]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1, done.stderr
        assert "model owner/tiny@main: x.invalid: the name does not resolve; see that it can be reached" in done.stderr


@pytest.fixture
def listing() -> Iterator[Callable[[Callable[[str], tuple[list[dict[str, Any]], str]]], str]]:
    """Give a function that starts a hub whose pages of a list, and the links to the next, are made of the query."""
    servers: list[ThreadingHTTPServer] = []

    def start(page: Callable[[str], tuple[list[dict[str, Any]], str]]) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                rows, link = page(query) if "/tree/" in path else ({"sha": "a" * 40}, "")
                body = json.dumps(rows).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                if link:
                    self.send_header("Link", f'<?{link}>; rel="next"')
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def row(name: str, size: object = 1, **more: object) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": size, "oid": "0" * 40, **more}


def test_a_list_of_several_pages_is_read_to_its_end(listing: Any) -> None:
    following = {"recursive=true&expand=false": "c=2", "c=2": "c=3", "c=3": ""}
    folder = {"type": "directory", "path": "d"}
    endpoint = listing(lambda query: ([folder] if query == "c=2" else [row(query[-1])], following[query]))
    files = hub_download.read_revision(Client(), endpoint, REF).files
    assert [file.path for file in files] == ["e", "3"]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (lambda query: ([row("x")], f"{query}x"), "it lists 'x' twice"),
        (lambda _query: ([{"type": "directory", "path": "d"}], "c=x"), "its list of files does not end after 0 files"),
        (lambda query: ([row(f"f{len(query)}")], f"{query}x"), "its list of files does not end after 6 files"),
        (lambda query: ([row(f"{len(query)}.{n}") for n in range(3)], f"{query}x"), "does not end after 12 files"),
        (lambda _query: ([row("a"), row("./a")], ""), "it lists 'a' twice"),
    ],
)
def test_a_list_without_an_end_is_no_list(
    listing: Any, monkeypatch: pytest.MonkeyPatch, page: Callable[[str], Any], said: str
) -> None:
    """A list was cut at its ten thousandth page and taken for all that there is."""
    monkeypatch.setattr(hub_download, "_PAGES", 6)
    monkeypatch.setattr(hub_download, "_FILES", 10)
    assert said in told(listing(page))


@pytest.mark.parametrize("size", [-1, True, None, 1.5, "1", 10**15, 10**30])
@pytest.mark.parametrize("large", [True, False])
def test_a_size_that_no_file_has_is_refused(size: object, *, large: bool) -> None:
    lfs = {"lfs": {"oid": "0" * 64, "size": size}}
    rows = [row("a", 7, **lfs) if large else row("a", size)]
    with pytest.raises(ValueError, match="'a' no valid size"):
        hub_revision.parse_tree(json.dumps(rows).encode())
    assert hub_revision.parse_tree(json.dumps([row("a", 10**15 - 1)]).encode())[0].size == 10**15 - 1
    assert hub_revision.parse_tree(json.dumps([row("a", 0)]).encode())[0].size == 0
