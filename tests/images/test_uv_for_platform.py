"""uv of another platform comes through the profile, by hash, once."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.images import lock_on_top
from envcheck.images.lock_on_top import uv_for
from envcheck.images.lockfile import parse_lock
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Server
from tests.wheels import wheel


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a wheel of a made-up uv, whose hash is the one of the lock."""
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    path = wheel(
        tmp_path / "wheels", "uv", "9.9.9", files={"uv-9.9.9.data/scripts/uv": "#!/bin/sh\necho uv of arm64\n"}
    )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/uv.lock").write_text(f"# index: pypi\nuv==9.9.9 \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setattr(lock_on_top, "data_path", lambda name: tmp_path / name)
    return path


def test_it_is_fetched_by_hash_and_kept(
    made: Path,
    simple_index: Callable[[Path], Path],
    serve: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served, own = serve(simple_index(made.parent).parent), serve(tmp_path)
    monkeypatch.setenv("UV_INDEX", f"{own.url}/simple")  # of the person, whom a closed profile asks nothing
    profile = Profile(name="t", closed=True, pypi=[Index(url=f"{served.url}/simple")])
    program = uv_for("aarch64", profile)
    assert "uv of arm64" in program.read_text()
    assert own.requests == []
    assert program == tmp_path / "home/tools/uv-9.9.9-aarch64/bin/uv"
    assert uv_for("aarch64", Profile(name="nowhere", closed=True)) == program


def test_other_bytes_are_refused_and_not_kept(
    made: Path, simple_index: Callable[[Path], Path], serve: Callable[..., Server], tmp_path: Path
) -> None:
    other = wheel(made.parent, "uv", "9.9.9", files={"uv-9.9.9.data/scripts/uv": "#!/bin/sh\necho another\n"})
    served = serve(simple_index(other.parent).parent)
    profile = Profile(name="t", closed=True, pypi=[Index(url=f"{served.url}/simple")])
    with pytest.raises(
        UnavailableError, match=r"uv 9\.9\.9 for aarch64, which the build runs, could not be fetched: hash"
    ):
        uv_for("aarch64", profile)
    assert list((tmp_path / "home/tools").iterdir()) == []


def test_a_closed_profile_without_an_index_says_so(made: Path) -> None:
    assert made.is_file()
    with pytest.raises(UnavailableError, match="t is closed and names no Python index; pass --mirror"):
        uv_for("aarch64", Profile(name="t", closed=True))


def test_the_shipped_lock_has_a_file_for_each_architecture() -> None:
    text = (Path(__file__).resolve().parents[2] / "templates/uv.lock").read_text()
    (pin,) = parse_lock(text, "base", "uv.lock").pins
    assert (pin.name, len(pin.sha256)) == ("uv", 2)
