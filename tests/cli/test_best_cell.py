"""Which cell is built where nobody named one: the newest that runs here and whose torch the mirror has."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.cli.building.cell_to_build import newest_available, published_here
from envcheck.data import data_path
from envcheck.errors import PromiseError
from envcheck.images.engines import venv
from envcheck.images.lockfile import read_locks
from envcheck.images.spec import ImageSpec
from envcheck.images.targets import SHARED_GROUPS
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.mirrors import probe
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Answer, Answering, Request, Server, Servers

MATRIX = load()
CPU = published_here(MATRIX, [resolve(MATRIX, Query(variant="cpu", arch="x86_64"))])
SIZE = 1_500_000_000


def site(cells: Iterable[str], *, pages: list[str] | None = None, silent: str = "never") -> Answering:
    """Return indexes that list every file of these cells' locks; below `silent` they refuse."""
    locks = [lock for cell in cells for lock in read_locks(data_path("images") / cell)]

    def answer(request: Request) -> Answer:
        if pages is not None:
            pages.append(request.path)
        if request.path.startswith(f"/{silent}/"):
            return Answer(403)
        index, _, name = request.path.strip("/").rpartition("/")
        files = [
            f'{{"filename": "{pin.name.replace("-", "_")}-{pin.version}-py3-none-any.whl", "url": "/f", '
            f'"size": {SIZE}, "hashes": {{"sha256": "{pin.sha256[0]}"}}}}'
            for lock in locks
            for pin in lock.pins
            if pin.name == name and (index == "simple") == (lock.index == "pypi")
        ]
        body = f'{{"meta": {{"api-version": "1.1"}}, "name": "{name}", "files": [{", ".join(files)}]}}'
        return (
            Answer(200, body.encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})
            if files
            else Answer(404)
        )

    return answer


def profile(url: str) -> Profile:
    return Profile(name="site", pypi=[Index(url=f"{url}/simple")], pytorch=[Index(url=f"{url}/{{variant}}")])


def test_the_default_builds_of_the_same_torch_follow_the_cpu_cells() -> None:
    variants = [cell.variant for cell in CPU]
    cpus = variants.count("cpu")
    assert variants[:cpus] == ["cpu"] * cpus
    assert str(CPU[0]) == "torch2.13.0-cpu-py311"
    assert str(CPU[cpus]) == "torch2.13.0-cu130-py311"
    assert "cpu" not in variants[cpus:]
    on_gpu = published_here(MATRIX, [resolve(MATRIX, Query(gpus=["H100"], driver="580.65.06"))])
    assert "cpu" not in {cell.variant for cell in on_gpu[:1]}


def test_the_best_cell_is_taken_if_the_mirror_has_it(servers: Servers) -> None:
    url = servers.start(Server(site(["torch2.13.0-cpu-py311"]))).url
    assert newest_available(MATRIX, CPU, profile(url)) == (CPU[0], None)


def test_an_older_cpu_cell_is_taken_before_a_cuda_build(servers: Servers) -> None:
    url = servers.start(Server(site(["torch2.9.1-cpu-py312", "torch2.13.0-cu130-py311"]))).url
    best = newest_available(MATRIX, CPU, profile(url))
    assert str(best.cell) == "torch2.9.1-cpu-py312"
    assert best.why == "the newest published one that mirror profile site has; it does not have torch2.13.0-cpu-py311"


def test_where_only_the_python_index_answers_a_cuda_build_runs_on_the_cpu_with_its_size(servers: Servers) -> None:
    pages: list[str] = []
    url = servers.start(Server(site(["torch2.13.0-cu130-py311"], pages=pages, silent="cpu"))).url
    best = newest_available(MATRIX, CPU, profile(url))
    locks = read_locks(data_path("images") / str(best.cell))
    files = sum(len(lock.pins) for lock in locks if lock.group in SHARED_GROUPS)
    assert str(best.cell) == "torch2.13.0-cu130-py311"
    assert best.why == (
        "mirror profile site has no CPU wheel of torch; this CUDA build runs on a CPU too, "
        f"{files * SIZE / 1e9:.1f} GB to fetch"
    )
    assert len([page for page in pages if page.startswith("/cpu/")]) == 1, "a silent index is asked once"


def test_where_nothing_is_found_it_is_what_resolve_names(servers: Servers) -> None:
    url = servers.start(Server(site([]))).url
    assert newest_available(MATRIX, CPU, profile(url)) == (CPU[0], None)


def test_build_is_given_the_mirror_that_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which one passes is tested with `fetch`, which chooses alike."""
    best, given = Profile(name="best", pypi=[Index(url="https://best.example/simple")]), list[Profile]()
    monkeypatch.setattr(probe, "default_mirrors", list)
    monkeypatch.setattr(probe, "choose", lambda *_: (best, ["pypi: best"]))

    def build(_spec: ImageSpec, profile: Profile, *_args: object, **_options: object) -> None:
        given.append(profile)
        message = "nothing is built"
        raise PromiseError(message, fix="")

    monkeypatch.setattr(venv, "build", build)
    words = ["build", str(CPU[0]), "--engine", "venv", "--mirror", "auto", "--output", str(tmp_path / "venv")]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(result.exception, PromiseError), result.exception
    assert given == [best]
    assert "mirror  auto: pypi: best" in result.stderr
