"""A mirror that fails in the middle of a build: the next one has it, that is said, and no wrong byte gets in.

Two real servers on the loopback, the build's own installer, and the downloader of --prefetch.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from envcheck.errors import PromiseError
from envcheck.images.engines import venv
from envcheck.images.engines.venv import Environment
from envcheck.images.lock_with_uv import lock_cell
from envcheck.images.locks import prefetch
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index, Profile
from envcheck.mirrors.store.objects import Store

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")


class Mirror(NamedTuple):
    """A mirror, its address, what was asked of it, and project -> what is wrong with its wheel."""

    url: str
    asked: list[str]
    faults: dict[str, str]


@pytest.fixture
def mirrors(torch_wheels: Path, simple_index: Callable[[Path], Path], make_wheel: Any) -> Iterator[list[Mirror]]:
    """Start two mirrors of the same tree, whose pages are right; the test says which of their wheels are not."""
    root, over = simple_index(torch_wheels).parent, threading.Event()
    # A whole wheel of the right name and size, and not the one that was locked.
    evil = make_wheel(root / "evil", "sympy", "1.14.0", files={"sympy.py": "VERSION = 'stolen'\n"})
    assert evil.stat().st_size == (root / evil.name).stat().st_size
    servers, made = [], []
    for address in ("127.0.0.2", "127.0.0.3"):
        asked: list[str] = []
        faults: dict[str, str] = {}
        server = http.server.ThreadingHTTPServer((address, 0), _handler(root, asked, faults, over))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        made.append(Mirror(f"http://{address}:{server.server_address[1]}", asked, faults))
    yield made
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def _handler(
    root: Path, asked: list[str], faults: dict[str, str], over: threading.Event
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path) if self.command == "GET" else None
            name = self.path.rpartition("/")[2]
            fault = faults.get(name.partition("-")[0]) if name else None
            if fault in {"404", "500"}:
                self.send_error(int(fault))
                return
            where = root / "evil" if fault == "wrong bytes" else root
            self._send(
                (where / self.path.strip("/") / ("" if name else "index.html")).read_bytes(), fault, html=not name
            )

        do_HEAD = do_GET  # noqa: N815 (http.server's name)

        def _send(self, body: bytes, fault: str | None, *, html: bool) -> None:
            asked = "" if faults.get("ranges") == "none" else self.headers.get("Range", "")
            part = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
            first, last = (int(part[1]), min(int(part[2]), len(body) - 1)) if part else (0, len(body) - 1)
            self.send_response(206 if part else 200)
            if part:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            self.send_header("Content-Type", "text/html" if html else "application/octet-stream")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            if self.command == "HEAD":
                return
            broken = fault in {"hangs", "breaks off"} and last > first
            self.wfile.write(body[first : (first + last) // 2 if broken else last + 1])
            if broken and fault == "hangs":
                over.wait(60)

        def log_message(self, *_: object) -> None:
            return

    return Handler


@pytest.fixture
def ill(mirrors: list[Mirror]) -> Mirror:
    return mirrors[0]


@pytest.fixture
def well(mirrors: list[Mirror]) -> Mirror:
    return mirrors[1]


@pytest.fixture
def profile(ill: Mirror, well: Mirror) -> Profile:
    return Profile(name="two", pypi=[Index(url=f"{ill.url}/simple"), Index(url=f"{well.url}/simple")])


@pytest.fixture
def spec(matrix: Matrix, well: Mirror) -> ImageSpec:
    locks = lock_cell(matrix, CELL, Profile(name="well", pypi=[Index(url=f"{well.url}/simple")]))
    well.asked.clear()
    return make_spec(matrix, CELL, locks)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give a silent mirror a second, and nothing a cache that another test filled."""
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))


def netloc(url: str) -> str:
    return urlsplit(url).netloc


