"""Who is asked when only the mirror can be reached: a network is watched from below, and the list holds the mirror."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.certificates import signed
from tests.e2e.closed_network import MIRROR, CannotCloseError, Network, closed_network, strangers
from tests.e2e.packets import Destination
from tests.e2e.site_mirror import Site
from tests.http_server import Servers
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub
from tests.wheels import wheel

pytestmark = pytest.mark.tools
PORT, HUB = 8443, 8444
ENVCHECK = (sys.executable, "-m", "envcheck")
HUB_CLIENT = """
import sys
from huggingface_hub import snapshot_download
print(len(list(__import__("pathlib").Path(snapshot_download(sys.argv[1], revision=sys.argv[2])).rglob("*"))))
"""
ELSEWHERE = """
import socket
four, six = socket.AF_INET, socket.AF_INET6
for family, address, port in ((four, "192.0.2.7", 9), (six, "2001:db8::7", 443), (four, "224.0.0.251", 5353)):
    socket.socket(family, socket.SOCK_DGRAM).sendto(b"x", (address, port))
for family, address in ((four, "192.0.2.8"), (six, "2001:db8::8"), (four, "198.18.0.9")):
    one = socket.socket(family)
    one.setblocking(False)
    one.connect_ex((address, 443))
try:
    socket.create_connection(("elsewhere.example", 80))
except OSError:
    pass
"""


@dataclasses.dataclass(frozen=True)
class ClosedNetwork:
    """A closed network, its mirror, and a user's directory in it."""

    network: Network
    site: Site
    home: Path
    env: Mapping[str, str]

    def envcheck(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.network.run(*ENVCHECK, *arguments, env=self.env)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        with closed_network() as made:
            yield made
    except CannotCloseError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def closed(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNetwork]:
    """Return it with a mirror of two indexes and a hub, behind a password and a private CA."""
    home = tmp_path_factory.mktemp("home")
    built = [wheel(home / "wheels", name, ballast=3_000_000) for name in ("demo", "other")]
    certified = signed(home, MIRROR)
    signature = secrets.token_hex(8)
    door, tls = network.listen(PORT), certified.context
    site = Site(home / "wheels", "index", "me", secrets.token_hex(8), signature, listening=door, tls=tls)
    pins = (f"{p.stem.split('-')[0]}==1.0 \\\n    --hash=sha256:{sha256(p)}" for p in built)
    (home / "demo.lock").write_text("# demo, layer base\n# index: pypi\n" + "\n".join(pins) + "\n")
    (home / "netrc").write_text(f"machine {MIRROR} login {site.login} password {site.password}\n")
    (home / "site.yaml").write_text(
        f"pypi: [{{url: 'https://{MIRROR}:{PORT}/index/simple'}}]\n"
        f"hf: {{endpoint: 'https://{MIRROR}:{HUB}'}}\nca: {certified.ca.name}\nnetrc: netrc\nclosed: true\n"
    )
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    env = {**keep, "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_CACHE_DIR": str(home / "uv")}
    hub = Hub(listening=network.listen(HUB), tls=tls)
    hub.rows[:] = [{**row, "lfs": {**row["lfs"], "pointerSize": 134}} if "lfs" in row else row for row in hub.rows]
    with Servers() as servers:
        servers.start(site)
        servers.start(hub)
        yield ClosedNetwork(network, site, home, env)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def forgotten(network: Network) -> None:
    """Begin each test with an empty list."""
    network.destinations()


def only_the_mirror(network: Network) -> bool:
    requests = network.destinations()
    assert strangers(requests) == set()
    assert {one.kind for one in requests} >= {"dns", "tcp"}
    return {one.where for one in requests if one.kind == "dns"} == {MIRROR}


def test_a_fetch_asks_the_mirror_alone(closed: ClosedNetwork, tmp_path: Path) -> None:
    profile = ("--mirror", closed.home / "site.yaml", "--output", tmp_path)
    done = closed.envcheck("fetch", "--lock", closed.home / "demo.lock", *profile)
    assert done.returncode == 0, done.stderr
    assert only_the_mirror(closed.network)
    done = closed.envcheck("fetch", "--model", f"{REPO}@{COMMIT}", "--trust-mirror", *profile)
    assert done.returncode == 0, done.stderr
    assert only_the_mirror(closed.network)
    assert {"demo-1.0-py3-none-any.whl", "models--owner--tiny"} <= {path.name for path in tmp_path.iterdir()}


def test_a_probe_asks_the_mirror_alone(closed: ClosedNetwork) -> None:
    lock = ("--lock", closed.home / "demo.lock")
    done = closed.envcheck("mirror", "probe", "--mirror", closed.home / "site.yaml", *lock)
    assert done.returncode == 0, done.stdout + done.stderr
    assert only_the_mirror(closed.network)


def test_clients_with_the_profiles_environment_ask_the_mirror_alone(closed: ClosedNetwork, tmp_path: Path) -> None:
    """With pip that asks for its own newer version: there, too, the mirror is who it asks."""
    envcheck = f"{sys.executable} -m envcheck"
    # A distribution's pip asks for no newer version of itself unless it is told to.
    ask = "export UV_NO_CONFIG=1 PIP_DISABLE_PIP_VERSION_CHECK=0"
    script = f'eval "$({envcheck} mirror show {closed.home}/site.yaml --format env)" && {ask} && "$@"'
    uv = Path(sys.executable).with_name("uv")
    for command in (
        (sys.executable, "-m", "pip", "install", "--no-cache-dir"),
        (uv, "pip", "install", "--python", sys.executable),
    ):
        packages = ("--target", tmp_path / command[1], "--no-deps", "demo", "other")
        done = closed.network.run("sh", "-c", script, "sh", *command, *packages, env=closed.env)
        assert done.returncode == 0, done.stderr
        assert only_the_mirror(closed.network), command
    assert "/index/simple/pip/" in closed.site.paths
    hub = os.environ.get("ENVCHECK_TEST_HUB")
    if not hub:
        pytest.skip("no huggingface_hub: set ENVCHECK_TEST_HUB, or use `make test`, which installs it")
    done = closed.network.run("sh", "-c", script, "sh", hub, "-c", HUB_CLIENT, REPO, COMMIT, env=closed.env)
    assert done.returncode == 0, done.stderr
    assert only_the_mirror(closed.network)


def test_what_asks_elsewhere_is_in_the_list(closed: ClosedNetwork, tmp_path: Path) -> None:
    """Names, TCP and datagrams of both protocols, to hosts beyond and to a neighbour; from a profile, too."""
    done = closed.network.run(sys.executable, "-c", ELSEWHERE)
    assert done.returncode == 0, done.stderr
    assert strangers(closed.network.destinations()) == {
        Destination("udp", "192.0.2.7", 9),
        Destination("udp", "2001:db8::7", 443),
        Destination("udp", "224.0.0.251", 5353),
        Destination("tcp", "192.0.2.8", 443),
        Destination("tcp", "2001:db8::8", 443),
        Destination("neighbour", "198.18.0.9"),
        Destination("dns", "elsewhere.example"),
    }
    time.sleep(1.2)  # a kernel asks for a neighbour again after a second
    assert closed.network.destinations() == set()
    (tmp_path / "open.yaml").write_text("pypi: [{url: 'https://elsewhere.example/simple'}]\n")
    lock = closed.home / "demo.lock"
    done = closed.envcheck("fetch", "--lock", lock, "--mirror", tmp_path / "open.yaml", "--output", tmp_path)
    assert done.returncode == 3, done.stderr
    assert strangers(closed.network.destinations()) == {Destination("dns", "elsewhere.example")}
