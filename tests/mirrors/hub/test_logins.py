"""What a profile names by reference is told to its host by our own client, and to no other."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.mirrors.net import credentials as net_credentials
from envcheck.mirrors.net.credentials import logins
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Index, Profile
from tests.http_server import Answer, Server, Servers, ranged
from tests.mirrors.hub.conftest import Hub
from tests.tables import each

CONTENT = b"the file of a mirror" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BASIC = "Basic " + base64.b64encode(b"me:canary").decode()


@pytest.fixture
def away(servers: Servers) -> Server:
    return servers.start(Server(lambda request: ranged(request, CONTENT), "127.0.0.4"))


@pytest.fixture
def mirror(servers: Servers, away: Server) -> Server:
    location = {"Location": f"{away.url}/file.bin"}
    return servers.start(Server(lambda _: Answer(302, headers=location), "127.0.0.2"))


def fetch(front: Server, tmp_path: Path, text: str) -> Result:
    (tmp_path / "file.bin").unlink(missing_ok=True)
    (tmp_path / "p.yaml").write_text(f"pypi: [{{url: '{front.url}/simple'}}]\n{text}")
    words = ["fetch", f"{front.url}/file.bin", "--sha256", SHA256, "--mirror", str(tmp_path / "p.yaml")]
    return CliRunner(env={"S": "canary"}).invoke(cli, [*words, "--output", str(tmp_path)], standalone_mode=False)


@pytest.mark.parametrize(
    ("text", "login"),
    [
        ("credentials: {'HOST': {user: me, password_env: S}}", BASIC),
        ("credentials: {'127.0.0.2': {user: me, password_file: secret}}", BASIC),
        ("netrc: netrc", BASIC),
        ("credentials: {'HOST': {token_env: S}}", "Bearer canary"),
        ("credentials: {'HOST': {token_file: secret}}", "Bearer canary"),
    ],
)
def test_a_secret_is_told_to_its_host_and_not_to_where_that_redirects(
    mirror: Server, away: Server, tmp_path: Path, text: str, login: str
) -> None:
    (tmp_path / "secret").write_text("canary\n")
    (tmp_path / "netrc").write_text("machine 127.0.0.2 login me password canary\n")
    (tmp_path / "netrc").chmod(0o600)
    done = fetch(mirror, tmp_path, text.replace("HOST", mirror.netloc))
    assert (done.exception, done.return_value) == (None, None), done.exception
    assert (mirror.logins, away.logins) == ({login}, {None})
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_secret_that_is_not_there_is_named_and_nobody_is_asked(mirror: Server, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for where, result in (("password_env: NOT_SET", "$NOT_SET"), ("password_file: empty", str(tmp_path / "empty"))):
        done = fetch(mirror, tmp_path, f"credentials: {{'{mirror.netloc}': {{user: me, {where}}}}}\n")
        assert f"its credential is missing: {result} has no secret" in str(done.exception)
    assert mirror.requests == []


ENDPOINT, OTHER, ORIGIN = "https://a.example", "https://b.example", "https://o.example"
ALLOWED = HuggingFace(endpoint=ENDPOINT, fallbacks=[OTHER], trusted=ORIGIN, token="allow")  # noqa: S106 (a policy)
NEVER = HuggingFace(endpoint=ENDPOINT, fallbacks=[OTHER], trusted=ORIGIN)
OWN = Credential(token_env="OWN")  # noqa: S106 (a name)


def sent_header(known: Sequence[net_credentials.Login], url: str) -> str | None:
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
    known = logins(profile, environ={"HF_TOKEN": "canary", "OWN": "own"})
    assert [sent_header(known, f"{url}/api") for url in (ENDPOINT, OTHER, ORIGIN)] == messages
    elsewhere = ("http://a.example/api", "https://b.example:8443/x", "https://evil.example/a.example")
    assert [sent_header(known, url) for url in elsewhere] == [None, None, None]


def test_a_credential_of_a_port_is_for_that_port_and_comes_first() -> None:
    named = {"x.example": Credential(token_env="A"), "x.example:444": Credential(token_env="B")}  # noqa: S106
    profile = Profile(name="p", pypi=[Index(url="https://x.example:446/simple")], credentials=named)
    known = net_credentials.host_credentials(profile, environ={"A": "a", "B": "b"})
    assert sent_header(known, "https://x.example:444/f") == "Bearer b"
    assert sent_header(known, "https://X.example/f") == sent_header(known, "https://x.example:446/f") == "Bearer a"
    for other in ("https://y.example:444/f", "https://x.example:445/f", "http://x.example/f", "http://x.example:444/f"):
        assert sent_header(known, other) is None  # another port of the host may be another user's


def test_a_credential_of_the_usual_port_and_of_a_named_endpoint_is_sent() -> None:
    usual = {"x.example:443": OWN, "y.example:80": OWN, "z.example": OWN}
    profile = Profile(name="p", pypi=[Index(url="http://y.example/simple")], credentials=usual)
    known = logins(profile, "https://z.example:8443", environ={"OWN": "own"})
    for url in ("https://x.example/f", "https://x.example:443/f", "http://y.example/f", "https://z.example:8443/f"):
        assert sent_header(known, url) == "Bearer own"
    for url in ("https://x.example:8443/f", "http://x.example/f", "https://y.example/f", "https://z.example:8444/f"):
        assert sent_header(known, url) is None


def test_a_token_s_file_is_read_as_huggingface_hub_does(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    profile = Profile(name="p", hf=HuggingFace(endpoint=ENDPOINT, token="allow"))  # noqa: S106 (a policy)
    for environ in ({"HF_HOME": str(tmp_path)}, {"HF_TOKEN_PATH": str(tmp_path / "token")}):
        assert [one.header(ENDPOINT) for one in logins(profile, environ=environ)] == ["Bearer from-file"]
    assert logins(profile, environ={"HF_HOME": str(tmp_path / "none")}) == []


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
