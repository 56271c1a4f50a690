"""pip and uv through a real nginx that was rendered, and what is asked of the upstreams behind it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from envcheck.mirrors.site import programs, read
from tests.certificates import Certificate
from tests.mirrors.site.conftest import World, envcheck, running
from tests.mirrors.site.upstreams import answers, free_port, free_ports, get
from tests.processes import ran
from tests.waiting import eventually

ServedSite = tuple[World, Path, str]
pytestmark = pytest.mark.tools
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}


def lock(world: World, *names: str) -> str:
    versions = {"torchlike": "1.0+cpu"}
    digests = {name: hashlib.sha256(world.wheels[name].read_bytes()).hexdigest() for name in names}
    return "".join(f"{name}=={versions.get(name, '1.0')} --hash=sha256:{digests[name]}\n" for name in names)


def install(client: str, index: str, world: World, ca: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Install names with their hashes into a new directory, with nothing cached."""
    target = world.root / f"into-{client}-{len(list(world.root.iterdir()))}"
    locked = world.root / "lock.txt"
    locked.write_text(lock(world, *names))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [uv.find_uv_bin(), "pip"] if client == "uv" else pip
    command += ["install", "--require-hashes", "--no-deps", "--index-url", index, "--target", str(target)]
    environment = {**CLEAN, "SSL_CERT_FILE": str(ca), "PIP_CERT": str(ca), "UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1"}
    return subprocess.run(
        [*command, "-r", str(locked)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_pip_and_uv_install_and_a_second_build_moves_no_byte_from_upstream(
    served: ServedSite, authority: Certificate
) -> None:
    world, site, base = served
    pypi, pytorch = f"{base}/pypi/simple/", f"{base}/pytorch/whl/cpu/"
    for client in ("pip", "uv"):
        for index, names in ((pypi, ("farlib", "nearlib", "rellib")), (pytorch, ("torchlike",))):
            completed = install(client, index, world, authority.ca, *names)
            assert completed.returncode == 0, completed.stderr
    before = world.sent()
    assert before > 4
    # What an object store would read otherwise comes to it as the page says it.
    assert any(path.endswith("1.0%2Bcpu-py3-none-any.whl") for _, _, path in world.pytorch.sent())
    for client in ("pip", "uv"):
        assert install(client, pypi, world, authority.ca, "farlib", "nearlib", "rellib").returncode == 0
    assert world.sent() == before
    lines = [json.loads(line) for line in (site / "logs/access.json").read_text().splitlines()]
    assert {line["part"] for line in lines} == {"pypi-index", "pytorch-index", "files"}
    large = [line for line in lines if line["uri"].endswith(world.wheels["farlib"].name)]
    assert [line["cache"] for line in large] == ["MISS", *["HIT"] * (len(large) - 1)]


def test_a_large_file_is_asked_for_in_slices_once_for_all(served: ServedSite, authority: Certificate) -> None:
    world, _, base = served
    there = world.wheels["farlib"]
    url = f"{base}/files/{world.far.origin.removeprefix('http://')}/packages/{there.name}"
    middle = get(url, authority.ca, Range="bytes=9000000-9000099")
    assert (middle[0], middle[1]) == (206, there.read_bytes()[9000000:9000100])
    # The cache takes the whole slice, which goes on after the client has its part.
    assert eventually(lambda: [size < 8_500_000 for _, size, _ in world.far.sent()], expected=[True]) == [True]
    assert get(url, authority.ca)[1] == there.read_bytes()
    assert len(world.far.sent()) == 3  # 20 MB in slices of 8 MiB; the middle one was there
    assert get(url, authority.ca)[2]["X-Cache"] == "HIT"


def test_what_is_ambiguous_or_of_no_upstream_is_refused(served: ServedSite, authority: Certificate) -> None:
    world, _, base = served
    name, far = world.wheels["farlib"].name, world.far.origin.removeprefix("http://")
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
    assert [path for _, _, path in world.index.sent()] == ["/simple/nearlib/", "/simple/nearlib/"]
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


def test_what_the_disk_no_longer_has_comes_from_the_object_store(
    tmp_path: Path, nginx: str, bucket: dict[str, str]
) -> None:
    if shutil.which("rclone") is None:
        pytest.skip("no rclone here (`make test` unpacks it where apt is)")
    assert nginx
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
            env={"PATH": str(Path(shutil.which("rclone") or "").parent), "HOME": str(tmp_path), **bucket},
        )
        assert completed.returncode == 0, completed.stderr
        shutil.rmtree(tree)
        assert get(f"{base}/large.bin", Range="bytes=10-19")[:2] == (206, b"x" * 10)
        assert get(f"{base}/large.bin")[1] == b"x" * 3_000_000
        assert get(f"{base}/never.bin")[0] == 404
        kept = [path for path in site.rglob("*") if path.is_file() and b"SECRET_ACCESS" in path.read_bytes()]
        assert kept == []
