"""What a setting cannot do is so: the real clients do, and do not do, what the sentences beside a setting say."""

import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from envcheck.mirrors.profiles.model import HuggingFace, Index, Profile
from envcheck.mirrors.settings import RenderOptions, settings_of
from tests.http_server import Answer, Request, Server, Servers

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
    return lambda: servers.start(Recorder())


def run(argv: list[str], home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a client that can reach the loopback alone, with nothing of this machine's configuration."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C", "no_proxy": "127.0.0.1"}
    plain |= {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "UV_NO_CACHE": "1", **more}
    return subprocess.run(argv, env=plain, cwd=home, capture_output=True, text=True, check=False, timeout=120)


def cannot(form: str, profile: Profile) -> str:
    return "\n".join(settings_of(profile, form, WISH).notes)


def variables(profile: Profile, home: Path, **before: str) -> dict[str, str]:
    """Return what a shell has after it has evaluated the profile's `env`."""
    (script,) = settings_of(profile, "env", WISH).files.values()
    done = run(["/bin/sh", "-c", f"{script}\nenv -0"], home, **before)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)


PIP = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--retries", "0"]
UV = uv.find_uv_bin()


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
