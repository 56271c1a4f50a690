"""A lookup that fails names the host that was asked, why, and what to do: in one line."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
