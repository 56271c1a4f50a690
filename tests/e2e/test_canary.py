"""Secrets in every place a site has them, then every command: none is printed, logged, journalled or left in a file.

And whatever a command does, it looks up and asks the mirror alone.

What is named and not contained: a profile's `ca`, `netrc` and secret files are paths of this machine, and settings for
this machine's own use that a person asked for (`mirror show --format`, a site's configuration) name them
by those paths, as the clients read them there. So may what tells a person about the profile. Nothing that leaves the
machine does: no build context, image, report, bundle, published tree or log.
"""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.cli import main
from envcheck.reports import formats
from tests.certificates import signed
from tests.e2e.canaries import Canaries
from tests.e2e.site_mirror import Site, basic
from tests.http_server import Answer, Server, Servers, paced
from tests.mirrors.hub.conftest import COMMIT, REPO, Hub
from tests.mirrors.site.conftest import free_ports, get, running
from tests.processes import program, ran
from tests.waiting import eventually
from tests.wheels import wheel

ROOT = Path(__file__).resolve().parents[2]
CELL = "torch2.13.0-cpu-py311"
# The paths that a profile names: a directory and a file in it.
PATHS = {"directory", "caname"}
# What a process of Python's looks up, connects to or sends a datagram to.
WATCH = """
import sys
def note(event, told):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        place = told[0] if event.startswith("socket.get") else told[1][0] if isinstance(told[1], tuple) else None
        with open({!r}, "a") as file:
            print(place, file=file)
sys.addaudithook(note)
"""
LOCAL = {"localhost", "127.0.0.1", "::1", "None", platform.node()}


@dataclasses.dataclass(frozen=True)
class Place:
    """A user's directory with a profile whose mirror, hub, CA, netrc and tokens are all secret."""

    at: str
    home: Path
    secret: Path
    site: Site
    hub: Hub
    proxy: Server
    canaries: Canaries
    env: dict[str, str]

    def run(self, *words: str | Path, status: int = 0, **more: str) -> str:
        """Run envcheck as a user does, and return all that it printed."""
        command = [sys.executable, "-m", "envcheck", *map(str, words)]
        env = {**self.env, **more}
        completed = ran(command, cwd=self.home, env=env, timeout=120)
        assert completed.returncode == status, completed.stdout + completed.stderr
        return completed.stdout + completed.stderr

    def say(self, *words: str | Path, status: int = 0) -> str:
        """Do the same in this process: a tenth of the time, for what starts nothing and asks nobody."""
        printed = io.TextIOWrapper(io.BytesIO(), write_through=True)  # some commands print bytes
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            for name in [*os.environ]:
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.chdir(self.home)
            patch.setattr("sys.argv", ["envcheck", *map(str, words)])
            patch.setattr("sys.stderr", printed)
            with pytest.raises(SystemExit) as ended:
                main()
        printed.seek(0)
        said = printed.read()
        assert int(str(ended.value.code)) == status, said
        return said

    def strangers(self) -> set[str]:
        """Return who was asked, looked up or sent anything besides the mirror: also what went by the proxy."""
        noted = self.home.with_name("asked")
        asked = set(noted.read_text().split()) if noted.exists() else set()
        noted.unlink(missing_ok=True)
        return asked - LOCAL | {request.path for request in self.proxy.requests}

    def left(self) -> dict[str, set[str]]:
        """Return what the search finds below the directory, but for what was put there."""
        return self.canaries.below(self.home, but=[self.secret, *self.secret.iterdir()])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    canaries = Canaries()
    secret = tmp_path / canaries["directory"]
    home, wheels, watch = tmp_path / "home", tmp_path / "wheels", tmp_path / "watch"
    for directory in (secret, home, watch):
        directory.mkdir()
    (watch / "sitecustomize.py").write_text(WATCH.format(str(tmp_path / "asked")))
    proxy = Server(lambda _: Answer(502))
    certified = signed(secret, "localhost", "127.0.0.1", name=f"{canaries['caname']}.pem")
    ca, tls = certified.ca, certified.context
    ca.write_text(f"# {canaries['comment']}\n{ca.read_text()}")
    own = (canaries[name] for name in ("login", "password", "signature"))
    site = Site(wheels, "index", *own, tls=tls)
    hub = Hub(tls=tls)
    hub.token = canaries["file"]
    at, hub_at = (f"https://localhost:{server.port}" for server in (site, hub))
    (secret / "netrc").write_text(f"machine localhost login {site.login} password {site.password}\n")
    (secret / "token").write_text(canaries["file"])
    (home / "site.yaml").write_text(
        f"pypi: [{{url: '{at}/index/simple'}}]\npytorch: [{{url: '{at}/index/whl/{{variant}}'}}]\nca: {ca}\n"
        f"apt: ['{at}']\nconda: {{channel_alias: '{at}/conda'}}\nnpm: '{at}/npm'\nregistry: localhost:5000\n"
        f"hf: {{endpoint: '{hub_at}', trusted: '{hub_at}', token: allow}}\nnetrc: {secret}/netrc\n"
        f"credentials: {{'{hub_at[8:]}': {{token_file: {secret}/token}}}}\n"
    )
    env = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(home),
        "PYTHONPATH": f"{watch}:{ROOT}",
        "UV_CACHE_DIR": str(home / "uv"),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "NO_COLOR": "1",
        "UV_HTTP_RETRIES": "0",
        "HF_TOKEN": canaries["environment"],
        "PIP_INDEX_URL": f"https://me:{canaries['userinfo']}@localhost/simple",
        "UV_INDEX_PYPI_MIRROR_PASSWORD": canaries["environment"],
        "NPM_TOKEN": canaries["environment"],
        **dict.fromkeys(("http_proxy", "https_proxy"), f"http://me:{canaries['proxy']}@127.0.0.1:{proxy.port}"),
        "no_proxy": "localhost,127.0.0.1",
    }
    with Servers() as servers:
        servers.start(site)
        servers.start(hub)
        servers.start(proxy)
        place = Place(at, home, secret, site, hub, proxy, canaries, env)
        yield place
        assert place.strangers() == set()


