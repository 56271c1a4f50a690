"""What a profile names by reference is told to its host by our own client, and to no other: shown by a real nginx."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.net import credentials as net_credentials
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Index, Profile
from tests.mirrors.hub.conftest import Hub
from tests.tables import each

PASSWORD, TOKEN = "canary-password", "canary-token"
CONTENT = b"the file of a mirror" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BASIC = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
CONF = """
daemon off; pid {root}/nginx.pid; error_log {root}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  log_format auth '$server_addr $http_authorization|'; access_log {root}/access.log auth; root {root}/www;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3; uwsgi_temp_path {root}/t4;
  scgi_temp_path {root}/t5;
  server {{ listen 127.0.0.2:{port}; auth_basic "mirror"; auth_basic_user_file {root}/users;
    location /away/ {{ return 302 http://127.0.0.4:{port}$request_uri; }} }}
  server {{ listen 127.0.0.3:{port};
    if ($http_authorization != "Bearer {token}") {{ return 401; }}
    location /away/ {{ return 302 http://127.0.0.4:{port}$request_uri; }} }}
  server {{ listen 127.0.0.4:{port}; }}
}}
"""


class Site(NamedTuple):
    """An nginx: one address wants a password, one a token, one nothing. /away/ leads to the third."""

    root: Path
    port: int

    def url(self, number: int, path: str = "file.bin") -> str:
        """Return where a file is on one of the addresses."""
        return f"http://127.0.0.{number}:{self.port}/{path}"

    def authorizations(self, number: int) -> set[str]:
        """Return the Authorization headers that an address received."""
        lines = [line.split(" ", 1) for line in (self.root / "access.log").read_text().split("|\n")[:-1]]
        return {header for at, header in lines if at == f"127.0.0.{number}"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Return a running site."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("no nginx here (`make test` unpacks it where apt is)")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    root = tmp_path / "site"
    (root / "www/away").mkdir(parents=True)
    for name in ("file.bin", "away/file.bin"):
        (root / "www" / name).write_bytes(CONTENT)
    hashed = subprocess.run(["openssl", "passwd", "-apr1", PASSWORD], capture_output=True, text=True, check=True)
    (root / "users").write_text(f"me:{hashed.stdout}")
    (root / "nginx.conf").write_text(CONF.format(root=root, port=port, token=TOKEN))
    words = [nginx, "-e", str(root / "error.log"), "-c", str(root / "nginx.conf"), "-p", str(root)]
    process = subprocess.Popen([*words, "-g", f"user {'root' if os.geteuid() == 0 else os.environ.get('USER', '')};"])
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.4", port)) == 0:
                break
        time.sleep(0.05)
    yield Site(root, port)
    process.terminate()
    process.wait(60)


def fetch(site: Site, number: int, text: str, tmp_path: Path, path: str = "file.bin", **environment: str) -> Result:
    (tmp_path / "p.yaml").write_text(text)
    words = [
        site.url(number, path),
        "--sha256",
        SHA256,
        "--mirror",
        str(tmp_path / "p.yaml"),
        "--output",
        str(tmp_path),
    ]
    return CliRunner(env=environment).invoke(cli, ["fetch", *words], standalone_mode=False)


def hosts(site: Site, number: int) -> str:
    """Return the part of a profile that names an address as a mirror, as it must be without TLS."""
    return f"pypi: [{{url: 'http://127.0.0.{number}:{site.port}/simple'}}]\n"


@pytest.mark.tools
@pytest.mark.parametrize("how", ["env", "file", "netrc", "any port"])
def test_a_password_is_told_to_its_host(site: Site, tmp_path: Path, how: str) -> None:
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    (tmp_path / "netrc").write_text(f"machine 127.0.0.2 login me password {PASSWORD}\n")
    host = f"127.0.0.2:{site.port}" if how != "any port" else "127.0.0.2"
    where = {"env": "password_env: SITE_PASSWORD", "file": "password_file: secret"}.get(how, "password_file: secret")
    named = "netrc: netrc\n" if how == "netrc" else f"credentials: {{'{host}': {{user: me, {where}}}}}\n"
    done = fetch(site, 2, hosts(site, 2) + named, tmp_path, SITE_PASSWORD=PASSWORD)
    assert (done.exception, done.return_value) == (None, None), done.exception
    assert site.authorizations(2) == {BASIC}
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.tools
@pytest.mark.parametrize("where", ["token_env: SITE_TOKEN", "token_file: secret"])
def test_a_token_is_told_to_its_host(site: Site, tmp_path: Path, where: str) -> None:
    (tmp_path / "secret").write_text(TOKEN + "\n")
    named = f"credentials: {{'127.0.0.3:{site.port}': {{{where}}}}}\n"
    done = fetch(site, 3, hosts(site, 3) + named, tmp_path, SITE_TOKEN=TOKEN)
    assert (done.exception, done.return_value) == (None, None), done.exception
    assert site.authorizations(3) == {f"Bearer {TOKEN}"}


@pytest.mark.tools
@pytest.mark.parametrize(("number", "secret"), [(2, "user: me, password_env: S"), (3, "token_env: S")])
def test_a_redirect_carries_nothing_to_another_host(site: Site, tmp_path: Path, number: int, secret: str) -> None:
    named = f"credentials: {{'127.0.0.{number}:{site.port}': {{{secret}}}}}\n"
    given = PASSWORD if number == 2 else TOKEN
    done = fetch(site, number, hosts(site, number) + named, tmp_path, "away/file.bin", S=given)
    assert (done.exception, done.return_value) == (None, None), done.exception
    assert len(site.authorizations(number)) == 1
    assert site.authorizations(4) == {"-"}


@pytest.mark.tools
def test_a_secret_that_is_not_there_is_named_and_nobody_is_asked(site: Site, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for where, result in (("password_env: NOT_SET", "$NOT_SET"), ("password_file: empty", str(tmp_path / "empty"))):
        named = f"credentials: {{'127.0.0.2:{site.port}': {{user: me, {where}}}}}\n"
        done = fetch(site, 2, hosts(site, 2) + named, tmp_path)
        assert f"its credential is missing: {result} has no secret" in str(done.exception)
    assert (site.root / "access.log").read_text() == ""


ENDPOINT, OTHER, ORIGIN = "https://a.example", "https://b.example", "https://o.example"
ALLOWED = HuggingFace(endpoint=ENDPOINT, fallbacks=[OTHER], trusted=ORIGIN, token="allow")  # noqa: S106 (a policy)
NEVER = HuggingFace(endpoint=ENDPOINT, fallbacks=[OTHER], trusted=ORIGIN)
OWN = Credential(token_env="OWN")  # noqa: S106 (a name)


def sent_header(known: Sequence[net_credentials.Login], url: str) -> str | None:
    """Return the header that the host of a URL gets."""
    return next((header for login in known if (header := login.header(url)) is not None), None)


@each(
    ("policy", "credentials", "messages"),
    [
        (NEVER, {}, [None, None, None]),
        (ALLOWED, {}, ["Bearer canary"] * 3),
        (NEVER, {"o.example": Credential(token_env="HF_TOKEN")}, [None, None, "Bearer canary"]),  # noqa: S106
        (ALLOWED, {"a.example": OWN}, ["Bearer own", "Bearer canary", "Bearer canary"]),
    ],
)
def test_huggingface_s_own_token_goes_where_the_profile_says(
    policy: HuggingFace, credentials: dict[str, Credential], messages: list[str | None]
) -> None:
    profile = Profile(name="p", hf=policy, credentials=credentials)
    known = hub_api.logins(profile, environ={"HF_TOKEN": "canary", "OWN": "own"})
    assert [sent_header(known, f"{url}/api") for url in (ENDPOINT, OTHER, ORIGIN)] == messages
    elsewhere = ("http://a.example/api", "https://b.example:8443/x", "https://evil.example/a.example")
    assert [sent_header(known, url) for url in elsewhere] == [None, None, None]


def test_a_credential_of_a_port_is_for_that_port_and_comes_first() -> None:
    named = {"x.example": Credential(token_env="A"), "x.example:444": Credential(token_env="B")}  # noqa: S106
    profile = Profile(name="p", pypi=[Index(url="https://x.example")], credentials=named)
    known = net_credentials.host_credentials(profile, {"A": "a", "B": "b"})
    assert sent_header(known, "https://x.example:444/f") == "Bearer b"
    assert sent_header(known, "https://X.example/f") == sent_header(known, "https://x.example:445/f") == "Bearer a"
    assert sent_header(known, "https://y.example:444/f") is None


def test_a_token_s_file_is_read_as_huggingface_hub_does(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    profile = Profile(name="p", hf=HuggingFace(endpoint=ENDPOINT, token="allow"))  # noqa: S106 (a policy)
    for environ in ({"HF_HOME": str(tmp_path)}, {"HF_TOKEN_PATH": str(tmp_path / "token")}):
        assert [one.header(ENDPOINT) for one in hub_api.logins(profile, environ=environ)] == ["Bearer from-file"]
    assert hub_api.logins(profile, environ={"HF_HOME": str(tmp_path / "none")}) == []


def test_two_hubs_are_each_told_their_own_token(hubs: Callable[[], Hub], tmp_path: Path) -> None:
    origin, mirror = hubs(), hubs()
    origin.token, mirror.token = "canary-origin", "canary-mirror"
    (tmp_path / "p.yaml").write_text(
        f"hf: {{endpoint: '{mirror.url}', trusted: '{origin.url}'}}\n"
        f"credentials: {{'{mirror.netloc}': {{token_env: MIRROR}}, '{origin.netloc}': {{token_env: ORIGIN}}}}\n"
    )
    words = ["fetch", "--model", "owner/tiny", "--mirror", str(tmp_path / "p.yaml"), "--output", str(tmp_path / "to")]
    environ = {"MIRROR": mirror.token, "ORIGIN": origin.token, "HF_TOKEN": "canary-own"}
    result = CliRunner(env=environ).invoke(cli, words, standalone_mode=False)
    assert (result.exception, result.return_value) == (None, None), result.exception
    assert set(origin.tokens) == {"Bearer canary-origin"}
    assert set(mirror.tokens) == {"Bearer canary-mirror"}
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"canary" in content for content in kept)
