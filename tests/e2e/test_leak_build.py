"""An image built where only the mirror can be reached: who was asked, and what of the site's secrets was left."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import signed
from tests.e2e import layers, private_engine
from tests.e2e.canaries import Canaries
from tests.e2e.closed_network import MIRROR, CannotCloseError, Network, closed_network, strangers
from tests.e2e.conftest import CELL, ROOT
from tests.e2e.packets import Destination
from tests.e2e.private_engine import CannotStartError, unpacked
from tests.e2e.site_mirror import Site
from tests.http_server import Servers
from tests.wheels import wheel

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
PORT = 8443
ENVCHECK = (sys.executable, "-m", "envcheck")


@dataclasses.dataclass(frozen=True)
class ClosedNetwork:
    """A closed network with a mirror and an engine in it, secrets everywhere, and what was put where."""

    network: Network
    site: Site
    canaries: Canaries
    env: dict[str, str]
    profile: Path
    locks: Path
    secret: Path

    @property
    def netrc(self) -> Path:
        """Return the file with the mirror's password."""
        return self.secret / "netrc"

    @property
    def certificate(self) -> str:
        """Return a line of the private CA's certificate."""
        return next(path for path in self.secret.glob("*caname*.pem")).read_text().splitlines()[4]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        return self.network.run(*command, env=self.env, timeout=1000)


@dataclasses.dataclass(frozen=True)
class BuildResult:
    """What a build said, whom it asked, and the image."""

    done: subprocess.CompletedProcess[str]
    destinations: set[Destination]

    @property
    def image(self) -> str:
        """Return the image's name."""
        return str(json.loads(self.done.stdout)["image"])


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Return a closed network."""
    try:
        unpacked()
        with closed_network() as made:
            yield made
    except (CannotCloseError, CannotStartError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def engine_env(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of an engine that runs inside: what it asks for itself is in the list, too."""
    result = tmp_path_factory.mktemp("engine") / "environment"
    beside = ("exec", "--", "sh", "-c", f"env -0 >{result}; echo; cat")
    command = network.argv(sys.executable, private_engine.__file__, *beside)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline(), "no engine came up inside: see what it said"
            pairs = (text.split("=", 1) for text in result.read_text().split("\0") if text)
            yield {name: value for name, value in pairs if name in {"DOCKER_HOST", "DOCKER_CONFIG", "PATH"}}
        finally:
            process.stdin.close()


@pytest.fixture(scope="module")
def closed(
    network: Network, engine_env: dict[str, str], wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClosedNetwork]:
    """Return all of it, a canary in each place where a site has a secret."""
    canaries = Canaries()
    root = tmp_path_factory.mktemp("site")
    secret = root / canaries["directory"]
    secret.mkdir()
    shutil.copytree(wheels, root / "wheels", copy_function=os.link)
    locks = _small(root / "wheels", root / "images")
    certified = signed(secret, MIRROR, name=f"{canaries['caname']}.pem")
    ca, own = certified.ca, (canaries[name] for name in ("path", "login", "password", "signature"))
    site = Site(root / "wheels", *own, listening=network.listen(PORT), tls=certified.context)
    ca.write_text(f"# {canaries['comment']}\n{ca.read_text()}")
    netrc = secret / "netrc"
    netrc.write_text(f"machine {MIRROR} login {site.login} password {site.password}\n")
    token = secret / "token"
    token.write_text(canaries["file"])
    profile = root / "site.yaml"
    at = f"https://{MIRROR}:{PORT}"
    profile.write_text(
        f"pypi: [{{url: '{at}/{site.path}/simple'}}]\npytorch: [{{url: '{at}/{site.path}/whl/{{variant}}'}}]\n"
        f"apt: ['{at}']\nca: {ca}\nnetrc: {netrc}\nclosed: true\n"
        f"hf: {{endpoint: 'https://{MIRROR}:8444', token: allow}}\n"
        f"credentials: {{'{MIRROR}:8444': {{token_file: {token}}}}}\n"
    )
    keep = {name: os.environ[name] for name in ("LANG", "HOME") if name in os.environ}
    env = {
        **keep,
        **engine_env,
        "PYTHONPATH": str(ROOT),
        "ENVCHECK_HOME": str(root / "home"),
        "HF_TOKEN": canaries["environment"],
        "PIP_INDEX_URL": f"https://me:{canaries['userinfo']}@{MIRROR}/simple",
        "UV_INDEX_PYPI_MIRROR_PASSWORD": canaries["environment"],
    }
    with Servers() as servers:
        servers.start(site)
        yield ClosedNetwork(network, site, canaries, env, profile, locks, secret)


def _small(wheels: Path, images: Path) -> Path:
    """Lock a torch that only says what it is, and one package: who is asked for them is what is looked at, not they."""
    version = "__version__ = '2.13.0+cpu'\ncuda = None\n"
    more = {"torch/version.py": version, "torch/__init__.py": f"{version}from torch import version\n"}
    torch = wheel(wheels, "torch", "2.13.0+cpu", files=more)
    pins = {"torch": ("pytorch/cpu", "torch==2.13.0+cpu", torch), "base": ("pypi", "demo==1.0", wheel(wheels, "demo"))}
    (images / CELL).mkdir(parents=True)
    for group, (index, pin, path) in pins.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        text = f"# {CELL}, layer {group}\n# index: {index}\n{pin} \\\n    --hash=sha256:{digest}\n"
        (images / CELL / f"{group}.lock").write_text(text)
    return images