def locked(place: Place) -> Path:
    """Have two packages at the mirror, and return the directory of a cell's locks that names them."""
    version = "__version__ = '2.13.0+cpu'\ncuda = None\n"
    more = {"torch/version.py": version, "torch/__init__.py": f"{version}from torch import version\n"}
    torch = wheel(place.site.wheels, "torch", "2.13.0+cpu", files=more)
    demo = wheel(place.site.wheels, "demo", ballast=3_000_000)
    images = place.home / "images"
    (images / CELL).mkdir(parents=True)
    for group, index, pin, path in (
        ("torch", "pytorch/cpu", "torch==2.13.0+cpu", torch),
        ("base", "pypi", "demo==1.0", demo),
    ):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        text = f"# {CELL}, layer {group}\n# index: {index}\n{pin} \\\n    --hash=sha256:{digest}\n"
        (images / CELL / f"{group}.lock").write_text(text)
    return images


def test_fetches(place: Place) -> None:
    """By a lock, by a URL that is signed, by a model's revision; with what they leave when they end and when not."""
    images = locked(place)
    profile = ("--mirror", "site.yaml", "--output", "got")
    message = place.run("--verbose", "fetch", "--lock", images / CELL / "base.lock", *profile)
    message += place.run("fetch", "--lock", images / CELL / "torch.lock", *profile, "--json")
    message += place.run("fetch", "--model", f"{REPO}@{COMMIT}", *profile)
    assert any(path.startswith("/index/signed/demo-") for path in place.site.paths)
    assert f"Bearer {place.canaries['file']}" in place.hub.tokens
    place.site.refuse = 403
    message += place.run(
        "fetch", "--lock", images / CELL / "base.lock", "--mirror", "site.yaml", "--output", "x", status=3
    )
    url = f"https://localhost:1/file?X-Amz-Signature={place.canaries['signature']}"
    message += place.run("fetch", url, "--sha256", "0" * 64, "--mirror", "site.yaml", status=3)
    assert place.canaries.within(message) == set()
    assert "demo-1.0-py3-none-any.whl" in message
    assert place.left() == {str(place.home / "site.yaml"): PATHS}


def test_whom_else_a_command_asks_is_seen(place: Place) -> None:
    words = ("fetch", "https://elsewhere.example/x", "--sha256", "0" * 64, "--mirror", "none")
    place.run(*words, status=3)
    assert {who.partition(":")[0] for who in place.strangers()} == {"elsewhere.example"}
    place.proxy.requests.clear()
    direct = {**place.env, "no_proxy": "*"}
    command = [sys.executable, "-m", "envcheck", *words]
    assert subprocess.run(command, cwd=place.home, env=direct, capture_output=True, check=False).returncode == 3
    assert place.strangers() == {"elsewhere.example"}


