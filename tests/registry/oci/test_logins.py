"""Which login a registry gets, by which way, and that no message, log or exception holds a secret."""

import base64
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from envcheck.errors import EnvcheckError
from envcheck.mirrors.net.client import Client
from envcheck.registry.documents import DeniedError, parse_reference
from envcheck.registry.logins import Authorization, find_account
from envcheck.registry.repository import Repository
from tests.http_server import Answer, Request, Servers
from tests.registry.oci import fakes
from tests.registry.oci.fakes import FakeRegistry, push_image
from tests.tables import each

CANARY = "CANARY-7f3a"
ENCODED = base64.b64encode(f"me:{CANARY}".encode()).decode()
BASIC = f"Basic {ENCODED}"
HUB = "https://index.docker.io/v1/"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".docker").mkdir()
    return tmp_path


def log_in(home: Path, **content: object) -> dict[str, str]:
    (home / ".docker/config.json").write_text(json.dumps(content))
    return {"HOME": str(home)}


def helper(at: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (at / "docker-credential-test").write_text(f"#!/bin/sh\n{script}\n")
    (at / "docker-credential-test").chmod(0o755)
    monkeypatch.setenv("PATH", f"{at}:/usr/bin:/bin")


def header(environ: dict[str, str], name: str = "registry.example/team/torch") -> str | None:
    account = find_account(parse_reference(name), environ)
    return None if account is None else account.basic


@each(
    "key, name",
    [
        ("registry.example", "registry.example/torch"),
        ("https://registry.example/v1/", "registry.example/torch"),
        ("https://registry.example", "registry.example/torch"),
        ("registry.example/team", "registry.example/team/torch"),
        (HUB, "torch"),
        ("docker.io", "team/torch"),
        ("127.0.0.1:5000", "127.0.0.1:5000/torch"),
    ],
)
def test_a_login_is_found_under_the_names_that_clients_write(home: Path, key: str, name: str) -> None:
    assert header(log_in(home, auths={key: {"auth": ENCODED}}), name) == BASIC
    padded = base64.b64encode(f"me:{CANARY}\0\0".encode()).decode()  # as old clients of docker pad it
    assert header(log_in(home, auths={key: {"auth": padded}}), name) == BASIC
    far = {"registry.example": {"auth": base64.b64encode(b"me:far").decode()}}  # the nearest part counts
    assert header(log_in(home, auths={**far, "registry.example/team": {"auth": ENCODED}})) == BASIC


def test_the_files_count_in_their_order(home: Path) -> None:
    environ = log_in(home, auths={"registry.example": {"auth": base64.b64encode(b"me:docker").decode()}})
    for number, name in enumerate(("run/containers/auth.json", ".config/containers/auth.json", "own.json")):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        entry = {"auth": base64.b64encode(f"me:podman{number}".encode()).decode()}
        (home / name).write_text(json.dumps({"auths": {"registry.example": entry, f"only{number}.example": entry}}))
    environ |= {"XDG_RUNTIME_DIR": str(home / "run")}

    def password(name: str, more: dict[str, str]) -> str:
        text = header({**environ, **more}, f"{name}/torch")
        return base64.b64decode((text or "").removeprefix("Basic ")).decode().partition(":")[2]

    assert password("registry.example", {}) == "docker"
    assert password("registry.example", {"REGISTRY_AUTH_FILE": str(home / "own.json")}) == "podman2"
    assert password("only0.example", {}) == "podman0"
    assert password("only1.example", {}) == "podman1"
    (home / "moved").mkdir()
    assert password("registry.example", {"DOCKER_CONFIG": str(home / "moved")}) == "podman0"


@each(
    "content",
    [
        f'{{"auths": "{CANARY}"',
        f'{{"auths": {{"r": {{"auth": ["{CANARY}"]}}}}}}',
        f'{{"auths": {{"registry.example": {{"auth": "{CANARY}!"}}}}}}',
        f'{{"auths": ["{CANARY}"]}}',
        f'["{CANARY}"]',
        "\xff",
        '{"auths":' * 5_000,
    ],
)
def test_a_file_that_is_no_file_of_logins_is_refused_without_its_text(home: Path, content: str) -> None:
    (home / ".docker/config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(EnvcheckError, match="not a valid file of logins") as refused:
        header({"HOME": str(home)})
    assert CANARY not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_a_helper_is_asked_for_its_registry(home: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    message = home / "asked"
    answer = json.dumps({"ServerURL": "x", "Username": "me", "Secret": CANARY})
    helper(home, monkeypatch, f"echo \"$1 $(cat)\" >{message}\necho '{answer}'")
    environ = log_in(home, **{key: {"registry.example": "test"} if key == "credHelpers" else "test"})
    assert header(environ) == BASIC
    assert message.read_text() == "get registry.example\n"
    if key == "credsStore":
        assert header(environ, "torch") == BASIC
        assert message.read_text() == f"get {HUB}\n"
    else:
        assert header(environ, "other.example/torch") is None
        for part, name in (("registry.example/team", "registry.example/team/torch"), (HUB, "torch")):
            assert header(log_in(home, credHelpers={part: "test"}), name) == BASIC


def test_a_store_without_the_login_leaves_it_to_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(home, monkeypatch, "echo 'credentials not found in native keychain'; exit 1")
    assert header(log_in(home, credsStore="test", auths={"registry.example": {"auth": ENCODED}})) == BASIC
    assert header(log_in(home, credsStore="test", auths={"registry.example": {}})) is None


def test_a_path_is_no_name_of_a_helper(home: Path) -> None:
    with pytest.raises(EnvcheckError, match=r"config\.json: '\.\./evil' is no name of a helper"):
        header(log_in(home, credsStore="../evil"))


def test_a_helper_that_fails_is_named_without_what_it_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with an error, prints no JSON, or JSON of another form; or it is not there."""
    scripts = [f"echo {CANARY}; exit 3", f"echo '{CANARY}'", f'echo \'{{"Secret": ["{CANARY}"]}}\'']
    for name, script in [*(("test", script) for script in scripts), ("absent", "")]:
        helper(home, monkeypatch, script)
        with pytest.raises(EnvcheckError, match=r"config\.json names the credential helper") as refused:
            header(log_in(home, credsStore=name))
        assert refused.value.exit_code == 3
        assert CANARY not in "".join(traceback.format_exception(refused.value)), script


def guarded(expected: Callable[[Request], bool], challenge: str) -> FakeRegistry:
    """Return a registry that wants a login: a password, or a token that another server issues."""

    def guard(request: Request) -> Answer | None:
        body = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": f"you sent {request.login}"}]}).encode()
        return None if expected(request) else Answer(401, body, {"WWW-Authenticate": challenge})

    return FakeRegistry(guard)


class Tokens(FakeRegistry):
    """What issues tokens, each with a number, to whom has the password."""

    def __init__(self) -> None:
        super().__init__(self.issue)
        self.status = 200
        self.issued: list[str] = []

    def issue(self, request: Request) -> Answer:
        if self.status != 200:
            return Answer(self.status, f"{request.login} {request.body!r}".encode())
        self.issued.append(f"token-{len(self.issued)}")
        return Answer(200, json.dumps({"token": self.issued[-1], "expires_in": 300}).encode())

    def scopes(self) -> list[list[str]]:
        return [parse_qs(urlsplit(request.path).query).get("scope", []) for request in self.requests]


@pytest.fixture
def tokens(servers: Servers) -> Tokens:
    return servers.start(Tokens())


def opened(registry: FakeRegistry, environ: dict[str, str]) -> Repository:
    return fakes.opened(registry.netloc, environ=environ)


def logged_in(home: Path, registry: FakeRegistry, **entry: str) -> dict[str, str]:
    return log_in(home, auths={registry.netloc: entry or {"auth": ENCODED}})


def test_a_password_goes_to_a_registry_that_asks_and_is_kept(servers: Servers, home: Path) -> None:
    registry = servers.start(guarded(lambda request: request.login == BASIC, 'Basic realm="x"'))
    push_image(opened(registry, logged_in(home, registry)))
    assert [request.login for request in registry.requests][:2] == [None, BASIC]
    assert {request.login for request in registry.requests[1:]} == {BASIC}
    guard = registry.fault
    registry.fault = lambda request: guard(request) or (Answer(403, b"{}") if request.method == "PUT" else None)
    with pytest.raises(DeniedError, match=r"403.; make room if a quota is full, or use an account"):
        push_image(opened(registry, logged_in(home, registry)), "two")


def test_a_token_is_issued_for_reading_and_another_for_writing(servers: Servers, tokens: Tokens, home: Path) -> None:
    challenge = f'Bearer realm="{tokens.url}/token",service="s",scope="repository:hub/team/torch:pull"'
    registry = servers.start(guarded(lambda r: (r.login or "").startswith("Bearer token-"), challenge))
    repository = opened(registry, logged_in(home, registry))
    push_image(repository)
    repository.tags()
    own, other = "repository:team/torch", "repository:hub/team/torch:pull"
    assert tokens.scopes() == [[f"{own}:pull", other], [f"{own}:pull,push", other]]
    assert tokens.logins == {BASIC}
    assert registry.logins == {None, "Bearer token-0", "Bearer token-1"}


def test_a_token_is_issued_again_when_it_is_refused(servers: Servers, tokens: Tokens, home: Path) -> None:
    challenge = f'Bearer realm="{tokens.url}"'
    registry = servers.start(guarded(lambda r: r.login in [f"Bearer {one}" for one in tokens.issued[-1:]], challenge))
    repository = opened(registry, logged_in(home, registry))
    repository.tags()
    repository.tags()
    assert len(tokens.issued) == 1
    tokens.issued.append("expired all before")
    repository.tags()
    assert len(tokens.issued) == 3


def test_an_identity_token_is_posted_and_never_in_a_url(servers: Servers, tokens: Tokens, home: Path) -> None:
    challenge = f'Bearer realm="{tokens.url}/t",service="s"'
    registry = servers.start(guarded(lambda request: request.login == "Bearer token-0", challenge))
    opened(registry, logged_in(home, registry, identitytoken=CANARY)).tags()
    [request] = tokens.requests
    form = parse_qs(request.body.decode())
    assert (request.method, request.path, request.login) == ("POST", "/t", None)
    assert form["refresh_token"] == [CANARY]
    assert (form["grant_type"], form["service"]) == (["refresh_token"], ["s"])
    assert form["scope"] == ["repository:team/torch:pull"]


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_token_that_is_refused_is_a_denial_with_the_command_to_log_in(
    servers: Servers, tokens: Tokens, home: Path, status: int
) -> None:
    tokens.status = status
    registry = servers.start(guarded(lambda _: False, f'Bearer realm="{tokens.url}"'))
    with pytest.raises(DeniedError, match=f"refuses a token .{status} from .*docker login {registry.netloc}"):
        opened(registry, {"HOME": str(home)}).tags()


def test_no_secret_goes_over_plain_http_to_another_machine(
    servers: Servers, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry on this machine names a place elsewhere; one elsewhere, or behind a proxy, wants a password."""
    far = guarded(lambda _: False, 'Bearer realm="http://tokens.example/t"')
    registry = servers.start(far)
    with pytest.raises(DeniedError, match=r"tokens\.example wants a login over plain http"):
        opened(registry, logged_in(home, registry)).tags()
    basic = servers.start(guarded(lambda _: False, 'Basic realm="x"'))
    for name, value in (("proxy_of", "http://proxy.example"), ("is_loopback", None)):
        with monkeypatch.context() as patched:
            patched.setattr(f"envcheck.registry.logins.{name}", lambda _, value=value: value)
            with pytest.raises(DeniedError, match="wants a login over plain http"):
                opened(basic, logged_in(home, basic)).tags()
    monkeypatch.setattr("envcheck.registry.logins.is_loopback", lambda _: False)
    assert basic.logins == {None}
    # Whoever is on the way to it names a place with TLS (data-accelerator/dart#8).
    tokens = servers.start(guarded(lambda _: False, 'Bearer realm="https://tokens.example/t"'))
    with pytest.raises(DeniedError, match=r"127\.0\.0\.1.* wants a login over plain http"):
        opened(tokens, logged_in(home, tokens)).tags()


@each("realm", ["http://tokens.example/t", "https://127.0.0.1:1/t", "https://localhost/t"])
def test_a_registry_over_tls_sends_nobody_to_plain_http_or_to_this_machine(home: Path, realm: str) -> None:
    reference = parse_reference("registry.example/team/torch")
    environ = log_in(home, auths={"registry.example": {"auth": ENCODED}})
    authorization = Authorization(Client(), reference, environ)
    with pytest.raises(DeniedError, match="not trusted"):
        authorization.answer({"WWW-Authenticate": f'Bearer realm="{realm}"'}, "repository:x:pull", None)


def test_a_login_does_not_follow_a_blob_to_another_host(servers: Servers, tokens: Tokens, home: Path) -> None:
    other = servers.start(FakeRegistry())
    registry = servers.start(guarded(lambda request: request.login == BASIC, 'Basic realm="x"'))
    repository = opened(registry, logged_in(home, registry))
    manifest = push_image(repository)
    layer = manifest.image().layers[0]
    other.blobs[layer.digest] = registry.blobs[layer.digest]
    guard = registry.fault
    elsewhere = Answer(307, headers={"Location": f"{other.url}/v2/x/blobs/{layer.digest}?signature=1"})
    registry.fault = lambda request: guard(request) or (elsewhere if "/blobs/" in request.path else None)
    assert len(repository.blob(layer, 1 << 20)) == layer.size
    # Nor does that host say where the registry's login goes (google/go-containerregistry#2349).
    other.fault = lambda _: Answer(401, b"{}", {"WWW-Authenticate": f'Bearer realm="{tokens.url}/t"'})
    with pytest.raises(DeniedError, match=f"sends on the blob .* to {other.netloc}, which refuses it .401."):
        repository.blob(layer, 1 << 20)
    assert (other.logins, tokens.requests) == ({None}, [])


@pytest.mark.parametrize("entry", [{"auth": ENCODED}, {"identitytoken": CANARY}])
@pytest.mark.parametrize("scheme", ["basic", "bearer"])
@pytest.mark.parametrize("status", [401, 400, 403, 404, 500])
def test_no_message_exception_or_log_holds_a_secret(
    servers: Servers, home: Path, caplog: pytest.LogCaptureFixture, entry: dict[str, str], scheme: str, status: int
) -> None:
    """Everything here repeats what it is sent, in its answers and in its headers."""

    def repeat(request: Request) -> Answer:
        message = f"{request.login} {request.body!r} {CANARY} {ENCODED}"
        errors = {"errors": [{"code": "DENIED", "message": message}, {"code": message}]}
        return Answer(status, json.dumps(errors).encode(), {"Warning": message, "WWW-Authenticate": challenge})

    tokens = servers.start(FakeRegistry(repeat))
    challenge = f'Bearer realm="{tokens.url}"' if scheme == "bearer" else 'Basic realm="x"'
    registry = servers.start(FakeRegistry(repeat))
    environ = log_in(home, auths={registry.netloc: entry})
    caplog.set_level(0)
    repository = opened(registry, environ)
    with pytest.raises(EnvcheckError) as failed:
        repository.manifest("latest")
    result = "".join(traceback.format_exception(failed.value)) + caplog.text + repr(vars(repository))
    result += repr(find_account(repository.reference, environ)) + str(registry.paths) + str(tokens.paths)
    assert caplog.text
    assert CANARY not in result
    assert ENCODED not in result