def same_as_locked(built: Environment, well: Mirror, wheels: Path) -> None:
    """Fail unless every module that was installed is the one of the good wheels."""
    program = (
        "import importlib, json, sys; print(json.dumps({n: open(importlib.import_module(n).__file__).read() "
        "for n in sys.argv[1:]}))"
    )
    names = ["nvidia_cudnn_cu12", "nvidia_nccl_cu12", "sympy", "numpy"]
    done = subprocess.run([built.python, "-I", "-c", program, *names], check=True, capture_output=True, text=True)
    versions = {path.name.split("-")[0]: path.name.split("-")[1] for path in wheels.glob("*.whl")}
    assert json.loads(done.stdout) == {name: f"VERSION = {versions[name]!r}\n" for name in names}
    assert any(path.endswith(".whl") for path in well.asked)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("faults", "reasons"),
    [
        (
            {"nvidia_nccl_cu12": "404", "torch": "500", "sympy": "wrong bytes"},
            {"nvidia": "404: the mirror does not have it", "torch": "exit status 2", "base": "hash mismatch"},
        ),
        (
            {"nvidia_nccl_cu12": "hangs", "sympy": "breaks off"},
            {"nvidia": "timed out", "base": "exit status 2"},
        ),
    ],
)
def test_the_build_ends_with_the_second_mirror_and_says_why(
    faults: Mapping[str, str],
    reasons: Mapping[str, str],
    ill: Mirror,
    well: Mirror,
    spec: ImageSpec,
    profile: Profile,
    tmp_path: Path,
    torch_wheels: Path,
) -> None:
    ill.faults.update(faults)
    built = venv.build(spec, profile, tmp_path / "env", timeout=120, on_line=lambda _: None)
    same_as_locked(built, well, torch_wheels)
    first, second = f"pypi-1 ({netloc(ill.url)})", f"pypi-2 ({netloc(well.url)})"
    told = {used.group: used for used in built.sources}
    assert {group: used.source for group, used in told.items()} == {
        group: second if group in reasons else first for group in ("nvidia", "torch", "base")
    }
    for group, reason in reasons.items():
        assert told[group].failed[first].startswith(reason), told[group]
    wheels = [path for path in ill.asked if path.endswith(".whl")]
    assert {path.rpartition("/")[2].partition("-")[0] for path in wheels} >= faults.keys()


@pytest.mark.parametrize("fault", ["404", "500", "hangs", "breaks off", "wrong bytes"])
def test_what_is_fetched_ahead_falls_back_too(
    fault: str, ill: Mirror, well: Mirror, spec: ImageSpec, profile: Profile, tmp_path: Path
) -> None:
    ill.faults["sympy"] = fault
    notes: list[str] = []
    store = Store(tmp_path / "store")
    client = Client(connect=1.0, read=1.0)
    prefetch.bring(store, spec.locks, "3.11", profile, lambda _: TransferOptions(client, note=notes.append))
    held = {one.name: one.sha256 for one in prefetch.held(store, spec.locks, "3.11")}
    assert all(store.digest(digest)[0] == digest for digest in held.values())
    assert {path for path in well.asked if path.endswith(".whl")} == {"/sympy-1.14.0-py3-none-any.whl"}
    # Where the first one had begun it, the second brought the rest.
    whole = "several sources" if fault in {"hangs", "breaks off"} else netloc(well.url)
    assert f"sympy-1.14.0-py3-none-any.whl: from {whole}, and not from {netloc(ill.url)} alone" in notes


def test_of_two_mirrors_without_ranges_the_right_one_is_found(
    mirrors: list[Mirror], spec: ImageSpec, profile: Profile, tmp_path: Path
) -> None:
    for mirror in mirrors:
        mirror.faults["ranges"] = "none"
    mirrors[0].faults["sympy"] = "wrong bytes"
    notes: list[str] = []
    store = Store(tmp_path / "store")
    prefetch.bring(store, spec.locks, "3.11", profile, lambda _: TransferOptions(Client(), note=notes.append))
    held = {one.name: one.sha256 for one in prefetch.held(store, spec.locks, "3.11")}
    assert all(store.digest(digest)[0] == digest for digest in held.values())
    first, second = (netloc(mirror.url) for mirror in mirrors)
    assert f"sympy-1.14.0-py3-none-any.whl: from {second}, and not from {first} alone" in notes
    mirrors[0].faults["sympy"] = mirrors[1].faults["sympy"] = "wrong bytes"
    with pytest.raises(PromiseError, match="sympy"):
        prefetch.bring(Store(tmp_path / "other"), spec.locks, "3.11", profile, lambda _: TransferOptions(Client()))