@pytest.fixture(scope="module")
def built(closed: ClosedNetwork) -> BuildResult:
    """Return the build of a cell: base bootstrapped from the mirror, packages from the mirror, nothing at hand."""
    closed.network.destinations()
    words = (CELL, "--images", closed.locks, "--mirror", closed.profile, "--engine", "docker", "--json")
    done = closed.run(*ENVCHECK, "--verbose", "build", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return BuildResult(done, closed.network.destinations())


def test_the_build_asks_the_mirror_alone(closed: ClosedNetwork, built: BuildResult) -> None:
    assert strangers(built.destinations) == set()
    assert MIRROR in {one.where for one in built.destinations if one.kind == "dns"}
    assert {one.port for one in built.destinations if one.kind == "tcp"} == {PORT}
    text = " ".join(closed.site.paths)
    assert "/debian/dists/bookworm/InRelease" in text
    for name in ("torch", "demo", "msgspec"):
        assert f"/signed/{name}-" in text


def test_a_fetch_of_a_cell_asks_the_mirror_alone(closed: ClosedNetwork, wheels: Path, tmp_path: Path) -> None:
    """Of the real locks, every wheel; a quarter of a gigabyte of packets loses the list none."""
    torch = ("--lock", ROOT / "images" / CELL / "torch.lock", "--output", tmp_path / "wheels")
    subprocess.run([*ENVCHECK, "fetch", "--mirror", "host", *torch], cwd=ROOT, check=True, capture_output=True)
    for path in wheels.glob("*.whl"):
        os.link(path, tmp_path / "wheels" / path.name)
    there, closed.site.wheels = closed.site.wheels, tmp_path / "wheels"
    closed.network.destinations()
    done = closed.run(*ENVCHECK, "fetch", CELL, "--mirror", closed.profile, "--output", tmp_path / "got")
    closed.site.wheels = there
    assert done.returncode == 0, done.stderr
    requests = closed.network.destinations()
    assert strangers(requests) == set()
    assert {one.port for one in requests if one.kind == "tcp"} == {PORT}
    assert len(list((tmp_path / "got").glob("torch-2.13.0+cpu-cp311-*.whl"))) == 1
    assert closed.canaries.within(done.stdout + done.stderr) == set()


def test_apt_within_a_build_asks_the_mirror_alone(closed: ClosedNetwork, built: BuildResult) -> None:
    """In a base that lacks a package: it comes from the mirror, and the base's own sources are left alone."""
    base = json.loads(built.done.stdout)["base"]
    lacking = f"FROM {base}\nRUN dpkg --purge tini\n"
    made = closed.run(
        "sh", "-c", f"printf '{lacking}' | docker build --quiet --network=none --tag localhost/lacking:1 -"
    )
    assert made.returncode == 0, made.stderr
    out = closed.profile.parent / "context"
    done = closed.run(*ENVCHECK, "render", CELL, "--mirror", closed.profile, "--output", out)
    assert done.returncode == 0, done.stderr
    closed.network.destinations()
    closed.site.requests.clear()
    words = ("--progress=plain", "--network=host", "--build-arg=BASE=localhost/lacking:1", "--target=os")
    done = closed.run("docker", "build", *words, f"--secret=id=netrc,src={closed.netrc}", out)
    assert "used the profile's apt mirrors" in done.stderr
    assert strangers(closed.network.destinations()) == set()
    assert any("/pool/main/t/tini/" in path for path in closed.site.paths)


def test_what_a_build_asks_for_elsewhere_is_in_the_list(closed: ClosedNetwork, built: BuildResult) -> None:
    """A step that connects, a frontend that is itself pulled, and a base by a name that has a registry."""
    base = json.loads(built.done.stdout)["base"]
    assert closed.run("docker", "tag", base, "elsewhere.example/base:1").returncode == 0
    closed.network.destinations()
    program = 'import socket; socket.create_connection(("192.0.2.9", 80), 1)'
    step = f"FROM {base}\nRUN python3 -c '{program}'\n"
    frontend = f"# syntax=elsewhere.example/frontend:1\nFROM {base}\n"
    named = "FROM elsewhere.example/base:1\nRUN false\n"
    for text, destination in (
        (step, Destination("tcp", "192.0.2.9", 80)),
        (frontend, Destination("dns", "elsewhere.example")),
        (named, Destination("dns", "elsewhere.example")),
    ):
        (closed.profile.parent / "Dockerfile").write_text(text)
        words = ("--network=host", "--file", closed.profile.parent / "Dockerfile", closed.profile.parent / "images")
        assert closed.run("docker", "build", *words).returncode != 0
        assert strangers(closed.network.destinations()) == {destination}


def test_no_secret_of_the_site_is_in_the_image_or_said(
    closed: ClosedNetwork, built: BuildResult, tmp_path: Path
) -> None:
    actual = closed.canaries
    output = built.done.stdout + built.done.stderr
    assert actual.within(output) == set()
    # What is there is found, so that finding nothing means something.
    there = [f"envcheck.cell={CELL}", "demo.py"]
    needles = [*(needle.decode() for needle in actual.needles), closed.certificate]
    assert set(layers.search(built.image, [*needles, *there], closed.env, tmp_path)) == set(there)
    logs = closed.profile.parent / "home"
    assert "used pypi-1" in "".join(path.read_text() for path in logs.rglob("*.log"))
    assert actual.below(logs) == {}


def test_no_secret_of_the_site_is_kept_by_the_engine(closed: ClosedNetwork, built: BuildResult) -> None:
    """Its cache holds the contexts of builds: the mirror's address is there, and no login, path or name of a file."""
    assert built.image
    run = Path(closed.env["DOCKER_HOST"].removeprefix("unix://")).parent
    kept = closed.canaries.below(run)
    assert set().union(*kept.values()) == {"path"}, kept
