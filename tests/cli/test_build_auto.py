"""`envcheck build --mirror auto`: what the probe found best is what the build asks."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import PromiseError
from envcheck.images.engines import venv
from envcheck.images.lockfile import Pin, read_locks
from envcheck.images.spec import ImageSpec
from envcheck.mirrors import probe
from envcheck.mirrors.profiles.model import Profile
from tests.http_server import Answer, Answering, Request, Server, Servers, ranged

CELL = "torch2.13.0-cpu-py311"
LOCKS = read_locks(Path(__file__).parents[2] / "images" / CELL)
SIZE = 1000


def site(lacks: str = "") -> Answering:
    """Return an index of every wheel that the cell's locks name: hashes on its pages, zeros in its files."""
    pins = [pin for lock in LOCKS for pin in lock.pins if pin.name != lacks]
    pages = {f"/simple/{pin.name}/": _page(pin).encode() for pin in pins}

    def answer(request: Request) -> Answer:
        if request.path.endswith(".whl"):
            return ranged(request, bytes(SIZE))
        page = pages.get(request.path)
        return Answer(404) if page is None else Answer(200, page, {"Content-Type": "text/html"})

    return answer


def _page(pin: Pin) -> str:
    name = f"{pin.name.replace('-', '_')}-{pin.version}-py3-none-any.whl"
    return f'<a href="/files/{name.replace("+", "%2B")}#sha256={pin.sha256[0]}">{name}</a>'


def test_build_is_given_the_mirror_that_passed(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, address, lacks in (("lacking", "127.0.0.2", "torch"), ("whole", "127.0.0.3", "")):
        url = f"{servers.start(Server(site(lacks), address)).url}/simple"
        (tmp_path / f"{name}.yaml").write_text(f"pypi: [{{url: '{url}'}}]\npytorch: [{{url: '{url}'}}]\n")
    named = [probe.load_mirror(str(tmp_path / f"{name}.yaml")) for name in ("lacking", "whole")]
    monkeypatch.setattr(probe, "default_mirrors", lambda: named)
    given: list[Profile] = []

    def build(_spec: ImageSpec, profile: Profile, *_args: object, **_options: object) -> None:
        given.append(profile)
        message = "nothing is built"
        raise PromiseError(message, fix="")

    monkeypatch.setattr(venv, "build", build)
    words = ["build", CELL, "--engine", "venv", "--mirror", "auto", "--output", str(tmp_path / "venv")]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(result.exception, PromiseError), result.exception
    text = " ".join(result.stderr.split())
    assert "pytorch/cpu: not lacking: has 0 of 1 file; torch==2.13.0+cpu" in text
    (profile,) = given
    assert [index.url for index in profile.pytorch] == [named[1].profile.pytorch[0].url]
    assert {index.url for index in profile.pypi} == {mirror.profile.pypi[0].url for mirror in named}
    first = "whole" if profile.pypi[0] == named[1].profile.pypi[0] else "lacking"
    assert re.search(rf"mirror auto: .*pypi: {first} \(", text)
