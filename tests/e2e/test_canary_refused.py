"""What holds a secret where none belongs is refused, in words that do not repeat it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.cli import main
from tests.e2e.canaries import Canaries
from tests.tables import each

CANARIES = Canaries("canary5f1c09e7d2ab")
SECRET = CANARIES["secret"]
Said = Callable[..., tuple[int, str]]
CLIENTS = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "HF_ENDPOINT"),
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
)
# A password as people paste it: in its place, with signs in it that should have been escaped, without a scheme before.
URLS = (
    f"https://me:{SECRET}@mirror.example/simple",
    f"https://{SECRET}@mirror.example/simple",
    f"https://me:{SECRET}/x@mirror.example/simple",
    f"https://me:a#{SECRET}@mirror.example/simple",
    f"https://me:a {SECRET}@mirror.example/simple",
    f"HTTPS://me:{SECRET}@mirror.example/simple",
    f"https:me:{SECRET}@mirror.example/simple",
    f"//me:{SECRET}@mirror.example/simple",
    f"me:{SECRET}@mirror.example/simple",
    f"https://me:a?b{SECRET}@mirror.example/simple",
    f"ftp://me:{SECRET}@mirror.example/simple",
    f"https://mirror.example/simple?token={SECRET}",
    f"mirror.example/simple?token={SECRET}",
    f"https://mirror.example/simple?a b={SECRET}",
    f"https://mirror.example:99999999/simple?token={SECRET}",
    f"https://[mirror/simple?token={SECRET}",
)
SITE = ("mirror", "site", "render", "{}/site", "--no-pytorch", "--no-hf", "--link", "https://files.example")


@pytest.fixture
def canary_outputs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Said:
    """Give a function that runs envcheck as its program does: exit status, and all that was printed and left."""
    for name in ("NETRC", "PIP_CONFIG_FILE", "UV_CONFIG_FILE", *CLIENTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "ENVCHECK_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["envcheck", *(str(word).replace("{}", str(tmp_path)) for word in words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return int(str(ended.value.code)), printed.out + printed.err

    return run


def refused(answer: tuple[int, str]) -> bool:
    """Tell whether what was said is one line of ours without a secret; what it is else shows in the failure."""
    status, text = answer
    assert CANARIES.within(text) == set(), text
    assert (status, text.count("\n")) == (2, 1), text
    return text.startswith("envcheck: ")


@each("url", URLS)
def test_a_url_with_a_secret(canary_outputs: Said, tmp_path: Path, url: str) -> None:
    for words in (
        ("mirror", "show", url),
        ("mirror", "env", url),
        ("mirror", "use", url),
        ("mirror", "probe", "--mirror", "none", "--need", url)
        if "?" not in url
        else ("mirror", "probe", "--mirror", url),
        ("fetch", "torch2.13.0-cpu-py311", "--mirror", url),
        ("build", "torch2.13.0-cpu-py311", "--engine", "venv", "--mirror", url),
        ("render", "torch2.13.0-cpu-py311", "--output", "{}/out", "--mirror", url),
        ("store", "release", "torch2.13.0-cpu-py311", "--mirror", url),
        (*SITE, "--mirror", url),
        (*SITE, "--registry", f"one={url}"),
        (*SITE, "--sync", f"one={url}"),
        (*SITE, "--link", url),
    ):
        assert refused(canary_outputs(*words))
    if "?" not in url:  # where a signed link is what a file is fetched from, it is used and not said
        assert refused(canary_outputs("fetch", url, "--sha256", "0" * 64))
    assert CANARIES.below(tmp_path) == {}


@each("url", URLS)
@each(
    "profile",
    [
        "pypi: [{url: URL}]",
        "pytorch: [{url: URL, kind: find-links}]",
        "hf: {endpoint: URL}",
        "hf: {trusted: URL}",
        "apt: [URL]",
        "npm: URL",
        "conda: {channel_alias: URL}",
        "conda: {default_channels: [URL]}",
        "conda: {custom_channels: {one: URL}}",
        "registry: URL",
        "registries: {docker.io: [URL]}",
        "modelscope: URL",
    ],
)
def test_a_profile_with_a_secret_in_a_url(canary_outputs: Said, tmp_path: Path, profile: str, url: str) -> None:
    (tmp_path / "site.yaml").write_text(profile.replace("URL", json.dumps(url)))
    assert refused(canary_outputs("mirror", "show", "site.yaml"))


@each(
    "profile",
    [
        f"hf: {{token: {SECRET}}}",
        f"hf: {{password: {SECRET}}}",
        f"credentials: {{mirror.example: {{password: {SECRET}}}}}",
        f"credentials: {{mirror.example: {{user: me, password_env: '{SECRET}'}}}}",
        f"credentials: {{mirror.example: {{token_env: '{SECRET}'}}}}",
        f"credentials: {{'me:{SECRET}@mirror.example': {{token_env: T}}}}",
        f"credentials: {{mirror.example: {SECRET}}}",
        f"netrc: [{SECRET}]",
        f"netrc: *{SECRET}",
        f"netrc: !{SECRET} x",
        f"keep: {SECRET}",
        f"pypi: 'https://me:{SECRET}@mirror.example'",
        f"conda: {{custom_channels: {{'me:{SECRET}@x': 'https://mirror.example'}}}}",
        f"registries: {{'me:{SECRET}@x': [mirror.example]}}",
        f"{SECRET}",
        f"- {SECRET}",
        f"pypi: [{{url: {SECRET}",
        f"pypi: '{SECRET}\n",
    ],
)
def test_a_profile_with_a_secret_elsewhere(canary_outputs: Said, tmp_path: Path, profile: str) -> None:
    (tmp_path / "site.yaml").write_text(profile)
    assert refused(canary_outputs("mirror", "show", "site.yaml"))


@each("url", URLS)
def test_this_machines_settings_with_a_secret(canary_outputs: Said, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in CLIENTS:
        if " " in url and name != "HF_ENDPOINT":
            continue  # a list's blank: what follows is another URL
        with monkeypatch.context() as set_:
            set_.setenv(name, url)
            assert refused(canary_outputs("mirror", "show", "host"))


def test_this_machines_files_with_a_secret(
    canary_outputs: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    texts = (f"[global]\nindex-url = {URLS[0]}\n", f"index-url = {URLS[0]}\n", f"[global]\n{SECRET}\n")
    for text in (*texts, f"[global]\nproxy = {SECRET}\nproxy = {SECRET}\n"):
        file.write_text(text)
        assert refused(canary_outputs("mirror", "show", "host"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("UV_NO_CONFIG")
    monkeypatch.setenv("UV_CONFIG_FILE", str(file))
    for text in (
        f'[[index]]\nurl = "{URLS[0]}"\n',
        f'index-url = "{URLS[0]}\n',
        f"index = {SECRET}\n",
        f"index = '{SECRET}'",
    ):
        file.write_text(text)
        assert refused(canary_outputs("mirror", "show", "host"))


@each(
    "text", [f"machine h login me password two {SECRET}\n", f"{SECRET}\n", f"machine h {SECRET}\n", f"macdef {SECRET}"]
)
def test_a_netrc_that_is_none(canary_outputs: Said, tmp_path: Path, text: str) -> None:
    (tmp_path / "netrc").write_text(text)
    (tmp_path / "netrc").chmod(0o600)
    (tmp_path / "site.yaml").write_text("netrc: netrc\npypi: [{url: 'https://127.0.0.1:9/simple'}]\n")
    assert refused(canary_outputs("fetch", "torch2.13.0-cpu-py311", "--mirror", "site.yaml"))
