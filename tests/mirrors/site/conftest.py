"""Real upstreams on loopback addresses of their own, a private authority, and a site rendered before them."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.mirrors.site import Site, programs, read
from tests.certificates import Certificate, signed
from tests.mirrors.site.upstreams import Upstream, answers, free_ports, page, upstream
from tests.waiting import PATIENCE
from tests.wheels import wheel

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def nginx() -> str:
    text = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if text is None:
        pytest.skip("no nginx here (`make test` unpacks it where apt is)")
    return text


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return signed(tmp_path_factory.mktemp("authority"), "127.0.0.1", "localhost")


def envcheck(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envcheck", *arguments]
    env = {**os.environ, **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)


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
            program = shutil.which(part.argv[0], path=f"{env['PATH']}:/usr/sbin")
            if program is None:
                pytest.skip(f"no {part.argv[0]} here (`make test` unpacks it where apt is)")
            words = [f"{word} user root;" if word == "daemon off;" else word for word in part.argv[1:]]
            log = stack.enter_context((root / f"logs/{part.name}.log").open("ab"))
            own = {**env, **part.environment}
            process = subprocess.Popen([program, *words], cwd=root, env=own, stdout=log, stderr=log)
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.terminate)
            processes[part.name] = process
            answers(f"http://127.0.0.1:{port_of(site, part.name)}/", process)
        yield processes


@dataclasses.dataclass(frozen=True)
class World:
    """Three upstreams and what they have: `far` is linked to by `index`, `pytorch` is laid out as PyTorch's own."""

    root: Path
    index: Upstream
    far: Upstream
    pytorch: Upstream
    wheels: dict[str, Path]

    def stop(self) -> None:
        """Cut the site off."""
        for one in (self.index, self.far, self.pytorch):
            if one.process.poll() is None:
                one.stop()

    def sent(self) -> int:
        """Return how many answers all upstreams have given."""
        return sum(len(one.sent()) for one in (self.index, self.far, self.pytorch))

    def render(self, *more: str) -> tuple[Path, int]:
        """Render a site before the upstreams; return its directory and first port."""
        site, port = self.root / "site", free_ports(130)
        options = ("--mirror", str(self.root / "site.yaml"), "--port", str(port), "--link", self.far.origin)
        # In this process: to start one takes longer than what it does.
        words = ["mirror", "site", "render", str(site), *options, "--min-free", "0", *more]
        assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
        return site, port


@pytest.fixture
def world(tmp_path: Path, nginx: str) -> Iterator[World]:
    """Return upstreams whose pages link to another host, to their own root, and relative to themselves."""
    assert nginx
    far, index, pytorch = (upstream(tmp_path / f"up{n}", f"127.0.0.{n}") for n in (3, 2, 4))
    wheels = {
        "farlib": wheel(far.tree / "packages", "farlib", ballast=20_000_000),
        "nearlib": wheel(index.tree / "own", "nearlib"),
        "rellib": wheel(index.tree / "rel", "rellib"),
        "torchlike": wheel(pytorch.tree / "whl/cpu", "torchlike", "1.0+cpu"),
    }
    page(index.tree / "simple", "farlib", {f"{far.origin}/packages/{wheels['farlib'].name}": wheels["farlib"]})
    page(index.tree / "simple", "nearlib", {f"/own/{wheels['nearlib'].name}": wheels["nearlib"]})
    page(index.tree / "simple", "rellib", {f"../../rel/{wheels['rellib'].name}": wheels["rellib"]})
    quoted = wheels["torchlike"].name.replace("+", "%2B")
    page(pytorch.tree / "whl/cpu", "torchlike", {f"/whl/cpu/{quoted}": wheels["torchlike"]})
    (tmp_path / "site.yaml").write_text(
        f"pypi: [{{url: {index.origin}/simple}}]\npytorch: [{{url: '{pytorch.origin}/whl/{{variant}}'}}]\n"
    )
    made = World(tmp_path, index, far, pytorch, wheels)
    yield made
    made.stop()


@pytest.fixture
def served(world: World, nginx: str, authority: Certificate) -> Iterator[tuple[World, Path, str]]:
    """Return a world, a site before it that nginx serves over TLS, and that site's URL."""
    site, port = world.render("--name", "localhost", "--tls", str(authority.certificate), str(authority.key))
    assert nginx
    with running(site, "olah"):
        yield world, site, f"https://localhost:{port}"