def test_a_fetch_that_is_killed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    locked(place)
    # The size is asked for; one part comes in some seconds, and the others do not end.
    plain, pauses = place.site.answering, itertools.chain([0.0, 0.15], itertools.repeat(5.0))
    monkeypatch.setattr(place.site, "answering", lambda request: paced(plain(request), next(pauses)))
    (demo,) = place.site.wheels.glob("demo-*.whl")
    digest = hashlib.sha256(demo.read_bytes()).hexdigest()
    link = f"{place.at}/index/signed/{demo.name}?X-Amz-Signature={place.canaries['signature']}"
    words = ("fetch", link, "--sha256", digest, "--mirror", "site.yaml", "--output", "got")
    command = [sys.executable, "-m", "envcheck", *map(str, words)]
    with subprocess.Popen(command, cwd=place.home, env=place.env, stderr=subprocess.DEVNULL) as process:
        kept = place.home / "got"
        assert eventually(lambda: any(path.stat().st_size for path in kept.glob(".*.journal")), expected=True)
        process.send_signal(signal.SIGKILL)
    assert {path.suffix for path in (place.home / "got").iterdir()} >= {".part", ".journal"}
    assert place.left() == {str(place.home / "site.yaml"): PATHS}


def test_a_lock_a_published_tree_and_a_bundle(place: Place) -> None:
    message = place.run("lock", "--model", f"{REPO}@{COMMIT}", "--mirror", "site.yaml", "--output", "m.lock")
    store = ("store", "--store", "store")
    message += place.run(*store, "release", "--model-lock", "m.lock", "--mirror", "site.yaml")
    message += place.run(*store, "export", "-o", "bundle")
    message += place.run("store", "--store", "other", "import", "bundle")
    message += place.run(*store, "versions")
    assert list((place.home / "other/current/").rglob("config.json"))
    assert f"Bearer {place.canaries['file']}" in place.hub.tokens
    assert place.canaries.within(message) == set()
    assert place.left() == {str(place.home / "site.yaml"): PATHS}


def test_probes_and_what_is_kept_of_them(place: Place) -> None:
    images = locked(place)
    for form in ((), ("--json",)):
        lock = ("--lock", images / CELL / "base.lock", *form)
        message = place.run("mirror", "probe", "--mirror", "site.yaml", *lock)
        place.site.refuse = 403
        message += place.run("mirror", "probe", "--mirror", "site.yaml", *lock, status=1)
        place.site.refuse = 0
        assert place.canaries.within(message) == set()
        assert "localhost" in message
    assert place.left() == {str(place.home / "site.yaml"): PATHS}


FORMS = ("pip", "uv", "hf", "apt", "conda", "npm", "buildkitd", "daemon", "registries", "env")


def test_settings_name_files_and_hold_no_secret(place: Place) -> None:
    """Paths of the CA, the netrc and a token are in them: the machine's own clients read them there."""
    message = place.say("mirror", "show", "site.yaml")
    for form in FORMS:
        words = ("mirror", "show", "site.yaml", "--format", form, "--variant", "cpu")
        message += place.say(*words)
    message += place.run("mirror", "show", "site.yaml", "--format", "env") + place.say("mirror", "use", "site.yaml")
    assert place.canaries.within(message) == PATHS
    assert set().union(*place.left().values()) == PATHS
    roots = list((place.home / ".local/share/envcheck/ca").iterdir())
    assert len(roots) == 1
    assert place.canaries.below(*roots) == {}


