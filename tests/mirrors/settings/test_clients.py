"""What a setting cannot do is so: the real clients do, and do not do, what the sentences beside a setting say."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from envcheck.mirrors.profiles.model import Credential, HuggingFace, Index, Profile
from envcheck.mirrors.settings import RENDERERS
from envcheck.mirrors.settings.clients import RenderOptions
from tests.http_server import Answer, Request, Server, Servers
from tests.wheels import wheel

CANARY = "hunter2-canary"
WISH = RenderOptions(variant="cpu", distro="debian", suite="bookworm")
NOWHERE = "http://127.0.0.1:9"


class Recorder(Server):
    """A server that writes down what it is asked, and by whom; `pages` are all it has."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.pages: dict[str, tuple[str, bytes]] = {}

    def answer(self, request: Request) -> Answer:
        """Return a page."""
        if request.path not in self.pages:
            return Answer(404)
        kind, body = self.pages[request.path]
        return Answer(200, body, {"Content-Type": kind})


@pytest.fixture
def recorder(servers: Servers) -> Callable[[], Recorder]:
    """Return what starts a recorder."""
    return lambda: servers.start(Recorder())


def run(argv: list[str], home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a client that can reach the loopback alone, with nothing of this machine's configuration."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C", "no_proxy": "127.0.0.1"}
    plain |= {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "UV_NO_CACHE": "1", **more}
    return subprocess.run(argv, env=plain, cwd=home, capture_output=True, text=True, check=False, timeout=120)


def cannot(form: str, profile: Profile) -> str:
    return "\n".join(RENDERERS[form](profile, WISH).notes)


def variables(profile: Profile, home: Path, **before: str) -> dict[str, str]:
    """Return what a shell has after it has evaluated the profile's `env`."""
    (script,) = RENDERERS["env"](profile, WISH).files.values()
    done = run(["/bin/sh", "-c", f"{script}\nenv -0"], home, **before)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)


PIP = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--retries", "0"]
UV = uv.find_uv_bin()


def test_uv_reads_none_of_pips_settings(recorder: Callable[[], Recorder], tmp_path: Path) -> None:
    mirror = recorder()
    profile = Profile(name="x", pypi=[Index(url=f"{mirror.url}/simple")])
    assert "uv reads none of pip's settings" in cannot("pip", profile)
    (text,) = RENDERERS["pip"](profile, WISH).files.values()
    (tmp_path / "pip.conf").write_text(text)
    data = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_INDEX_URL": f"{mirror.url}/simple"}
    run([UV, "pip", "install", "--target", "x", "alpha"], tmp_path, **data)
    assert mirror.paths == []
    run([*PIP, "alpha"], tmp_path, **data)
    assert "/simple/alpha/" in mirror.paths


def test_torch_backend_ignores_the_mirror(recorder: Callable[[], Recorder], tmp_path: Path) -> None:
    mirror, proxy = recorder(), recorder()
    profile = Profile(name="x", pypi=[Index(url=f"{mirror.url}/simple")])
    assert "--torch-backend and UV_TORCH_BACKEND ignore every mirror" in cannot("uv", profile)
    (text,) = RENDERERS["uv"](profile, WISH).files.values()
    (tmp_path / "uv.toml").write_text(text)
    install = [UV, "pip", "install", "--config-file", str(tmp_path / "uv.toml"), "--target", "x", "torch"]
    away = {"https_proxy": proxy.url, "http_proxy": proxy.url, "UV_HTTP_RETRIES": "0"}
    run(install, tmp_path, **away)
    assert (bool(mirror.paths), proxy.paths) == (True, [])
    run([*install, "--torch-backend", "cpu"], tmp_path, **away)
    assert {request.method for request in proxy.requests} == {"CONNECT"}
    assert not [path for path in proxy.paths if path.startswith("127.0.0.1")]


def test_uv_lock_records_the_mirrors_urls(recorder: Callable[[], Recorder], tmp_path: Path) -> None:
    mirror = recorder()
    profile = Profile(name="x", pypi=[Index(url=f"{mirror.url}/simple")])
    assert "uv.lock records the mirror's URLs" in cannot("uv", profile)
    name = "alpha-1.0-py3-none-any.whl"
    mirror.pages[f"/f/{name}"] = ("application/octet-stream", wheel(tmp_path, "alpha").read_bytes())
    mirror.pages["/simple/alpha/"] = ("text/html", f'<a href="/f/{name}">{name}</a>'.encode())
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["alpha"]\n'
    )
    (text,) = RENDERERS["uv"](profile, WISH).files.values()
    (tmp_path / "uv.toml").write_text(text)
    done = run([UV, "lock", "--config-file", str(tmp_path / "uv.toml"), "--python", sys.executable], tmp_path)
    assert done.returncode == 0, done.stderr
    assert mirror.url in (tmp_path / "uv.lock").read_text()


ASK = "from huggingface_hub import HfApi\nHfApi().model_info('o/r')"


