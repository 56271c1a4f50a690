"""Clients through a real nginx that was rendered, what is asked of the upstreams behind it, and what goes wrong."""

import collections
import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from envcheck.mirrors.site import programs, read
from tests.certificates import Certificate
from tests.http_server import Answer, Request, Server, Servers, ranged
from tests.mirrors.site.conftest import World, answers, envcheck, free_port, free_ports, get, running
from tests.processes import program, ran
from tests.waiting import eventually

ServedSite = tuple[World, Path, str]
pytestmark = pytest.mark.tools
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}


def lock(world: World, *names: str) -> str:
    versions = {"torchlike": "1.0+cpu"}
    digests = {name: hashlib.sha256(world.wheels[name].read_bytes()).hexdigest() for name in names}
    return "".join(f"{name}=={versions.get(name, '1.0')} --hash=sha256:{digests[name]}\n" for name in names)


def install(client: str, index: str, world: World, ca: Path, *names: str) -> subprocess.CompletedProcess[str]:
    target = world.root / f"into-{client}-{len(list(world.root.iterdir()))}"
    locked = world.root / "lock.txt"
    locked.write_text(lock(world, *names))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [uv.find_uv_bin(), "pip"] if client == "uv" else pip
    command += ["install", "--require-hashes", "--no-deps", "--index-url", index, "--target", str(target)]
    environment = {**CLEAN, "SSL_CERT_FILE": str(ca), "PIP_CERT": str(ca), "UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1"}
    return ran([*command, "-r", str(locked)], env=environment, timeout=120)


def test_pip_and_uv_install_and_a_second_build_moves_no_byte_from_upstream(
    served: ServedSite, authority: Certificate
) -> None:
    world, site, base = served
    pypi, pytorch = f"{base}/pypi/simple/", f"{base}/pytorch/whl/cpu/"
    for client in ("pip", "uv"):
        for index, names in ((pypi, ("farlib", "nearlib", "rellib")), (pytorch, ("torchlike",))):
            completed = install(client, index, world, authority.ca, *names)
            assert completed.returncode == 0, completed.stderr
    before = world.asked()
    assert before > 4
    # What an object store would read otherwise comes to it as the page says it.
    assert any(path.endswith("1.0%2Bcpu-py3-none-any.whl") for path in world.pytorch.paths)
    for client in ("pip", "uv"):
        assert install(client, pypi, world, authority.ca, "farlib", "nearlib", "rellib").returncode == 0
    assert world.asked() == before
    lines = logged(site)
    assert {line["part"] for line in lines} == {"pypi-index", "pytorch-index", "files"}
    large = [line for line in lines if line["uri"].endswith(world.wheels["farlib"].name)]
    assert [line["cache"] for line in large] == ["MISS", *["HIT"] * (len(large) - 1)]


def test_a_large_file_is_asked_for_in_slices_once_for_all(served: ServedSite, authority: Certificate) -> None:
    world, _, base = served
    there = world.wheels["farlib"]
    url = f"{base}/files/{world.far.netloc}/packages/{there.name}"
    middle = get(url, authority.ca, Range="bytes=9000000-9000099")
    assert (middle[0], middle[1]) == (206, there.read_bytes()[9000000:9000100])
    # The cache takes the whole slice, which goes on after the client has its part.
    assert eventually(lambda: (len(world.far.requests), world.far.sent), (1, 8 << 20)) == (1, 8 << 20)
    assert get(url, authority.ca)[1] == there.read_bytes()
    assert len(world.far.requests) == 3  # 20 MB in slices of 8 MiB; the middle one was there
    assert get(url, authority.ca)[2]["X-Cache"] == "HIT"


def test_what_is_ambiguous_or_of_no_upstream_is_refused(served: ServedSite, authority: Certificate) -> None:
    world, _, base = served
    name, far = world.wheels["farlib"].name, world.far.netloc
    expected = {
        f"/files/{far}/packages/%2e%2e/packages/{name}": 400,
        f"/files/{far}/packages%2F{name}": 400,
        f"/files/{far}//packages/{name}": 400,
        f"/%66iles/{far}/packages/{name}": 404,
        f"/files/127.0.0.9/packages/{name}": 404,
        f"/files/{far}/packages/absent": 404,
        "/elsewhere": 404,
    }
    assert {path: get(base + path, authority.ca)[0] for path in expected} == expected