def test_the_doctor_says_where_a_secret_is_and_not_what(place: Place) -> None:
    secret = place.canaries["secret"]
    (place.home / "Dockerfile").write_text(
        f"FROM x\nENV HF_TOKEN={secret}\nARG PIP_INDEX_URL=https://me:{secret}@mirror.example/simple\n"
        f"RUN pip install --extra-index-url https://me:{secret}@mirror.example/whl/cu118 torch\n"
        f"RUN curl -H 'Authorization: Bearer {secret}' http://mirror.example/x?token={secret}\n"
    )
    (place.home / ".bashrc").write_text(f"export HF_TOKEN={secret}\nexport http_proxy=http://me:{secret}@proxy:3128\n")
    (place.home / ".npmrc").write_text(f"//mirror.example/:_authToken={secret}\n")
    (place.home / ".config/pip").mkdir(parents=True)
    (place.home / ".config/pip/pip.conf").write_text(
        f"[global]\nindex-url = http://me:{secret}@mirror.example/simple\n"
    )
    message = place.say("mirror", "doctor", "Dockerfile", status=1) + place.say("mirror", "doctor", "--json", status=1)
    assert "Dockerfile:2" in message
    assert ".npmrc" in message
    assert place.canaries.within(message) == set()


def test_a_build_context_and_an_environment(place: Place) -> None:
    """Nothing but the CA's certificates leaves for a build: neither where they lie, nor what else that file says."""
    images = locked(place)
    text = place.say("render", CELL, "--mirror", "site.yaml", "--output", "context")
    context = place.home / "context"
    assert "BEGIN CERTIFICATE" in (context / "mirror/os/ca.pem").read_text()
    assert place.canaries.below(context) == {}
    # The command it prints names the netrc, which is not in the context, by its path.
    assert place.canaries.within(text) == {"directory"}
    build = ("--verbose", "build", CELL, "--engine", "venv", "--images", images, "--mirror", "site.yaml")
    place.site.refuse = 403
    text = place.run(*build, "--output", "venv", status=1)
    assert any(path.startswith("/index/signed/") for path in place.site.paths)
    assert place.canaries.within(text) == set()
    for status in (403, 418):
        place.site.refuse = status
        text += place.run("lock", CELL, "--mirror", "site.yaml", "--images", "locks", status=3)
    assert "418" in text
    assert "X-Amz-Signature" not in text
    assert "/index/signed/" in text
    assert place.left() == {str(place.home / "site.yaml"): PATHS}


@pytest.mark.tools
def test_a_site_and_its_logs(place: Place, servers: Servers) -> None:
    """Logins, tokens and signed links that clients send are in none of its files, logs and metrics."""
    for name in ("nginx", "docker-registry"):
        program(name)
    root, port, canaries = place.home / "site", free_ports(130), place.canaries
    options = ("--no-hf", "--no-pytorch", "--link", "http://127.0.0.1:9", "--port", str(port), "--min-free", "0")
    registry = servers.start(Hub())  # which answers, and is no registry: the one of the site logs that
    registered = ("--registry", f"one={registry.url}")
    message = place.run("mirror", "site", "render", root, "--mirror", "site.yaml", *options, *registered)
    with running(root):
        password = {"Authorization": basic(place.site.login, place.site.password)}
        bearer = {"Authorization": f"Bearer {canaries['token']}", "Cookie": f"session={canaries['token']}"}
        paths = ["/pypi/simple/demo/", "/files/127.0.0.1:9/x.whl", "/static/none", "/none", "/files/127.0.0.1:9/%2f"]
        bases = {port: paths, port + 2: ["/v2/", "/v2/lib/image/manifests/1", "/v2/lib/image/tags/list", "/v1/"]}
        for url in [f"http://127.0.0.1:{at}{path}" for at, known in bases.items() for path in known]:
            for headers in (password, bearer):
                get(f"{url}?X-Amz-Signature={canaries['signature']}", None, "GET", **headers)
    assert '"uri":"/files/127.0.0.1:9/x.whl"' in (root / "logs/access.json").read_text()
    left = place.left()
    assert canaries.within(message) == set()
    # nginx gets the CA of its upstreams.
    assert {name for names in left.values() for name in names} == PATHS, left
    assert not [file for file in left if "/logs/" in file]


def test_a_run_and_every_form_of_its_report(place: Place) -> None:
    words = ("run", "--level", "quick", "--python", sys.executable, "--output", "report.json", "--html", "run.html")
    message = place.run(*words, "--summary", "summary.md", status=3)
    for form in formats.names():
        message += place.run("report", "convert", "report.json", "--format", form, "--output", f"report.{form}")
    message += place.run("report", "judge", "report.json", "--json", status=3) + place.run(
        "report", "redact", "report.json"
    )
    assert json.loads((place.home / "report.json").read_text())["outcomes"]
    assert place.canaries.within(message) == set()
    assert place.left() == {str(place.home / "site.yaml"): PATHS}