@pytest.mark.tools
def test_a_netrc_reaches_pip_and_uv_and_not_huggingface_hub(
    recorder: Callable[[], Recorder], hub_python: Path, tmp_path: Path
) -> None:
    mirror = recorder()
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login joe password {CANARY}\n")
    (tmp_path / "netrc").chmod(0o600)
    profile = Profile(
        name="x",
        netrc=str(tmp_path / "netrc"),
        pypi=[Index(url=f"{mirror.url}/simple")],
        hf=HuggingFace(endpoint=mirror.url),
    )
    assert "a netrc does not reach huggingface_hub" in cannot("hf", profile)
    data = variables(profile, tmp_path)
    run([str(hub_python), "-c", ASK], tmp_path, **data)
    assert mirror.logins == {None}
    login = "Basic " + base64.b64encode(f"joe:{CANARY}".encode()).decode()
    for command in ([*PIP, "alpha"], [UV, "pip", "install", "--target", "x", "alpha"]):
        mirror.requests.clear()
        run(command, tmp_path, **data)
        assert login in mirror.logins


@pytest.mark.tools
@pytest.mark.parametrize(("policy", "sent"), [("never", {None}), ("allow", {f"Bearer {CANARY}"})])
def test_a_token_goes_to_the_mirror_only_where_the_profile_allows_it(
    recorder: Callable[[], Recorder], hub_python: Path, tmp_path: Path, policy: str, sent: set[str | None]
) -> None:
    mirror = recorder()
    profile = Profile(name="x", hf=HuggingFace(endpoint=mirror.url, token="allow" if policy == "allow" else "never"))
    message = {"never": "HF_TOKEN is not sent to", "allow": "HF_TOKEN is sent to"}[policy]
    assert f"{message} {mirror.url.removeprefix('http://')}" in cannot("hf", profile)
    run([str(hub_python), "-c", ASK], tmp_path, **variables(profile, tmp_path, HF_TOKEN=CANARY))
    assert [path for path in mirror.paths if "/o/r" in path]
    assert mirror.logins == sent


@pytest.mark.tools
@pytest.mark.parametrize(
    ("imported", "early"), [("from huggingface_hub import HfApi", True), ("import huggingface_hub", False)]
)
def test_huggingface_hub_reads_its_endpoint_when_what_uses_it_is_imported(
    recorder: Callable[[], Recorder], hub_python: Path, tmp_path: Path, imported: str, *, early: bool
) -> None:
    first, second = recorder(), recorder()
    profile = Profile(name="x", hf=HuggingFace(endpoint=first.url))
    assert "reads the variables once, when it is imported" in cannot("hf", profile)
    late = f"{imported}\nimport os\nos.environ['HF_ENDPOINT'] = {second.url!r}\n{ASK}"
    run([str(hub_python), "-c", late], tmp_path, **variables(profile, tmp_path))
    assert (bool(first.paths), bool(second.paths)) == (early, not early)


def test_npm_takes_the_registry_and_puts_the_token_in_itself(recorder: Callable[[], Recorder], tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on this machine")
    mirror = recorder()
    page = {
        "name": "tiny",
        "dist-tags": {"latest": "1.2.3"},
        "versions": {"1.2.3": {"name": "tiny", "version": "1.2.3"}},
    }
    mirror.pages["/repo/tiny"] = ("application/json", json.dumps(page).encode())
    credentials = {mirror.url.removeprefix("http://"): Credential(token_env="NPM_TOKEN")}  # noqa: S106 (a name)
    profile = Profile(name="x", npm=f"{mirror.url}/repo/", credentials=credentials)
    (text,) = RENDERERS["npm"](profile, WISH).files.values()
    assert CANARY not in text
    (tmp_path / ".npmrc").write_text(text)
    data = {"PATH": os.environ["PATH"], "NPM_TOKEN": CANARY, "NPM_CONFIG_UPDATE_NOTIFIER": "false"}
    done = run([npm, "view", "tiny", "version"], tmp_path, **data)
    assert done.stdout == "1.2.3\n", done.stderr
    assert [(one.method, one.path, one.login) for one in mirror.requests] == [("GET", "/repo/tiny", f"Bearer {CANARY}")]


def test_apt_reads_neither_a_netrc_nor_variables(recorder: Callable[[], Recorder], tmp_path: Path) -> None:
    apt = shutil.which("apt-get")
    if apt is None:
        pytest.skip("no apt on this machine")
    mirror = recorder()
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login joe password {CANARY}\n")
    credentials = {mirror.url.removeprefix("http://"): Credential(user="joe", password_env="P")}  # noqa: S106 (a name)
    profile = Profile(name="x", apt=[mirror.url], credentials=credentials, netrc=str(tmp_path / ".netrc"))
    assert "apt reads neither netrc nor variables" in cannot("apt", profile)
    for name in ("lists/partial", "archives/partial", "parts", "conf"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "status").touch()
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] {mirror.url}/debian bookworm main\n")
    options = {
        "Dir::Etc::sourcelist": tmp_path / "sources.list",
        "Dir::Etc::sourceparts": tmp_path / "parts",
        "Dir::Etc::parts": tmp_path / "conf",
        "Dir::Etc::netrc": tmp_path / "none",
        "Dir::Etc::netrcparts": tmp_path / "conf",
        "Dir::State": tmp_path,
        "Dir::State::status": tmp_path / "status",
        "Dir::Cache": tmp_path,
        "Acquire::Retries": "0",
        "APT::Sandbox::User": "",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    data = {"NETRC": str(tmp_path / ".netrc"), "P": CANARY, "APT_CONFIG": "/dev/null"}
    run([apt, *words, "update"], tmp_path, **data)
    assert [path for path in mirror.paths if path.endswith("bookworm/InRelease")]
    assert mirror.logins == {None}