def test_credentials_of_clients_go_no_further_and_nothing_is_written(
    served: ServedSite, authority: Certificate
) -> None:
    world, site, base = served
    secret = "c4nary-5ecret"  # noqa: S105 (it is to be found nowhere)
    url = f"{base}/pypi/simple/nearlib/?token={secret}"
    assert get(url, authority.ca, Authorization=f"Bearer {secret}", Cookie=f"a={secret}")[0] == 200
    assert get(url, authority.ca, Accept="application/vnd.pypi.simple.v1+json")[2]["Content-Type"].endswith("+json")
    assert world.index.paths == ["/simple/nearlib/", "/simple/nearlib/"]
    kept = [path for path in site.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert kept == []


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return what rclone is told about a real S3 endpoint with an empty bucket, by variables alone."""
    program = os.environ.get("ENVCHECK_TEST_S3")
    if not program:
        pytest.skip("no rclone that serves S3: set ENVCHECK_TEST_S3, or use `make test`, which installs it")
    (tmp_path / "store/bucket").mkdir(parents=True)
    at = f"127.0.0.1:{free_port()}"
    command = [program, "serve", "s3", "--addr", at, "--auth-key", "key,secret", str(tmp_path / "store")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        answers(f"http://{at}/", process)
        data = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": f"http://{at}", "FORCE_PATH_STYLE": "true"}
        data |= {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1"}
        # rclone 1.60 speaks no S3 where AWS_CA_BUNDLE is set ("unsupported transport").
        yield {"AWS_CA_BUNDLE": "", **{f"RCLONE_CONFIG_COLD_{name}": value for name, value in data.items()}}
        process.terminate()


def test_what_the_disk_no_longer_has_comes_from_the_object_store(tmp_path: Path, bucket: dict[str, str]) -> None:
    rclone = program("rclone")
    site, port = tmp_path / "site", free_ports(130)
    options = ("--no-hf", "--no-pytorch", "--link", "https://x.example", "--port", str(port), "--s3", "bucket")
    assert envcheck("mirror", "site", "render", str(site), *options).returncode == 0
    tree = site / "public/static/main"
    (tree / "simple/x").mkdir(parents=True)
    (tree / "simple/x/index.html").write_text("a page")
    (tree / "large.bin").write_bytes(b"x" * 3_000_000)
    with running(site, environment=bucket):
        base = f"http://127.0.0.1:{port}/static/main"
        assert get(f"{base}/large.bin")[1] == b"x" * 3_000_000
        assert get(f"{base}/simple/x/")[:2] == (200, b"a page")
        copy = next(task for task in programs(read(site)).tasks if task.name == "cold").commands[0]
        completed = ran(
            ["/bin/sh", "-c", copy],
            env={"PATH": str(Path(rclone).parent), "HOME": str(tmp_path), **bucket},
        )
        assert completed.returncode == 0, completed.stderr
        shutil.rmtree(tree)
        assert get(f"{base}/large.bin", Range="bytes=10-19")[:2] == (206, b"x" * 10)
        assert get(f"{base}/large.bin")[1] == b"x" * 3_000_000
        assert get(f"{base}/never.bin")[0] == 404
        kept = [path for path in site.rglob("*") if path.is_file() and b"SECRET_ACCESS" in path.read_bytes()]
        assert kept == []


CONTENT = bytes(range(256)) * 80_000  # 20 MB: three slices


class Upstream(Server):
    """An upstream that breaks off the second slice, or redirects, as it is told; it has CONTENT at every path."""

    fault = ""

    def __init__(self, address: str, port: int = 0) -> None:
        super().__init__(self.answer, address, port)

    def answer(self, request: Request) -> Answer:
        if self.fault == "redirect":
            return Answer(302, headers={"Location": "http://127.0.0.9/elsewhere"})
        if request.path.startswith("/simple/"):
            return Answer(200, b"page", {"Content-Type": "text/html"})
        answer = ranged(request, CONTENT, {"ETag": '"one"'})
        if self.fault == "break" and (request.span(len(CONTENT)) or (0, 0))[0]:
            assert isinstance(answer.body, bytes)
            return dataclasses.replace(answer, body=answer.body[:1000], close=True)
        return answer


@pytest.fixture
def behind(tmp_path: Path, servers: Servers, request: pytest.FixtureRequest) -> Iterator[tuple[Upstream, Path, int]]:
    """Return an upstream, the directory of a site before it (with the test's own options), and its port."""
    server = servers.start(Upstream("127.0.0.8"))
    site, port = tmp_path / "site", free_ports(130)
    for name, content in {"users": "me:{PLAIN}secret\n", "tokens": '"Bearer right" 1;\n'}.items():
        (tmp_path / name).write_text(content)
    more = [option.format(root=tmp_path) for option in getattr(request, "param", ())]
    (tmp_path / "profile.yaml").write_text(f"pypi: [{{url: {server.url}/simple}}]\n")
    options = ("--no-pytorch", "--mirror", str(tmp_path / "profile.yaml"), "--link", server.url, "--min-free", "0")
    done = envcheck("mirror", "site", "render", str(site), *options, "--port", str(port), *more)
    assert done.returncode == 0, done.stderr
    with running(site, "olah"):
        yield server, site, port


def logged(site: Path) -> list[Any]:
    return [json.loads(line) for line in (site / "logs/access.json").read_text().splitlines()]


def url(server: Upstream, port: int, path: str = "file.whl") -> str:
    return f"http://127.0.0.1:{port}/files/{server.netloc}/{path}"


def are_counted(site: Path, **expected: int) -> None:
    """Wait until the requests have these outcomes and no other, as mtail counts them, once nginx has its log."""

    def outcomes() -> dict[str, int]:
        files = [one for one in logged(site) if one["part"] == "files"]
        cut = [one["outcome"] == "ok" and one["bytes"] < one["promised"] for one in files]
        return dict(collections.Counter("truncated" if c else f["outcome"] for c, f in zip(cut, files, strict=True)))

    assert eventually(outcomes, expected) == expected


def test_an_upstream_that_breaks_off_is_the_mirrors_failure_and_leaves_no_wrong_bytes(
    behind: tuple[Upstream, Path, int],
) -> None:
    server, site, port = behind
    server.fault = "break"
    with pytest.raises(http.client.IncompleteRead):
        get(url(server, port))
    are_counted(site, truncated=1)
    server.fault = ""
    assert get(url(server, port))[1] == CONTENT
    are_counted(site, truncated=1, ok=1)


def test_a_client_that_goes_away_is_not_the_mirrors_failure(behind: tuple[Upstream, Path, int]) -> None:
    server, site, port = behind
    with socket.create_connection(("127.0.0.1", port)) as client:
        request = f"GET {url(server, port).partition(str(port))[2]} HTTP/1.1\r\nHost: x\r\n\r\n"
        client.sendall(request.encode())
        client.recv(1000)
    are_counted(site, client_abort=1)


def test_a_redirect_of_an_upstream_leads_no_client_round_the_mirror(behind: tuple[Upstream, Path, int]) -> None:
    server, site, port = behind
    server.fault = "redirect"
    status, body, headers = get(url(server, port))
    assert (status, "Location" in headers) == (502, False)
    assert b"--link" in body
    are_counted(site, error=1)


@pytest.mark.parametrize("behind", [("--users", "{root}/users", "--no-hf")], indirect=True)
def test_only_users_get_in_and_their_password_goes_no_further(behind: tuple[Upstream, Path, int]) -> None:
    server, site, port = behind
    assert get(url(server, port))[0] == 401
    assert get(url(server, port), Authorization="Basic bWU6c2VjcmV0")[0] == 200  # me:secret
    assert server.logins == {None}
    are_counted(site, refused=1, ok=1)
    assert get(f"http://127.0.0.1:{port}/healthz")[0] == 200


@pytest.mark.parametrize("behind", [("--allow", "192.0.2.0/24", "--allow", "127.0.0.5")], indirect=True)
def test_who_is_allowed_gets_in_and_nobody_else(behind: tuple[Upstream, Path, int]) -> None:
    server, _, port = behind
    status = {}
    for client in ("127.0.0.5", "127.0.0.1"):
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(client, 0))
        with contextlib.closing(made) as connection:
            connection.request("GET", url(server, port).partition(str(port))[2])
            status[client] = connection.getresponse().status
    assert status == {"127.0.0.5": 200, "127.0.0.1": 403}


@pytest.mark.parametrize("behind", [("--hf-tokens", "{root}/tokens")], indirect=True)
def test_the_bearer_of_a_token_reaches_hugging_faces_mirror_without_it(
    behind: tuple[Upstream, Path, int], servers: Servers
) -> None:
    _, site, port = behind
    inner = servers.start(Upstream("127.0.0.1", port + 102))
    hf = f"http://127.0.0.1:{port + 1}/api/models/x"
    assert get(hf)[0] == get(hf, Authorization="Bearer wrong")[0] == 401
    assert inner.requests == []
    assert get(hf, Authorization="Bearer right")[1] == CONTENT
    assert inner.logins == {None}
    assert eventually(lambda: [line["part"] for line in logged(site)], ["hf"] * 3) == ["hf"] * 3
    assert "right" not in (site / "logs/access.json").read_text()
    assert [path for path in site.rglob("*") if path.is_file() and b"Bearer right" in path.read_bytes()] == []


def test_too_many_requests_at_once_are_told_to_wait(behind: tuple[Upstream, Path, int]) -> None:
    _, _, port = behind
    assert get(f"http://127.0.0.1:{port}/pypi/simple/x/")[0] == 200
    # In one breath, so that it takes nginx alone, and no machine is too slow to be too fast.
    requests, message = b"GET /pypi/simple/x/ HTTP/1.1\r\nHost: x\r\n", b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall((requests + b"\r\n") * 599 + requests + b"Connection: close\r\n\r\n")
        while chunk := client.recv(1 << 16):
            message += chunk
    statuses = re.findall(rb"HTTP/1.1 (\d+)", message)
    assert (len(statuses), set(statuses)) == (600, {b"200", b"429"})
    assert set(statuses[:199]) == {b"200"}
