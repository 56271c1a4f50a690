"""Real upstreams on loopback addresses of their own, a private authority, and a site rendered before them."""

import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.mirrors.site import Site, programs, read
from tests.certificates import Certificate, signed
from tests.http_server import Answer, Request, Server, Servers, directory
from tests.processes import program, ran
from tests.waiting import PATIENCE, eventually
from tests.wheels import wheel

ROOT = Path(__file__).parents[3]
JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture(scope="session")
def nginx() -> str:
    return program("nginx")


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return signed(tmp_path_factory.mktemp("authority"), "127.0.0.1", "localhost")


def envcheck(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envcheck", *arguments]
    env = {**os.environ, **environment}
    return ran(command, cwd=ROOT, env=env, timeout=120)


def port_of(site: Site, part: str) -> int:
    ports = {"nginx": site.port, "mtail": site.mtail, "node-exporter": site.node, "prometheus": site.prometheus}
    ports |= {"olah": site.hf.inner if site.hf else 0, "rclone": site.s3_port}
    return (ports | {f"registry-{one.name}": one.inner for one in site.registries})[part]


@contextlib.contextmanager
def running(
    root: Path, *leave: str, watched: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run a rendered site's parts as its units do, without `leave`; what measures it only if it is to be watched."""
    leave = leave if watched else (*leave, "mtail", "node-exporter", "prometheus")
    site, processes = read(root), dict[str, subprocess.Popen[bytes]]()
    env = {**os.environ, **(environment or {})}
    with contextlib.ExitStack() as stack:
        for part in programs(site).parts:
            if part.name in leave:
                continue
            words = [f"{word} user root;" if word == "daemon off;" else word for word in part.argv[1:]]
            log = stack.enter_context((root / f"logs/{part.name}.log").open("ab"))
            own = {**env, **part.environment}
            process = subprocess.Popen(
                [program(part.argv[0], env["PATH"]), *words], cwd=root, env=own, stdout=log, stderr=log
            )
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.terminate)
            processes[part.name] = process
            answers(f"http://127.0.0.1:{port_of(site, part.name)}/", process)
        yield processes


class Upstream(Server):
    """A server of a tree on a loopback address of its own, whose index pages are there in two forms."""

    def __init__(self, tree: Path, address: str) -> None:
        super().__init__(self.answer, address)
        self.tree = tree

    def answer(self, request: Request) -> Answer:
        if "simple.v1+json" not in request.headers.get("Accept", "") or not request.path.endswith("/"):
            return directory(self.tree)(request)
        answer = directory(self.tree, "index.json")(request)
        return dataclasses.replace(answer, headers={**answer.headers, "Content-Type": JSON})

    def server_close(self) -> None:
        """End it; over a connection that is kept nothing more is served."""
        super().server_close()
        self.answering = lambda _: Answer(503, close=True)


@dataclasses.dataclass(frozen=True)
class World:
    """Three upstreams and what they have: `far` is linked to by `index`, `pytorch` is laid out as PyTorch's own."""

    root: Path
    index: Upstream
    far: Upstream
    pytorch: Upstream
    wheels: dict[str, Path]

    def asked(self) -> int:
        return sum(len(one.requests) for one in (self.index, self.far, self.pytorch))

    def render(self, *more: str) -> tuple[Path, int]:
        site, port = self.root / "site", free_ports(130)
        options = ("--mirror", str(self.root / "site.yaml"), "--port", str(port), "--link", self.far.url)
        # In this process: to start one takes longer than what it does.
        words = ["mirror", "site", "render", str(site), *options, "--min-free", "0", *more]
        assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
        return site, port


@pytest.fixture
def world(tmp_path: Path, servers: Servers) -> World:
    """Return upstreams whose pages link to another host, to their own root, and relative to themselves."""
    far, index, pytorch = (servers.start(Upstream(tmp_path / f"up{n}", f"127.0.0.{n}")) for n in (3, 2, 4))
    wheels = {
        "farlib": wheel(far.tree / "packages", "farlib", ballast=20_000_000),
        "nearlib": wheel(index.tree / "own", "nearlib"),
        "rellib": wheel(index.tree / "rel", "rellib"),
        "torchlike": wheel(pytorch.tree / "whl/cpu", "torchlike", "1.0+cpu"),
    }
    page(index.tree / "simple", "farlib", {f"{far.url}/packages/{wheels['farlib'].name}": wheels["farlib"]})
    page(index.tree / "simple", "nearlib", {f"/own/{wheels['nearlib'].name}": wheels["nearlib"]})
    page(index.tree / "simple", "rellib", {f"../../rel/{wheels['rellib'].name}": wheels["rellib"]})
    quoted = wheels["torchlike"].name.replace("+", "%2B")
    page(pytorch.tree / "whl/cpu", "torchlike", {f"/whl/cpu/{quoted}": wheels["torchlike"]})
    (tmp_path / "site.yaml").write_text(
        f"pypi: [{{url: {index.url}/simple}}]\npytorch: [{{url: '{pytorch.url}/whl/{{variant}}'}}]\n"
    )
    return World(tmp_path, index, far, pytorch, wheels)


@pytest.fixture
def served(world: World, authority: Certificate) -> Iterator[tuple[World, Path, str]]:
    site, port = world.render("--name", "localhost", "--tls", str(authority.certificate), str(authority.key))
    with running(site, "olah"):
        yield world, site, f"https://localhost:{port}"


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens on, below those the kernel gives to clients.

    Tests that run beside each other look in ranges of their own: nobody listens on a port that is only just chosen.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw2").removeprefix("gw")) % 3
    first = 20000 + 4000 * worker + time.time_ns() % 3700
    return next(p for p in range(first, 32768 - count) if all(map(_free, range(p, p + count))))


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def answers(url: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = url.split("/")[2].partition(":")

    def there() -> bool:
        assert process.poll() is None, "the server ended"
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    assert eventually(there, expected=True), url


def page(index: Path, project: str, links: dict[str, Path]) -> None:
    """Write a project's page as HTML and as JSON: link -> the file there."""
    directory = index / project
    directory.mkdir(parents=True, exist_ok=True)
    hashes = {link: hashlib.sha256(path.read_bytes()).hexdigest() for link, path in links.items()}
    anchors = "".join(f'<a href="{link}#sha256={hashes[link]}">{links[link].name}</a>\n' for link in links)
    (directory / "index.html").write_text(f"<!DOCTYPE html><html><body>{anchors}</body></html>")
    files = [{"filename": links[link].name, "url": link, "hashes": {"sha256": hashes[link]}} for link in links]
    data = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
    (directory / "index.json").write_text(json.dumps(data))


def get(url: str, ca: Path | None = None, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers, of a server that only this CA vouches for; no redirect is followed."""
    parts = urlsplit(url)
    assert parts.hostname
    if ca is None:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request(method, url.removeprefix(f"{parts.scheme}://{parts.netloc}"), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
