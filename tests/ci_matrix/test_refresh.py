"""Rows of torch are proposed against an index of this machine."""

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
LINUX = "manylinux_2_28_x86_64.whl"
METADATA = {
    f"torch-9.9.0-cp312-cp312-{LINUX}": 'Requires-Dist: cuda-toolkit[cudart]==13.2.2; platform_system == "Linux"',
    f"torchvision-9.0.0-cp312-cp312-{LINUX}": "Requires-Dist: torch (==9.9.0)",
}
PAGES = {
    "/simple/torch/": [f"torch-9.9.0-cp312-cp312-{LINUX}", f"torch-2.15.0-cp311-cp311-{LINUX}"],
    "/simple/torchvision/": [f"torchvision-9.0.0-cp312-cp312-{LINUX}", f"torchvision-0.29.2-cp312-cp312-{LINUX}"],
    "/whl/cpu/torch/": [f"torch-9.9.0+cpu-cp312-cp312-{LINUX}"],
    "/whl/cu132/torch/": [f"torch-9.9.0+cu132-cp313-cp313-{LINUX}"],
}


def answer(request: Request) -> Answer:
    if request.route in PAGES:
        links = "".join(f'<a href="/files/{name}#sha256={"b" * 64}">w</a>' for name in PAGES[request.route])
        return Answer(200, links.encode(), {"Content-Type": "text/html"})
    result = METADATA.get(request.route.removeprefix("/files/").removesuffix(".metadata"))
    return Answer(404) if result is None else Answer(200, f"Metadata-Version: 2.1\n{result}\n".encode())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return Path(shutil.copy(SHIPPED, tmp_path / "matrix.yaml"))


def test_rows_are_proposed_in_canonical_form_with_evidence(run: Run, mine: Path, profile: str, tmp_path: Path) -> None:
    page = tmp_path / "proposal.md"
    args = ("--matrix", str(mine), "--mirror", profile, "--summary", str(page))
    code, out, _ = run(*args)
    assert code == 0
    assert "torch 9.9.0+cu132 x86_64: Python 3.12, 3.13\n2 rows added to matrix.yaml\n" in out
    assert "no page of" in out
    matrix = load(mine)
    release = matrix.release("9.9.0")
    assert release is not None
    assert (release.verified, release.complete, release.torchvision) == (False, False, "9.0.0")
    assert (release.pypi, release.pypi_unverified) == ({"x86_64": "cu132"}, ["x86_64"])
    builds = {row.variant: row.builds[0] for row in release.variants}
    assert (builds["cu132"].sass, builds["cu132"].verified, builds["cpu"].sass) == (None, False, [])
    assert mine.read_text() == dump(matrix)
    assert lint(matrix) == []
    assert f"{'b' * 64}  torch-9.9.0+cpu-cp312-cp312-{LINUX}" in page.read_text()
    assert "| torch 9.9.0+cpu x86_64 | 3.12 | 1 |" in page.read_text()
    code, out, _ = run(*args)
    assert (code, out.splitlines()[0]) == (0, "0 rows added to matrix.yaml")


@pytest.mark.parametrize("broken", ["/simple/torch/", "/whl/cu132/torch/", "/files/"])
def test_an_index_that_cannot_be_read_is_exit_3_and_nothing_changes(
    run: Run, mine: Path, profile: str, server: Server, tmp_path: Path, broken: str
) -> None:
    def failing(request: Request) -> Answer:
        return Answer(500) if request.route == broken else answer(request)

    def cut(request: Request) -> Answer:
        part = {"Content-Length": "999"}
        return Answer(200, b"Metadata-", part, close=True) if request.route.startswith(broken) else answer(request)

    server.answering = cut if broken == "/files/" else failing
    page = tmp_path / "proposal.md"
    args = ("--matrix", str(mine), "--mirror", profile, "--summary", str(page))
    code, out, err = run(*args)
    assert (code, out) == (3, "")
    assert err.startswith("cannot read the index 127.0.0.1:")
    assert err.count("\n") == 1
    assert mine.read_bytes() == SHIPPED.read_bytes()
    assert not page.exists()


DEMAND = "cuda>=13.5 brand=tesla,driver>=535,driver<536 brand=geforce,driver>=580,driver<581 brand=tesla,driver>=580"
CONFIG = json.dumps({"config": {"Env": ["PATH=/bin", f"NVIDIA_REQUIRE_CUDA={DEMAND}"]}}).encode()
OCI = "application/vnd.oci.image"
NAMED = {"digest": f"sha256:{hashlib.sha256(CONFIG).hexdigest()}", "size": len(CONFIG)}
HEAD = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "layers": []}
MANIFEST = json.dumps({**HEAD, "config": {"mediaType": f"{OCI}.config.v1+json", **NAMED}}).encode()
TAGS = ["13.5.0-base-ubuntu24.04", "13.5.1-base-ubuntu24.04", "12.8.1-base-ubuntu24.04", "13.5.1-devel-ubuntu24.04"]
LISTED = ["620.70.06", "640.10.02", "640.20.01", "650.01"]


def of_nvidia(request: Request) -> Answer:
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
def nvidia(servers: Servers) -> Server:
    return servers.start(Server(of_nvidia))


def test_what_nvidia_publishes_becomes_unverified_rows(run: Run, nvidia: Server, mine: Path, tmp_path: Path) -> None:
    page = tmp_path / "proposal.md"
    args: tuple[str, ...] = ("--nvidia", "--matrix", str(mine), "--mirror", "none", "--summary", str(page))
    args += ("--drivers", f"{nvidia.url}/redist/", "--base-images", f"{nvidia.netloc}/nvidia/cuda")
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


def test_an_index_of_drivers_that_fails_is_exit_3_and_nothing_changes(run: Run, nvidia: Server, mine: Path) -> None:
    code, out, err = run("--nvidia", "--matrix", str(mine), "--mirror", "none", "--drivers", f"{nvidia.url}/nothing/")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert mine.read_bytes() == SHIPPED.read_bytes()
