"""Driver branches, CUDA minors and base images are proposed against an index and a registry of this machine."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from canonical import dump

from envcheck.matrix.file.lint import lint
from envcheck.matrix.file.load import load
from tests.http_server import Answer, Request, Server, Servers

Run = Callable[..., tuple[int, str, str]]
SHIPPED = Path(__file__).parents[2] / "matrix.yaml"
DEMAND = "cuda>=13.5 brand=tesla,driver>=535,driver<536 brand=geforce,driver>=580,driver<581 brand=tesla,driver>=580"
CONFIG = json.dumps({"config": {"Env": ["PATH=/bin", f"NVIDIA_REQUIRE_CUDA={DEMAND}"]}}).encode()
OCI = "application/vnd.oci.image"
NAMED = {"digest": f"sha256:{hashlib.sha256(CONFIG).hexdigest()}", "size": len(CONFIG)}
HEAD = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "layers": []}
MANIFEST = json.dumps({**HEAD, "config": {"mediaType": f"{OCI}.config.v1+json", **NAMED}}).encode()
TAGS = ["13.5.0-base-ubuntu24.04", "13.5.1-base-ubuntu24.04", "12.8.1-base-ubuntu24.04", "13.5.1-devel-ubuntu24.04"]
LISTED = ["620.70.06", "640.10.02", "640.20.01", "650.01"]


def answer(request: Request) -> Answer:
    pages = {
        "/redist/": "".join(f'<a href="redistrib_{each}.json">x</a>' for each in LISTED).encode(),
        "/redist/redistrib_640.10.02.json": b'{"a": {"linux-x86_64": {"cuda_variant": ["13.9", "14"]}}}',
        "/redist/redistrib_650.01.json": b'{"a": {}}',
        "/v2/": b"{}",
        "/v2/nvidia/cuda/tags/list": json.dumps({"tags": TAGS}).encode(),
        "/v2/nvidia/cuda/manifests/13.5.1-base-ubuntu24.04": MANIFEST,
        f"/v2/nvidia/cuda/blobs/{NAMED['digest']}": CONFIG,
    }
    kind = f"{OCI}.manifest.v1+json" if "/manifests/" in request.route else "application/json"
    return Answer(200, pages[request.route], {"Content-Type": kind}) if request.route in pages else Answer(404)


@pytest.fixture
def server(servers: Servers) -> Server:
    return servers.start(Server(answer))


def test_what_nvidia_publishes_becomes_unverified_rows(run: Run, server: Server, tmp_path: Path) -> None:
    mine, page = Path(shutil.copy(SHIPPED, tmp_path / "matrix.yaml")), tmp_path / "proposal.md"
    args: tuple[str, ...] = ("--nvidia", "--matrix", str(mine), "--mirror", "none", "--summary", str(page))
    args += ("--drivers", f"{server.url}/redist/", "--base-images", f"{server.netloc}/nvidia/cuda")
    code, out, _ = run(*args)
    assert code == 0
    assert "driver branch 640: CUDA 13.9, first seen as 640.10.02\nCUDA 13.9: native driver 640\n" in out
    assert "not proposed: driver 650.01: its file names no CUDA\n3 rows added to matrix.yaml" in out
    matrix = load(mine)
    assert (matrix.drivers[-1].branch, matrix.drivers[-1].verified) == ("640", False)
    (image,) = (row for row in matrix.cuda.base_images if row.cuda == "13.5")
    assert (image.image, image.datacenter_branches, image.geforce_branches) == ("13.5.1", ["535", "580"], ["580"])
    assert mine.read_text() == dump(matrix)
    assert lint(matrix) == []
    assert "- nvidia/cuda:13.5.1: cuda>=13.5, 3 more" in page.read_text()
    assert "0 rows added" in run(*args)[1]


def test_an_index_of_drivers_that_fails_is_exit_3_and_nothing_changes(run: Run, server: Server, tmp_path: Path) -> None:
    mine = Path(shutil.copy(SHIPPED, tmp_path / "matrix.yaml"))
    code, out, err = run("--nvidia", "--matrix", str(mine), "--mirror", "none", "--drivers", f"{server.url}/nothing/")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert mine.read_bytes() == SHIPPED.read_bytes()
