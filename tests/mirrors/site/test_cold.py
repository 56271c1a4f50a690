"""The tier behind the static trees: what the disk no longer has comes out of the object store, through rclone.

The store is rclone's own S3 server, which newer ones than the distribution's have; the site's is the latter.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.mirrors.site import programs, read
from tests.mirrors.site.conftest import envcheck, running
from tests.mirrors.site.upstreams import answers, free_port, free_ports, get
from tests.processes import ran

pytestmark = pytest.mark.tools


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
