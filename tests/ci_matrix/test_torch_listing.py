"""Which wheels of torch an index lists, and what a wheel on an index requires."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_listing import parse_wheels, read_torch_wheels, variant_of
from wheel_metadata import read_requirements

from envcheck.errors import UnavailableError
from envcheck.mirrors.index import IndexFile, parse_page
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Answer, Request, Server, Servers, ranged
from tests.wheels import wheel

JSON = "application/vnd.pypi.simple.v1+json"


def read(*names: str, variant: str | None = None) -> list[tuple[str, str, str]]:
    files = [IndexFile(name, f"https://mirror.example/{name}") for name in names]
    return [(actual.torch, actual.arch, actual.python) for actual in parse_wheels(files, variant)]


def test_names_of_wheels() -> None:
    assert read("torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl") == [("2.15.0", "x86_64", "3.12")]
    assert read("torch-2.15.0-cp314-cp314t-manylinux_2_28_aarch64.whl") == [("2.15.0", "aarch64", "3.14t")]
    assert read("torch-2.8.0%2Bcu128-cp39-cp39-manylinux_2_28_x86_64.whl", variant="cu128") == []
    assert read("torch-2.8.0+cu128-cp39-cp39-linux_x86_64.whl", variant="cu128") == [("2.8.0", "x86_64", "3.9")]
    assert read("torch-2.3.0-cp310-cp310-manylinux2014_aarch64.whl", variant="cpu") == [("2.3.0", "aarch64", "3.10")]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("torch-2.15.0-cp312-cp312-win_amd64.whl", None),
        ("torch-2.15.0-cp312-cp312-macosx_14_0_arm64.whl", None),
        ("torch-2.15.0.dev20260101-cp312-cp312-manylinux_2_28_x86_64.whl", None),
        ("torch-2.15.0rc1-cp312-cp312-manylinux_2_28_x86_64.whl", None),
        ("torch-2.15.0.post1-cp312-cp312-manylinux_2_28_x86_64.whl", None),
        ("torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl", "cu132"),
        ("torch-2.1.0+cpu.cxx11.abi-cp311-cp311-linux_x86_64.whl", "cpu"),
        ("torch-2.1.0+cu121.with.pypi.cudnn-cp311-cp311-linux_x86_64.whl", "cu121"),
        ("torch_geometric-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl", None),
        ("torch-2.15.0.tar.gz", None),
        ("../torch-2.15.0", None),
    ],
)
def test_what_is_no_stable_wheel_for_linux_of_that_variant_is_passed_over(name: str, variant: str | None) -> None:
    assert read(name, variant=variant) == []


def test_a_withdrawn_file_and_a_date_are_read_off_a_page() -> None:
    name = "torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    entry = {"filename": name, "url": name, "hashes": {}, "yanked": "broken", "upload-time": "2026-10-28T01:02:03Z"}
    [file] = parse_page([json.dumps({"files": [entry]}).encode()], JSON, "https://mirror.example/simple/torch/")
    assert (file.yanked, file.uploaded) == (True, "2026-10-28T01:02:03Z")
    assert list(parse_wheels([file], None)) == []
    html = f'<a href="{name}" data-yanked="">x</a><a href="{name}">x</a>'.encode()
    assert [file.yanked for file in parse_page([html], "text/html", "https://mirror.example/")] == [True, False]


@pytest.mark.parametrize(
    ("requirements", "variants"),
    [
        (["nvidia-cuda-runtime-cu12 (==12.1.105) ; platform_machine == 'x86_64'", "sympy"], ("cu121", "cpu")),
        (["nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'"], ("cu128", "cu128")),
        (['cuda-toolkit[cublas,cudart]==13.2.2; platform_system == "Linux"', "cuda-bindings<14"], ("cu132", "cu132")),
        (["nvidia-cudnn-cu13==9.26.0.51"], (None, None)),
        (["nvidia-cuda-runtime==13.0.96; extra == 'cuda'", "= no requirement ="], ("cpu", "cpu")),
        ([], ("cpu", "cpu")),
    ],
)
def test_the_cuda_that_a_wheel_requires(requirements: list[str], variants: tuple[str | None, str | None]) -> None:
    assert (variant_of(requirements, "x86_64"), variant_of(requirements, "aarch64")) == variants


@pytest.fixture
def torch_wheel(tmp_path: Path) -> Path:
    return wheel(tmp_path, "torch", "2.16.0", requires=["sympy", "cuda-toolkit==13.2.2"], ballast=1 << 18)


def served(servers: Servers, path: Path, *, copy: str | None = None, ranges: bool = True) -> tuple[Server, IndexFile]:
    def answer(request: Request) -> Answer:
        if request.route.endswith(".metadata"):
            return Answer(404) if copy is None else Answer(200, copy.encode())
        return ranged(request, path) if ranges else Answer(200, path.read_bytes())

    server = servers.start(Server(answer))
    return server, IndexFile(path.name, f"{server.url}/{path.name}")


def test_requirements_come_from_the_index_s_copy(servers: Servers, torch_wheel: Path) -> None:
    copy = "Metadata-Version: 2.4\nName: torch\nRequires-Dist: jinja2\n\nRequires-Dist: of the description\n"
    server, file = served(servers, torch_wheel, copy=copy)
    assert read_requirements(Client(), file) == ["jinja2"]
    assert len(server.requests) == 1


def test_requirements_come_from_the_end_of_a_wheel_and_not_from_all_of_it(servers: Servers, torch_wheel: Path) -> None:
    server, file = served(servers, torch_wheel)
    assert read_requirements(Client(), file) == ["sympy", "cuda-toolkit==13.2.2"]
    assert server.sent < torch_wheel.stat().st_size


@pytest.mark.parametrize("copy", ["<html>not found</html>", ""])
def test_an_index_with_neither_says_nothing(servers: Servers, torch_wheel: Path, copy: str) -> None:
    _, file = served(servers, torch_wheel, copy=copy, ranges=False)
    assert read_requirements(Client(), file) is None


def site(pypi: list[str], pytorch: list[str], *, closed: bool = False) -> Profile:
    return Profile(
        name="site", pypi=[Index(url=u) for u in pypi], pytorch=[Index(url=u) for u in pytorch], closed=closed
    )


def listed(server: Server, profile: Profile | None = None) -> list[str]:
    profile = profile or site([f"{server.url}/simple"], [f"{server.url}/whl/{{variant}}"])
    listing = read_torch_wheels(Client(), profile, ["cpu", "cu199"], releases={"2.15.0"}, torchvisions=["0.29.2"])
    return [actual.file.name for actual in listing.wheels]


PAGE = b'<a href="torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl">w</a>'
CPU = b'<a href="torch-2.15.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl">w</a>'


def pages(**more: Answer) -> dict[str, Answer]:
    html = {"Content-Type": "text/html"}
    data = {"/simple/torch/": Answer(200, PAGE, html), "/whl/cpu/torch/": Answer(200, CPU, html)}
    return data | {name.replace("_", "/"): answer for name, answer in more.items()}


def index(servers: Servers, answers: dict[str, Answer]) -> Server:
    return servers.start(Server(lambda request: answers.get(request.route, Answer(404))))


def test_both_indexes_are_read_and_a_variant_without_a_page_is_no_error(servers: Servers) -> None:
    server = index(servers, pages())
    assert [name.split("-cp")[0] for name in listed(server)] == ["torch-2.15.0", "torch-2.15.0+cpu"]


@pytest.mark.parametrize("path", ["_simple_torch_", "_whl_cpu_torch_", "_whl_cu199_torch_"])
@pytest.mark.parametrize("status", [500, 503, 403])
def test_one_page_that_cannot_be_read_is_no_answer(servers: Servers, path: str, status: int) -> None:
    with pytest.raises(UnavailableError, match=f"127.0.0.1.*answers {status}"):
        listed(index(servers, pages(**{path: Answer(status)})))


def test_an_index_without_torch_is_no_answer(servers: Servers) -> None:
    with pytest.raises(UnavailableError, match="the profile site has no page of torch"):
        listed(index(servers, {}))
    with pytest.raises(UnavailableError, match="has a page of no variant"):
        listed(index(servers, {"/simple/torch/": pages()["/simple/torch/"]}))


def test_only_companions_that_are_not_known_are_looked_up(servers: Servers) -> None:
    html, tags = {"Content-Type": "text/html"}, "cp312-cp312-manylinux_2_28_x86_64.whl"
    versions = ("0.10.0", "0.25.0", "0.29.2", "0.30.0rc1")
    page = "".join(f'<a href="/f/torchvision-{version}-{tags}">w</a>' for version in versions).encode()
    new = f'<a href="/f/torch-2.10.0-{tags}">w</a>'.encode()
    answers = pages(_simple_torch_=Answer(200, new, html), _simple_torchvision_=Answer(200, page, html))
    answers[f"/f/torch-2.10.0-{tags}.metadata"] = Answer(200, b"Metadata-Version: 2.1\n")
    answers[f"/f/torchvision-0.25.0-{tags}.metadata"] = Answer(
        200, b"Metadata-Version: 2.1\nRequires-Dist: numpy\nRequires-Dist: torch==2.10.0\n"
    )
    server = index(servers, answers)
    profile = site([f"{server.url}/simple"], [f"{server.url}/whl/{{variant}}"])
    listing = read_torch_wheels(Client(), profile, ["cpu"], releases={"2.15.0"}, torchvisions=["0.14.1", "0.29.2"])
    assert (listing.torchvision, listing.pypi_variants) == ({"2.10.0": "0.25.0"}, {("2.10.0", "x86_64"): "cpu"})
    assert [path for path in server.paths if "torchvision-" in path] == [f"/f/torchvision-0.25.0-{tags}.metadata"]
