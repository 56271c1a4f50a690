"""Bundles: equal to the bit, whole or refused, and never a path of another's choosing."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.store import bundle, versions
from envcheck.mirrors.store.manifest import Contents, object_sizes
from envcheck.mirrors.store.objects import Store
from tests.mirrors.store.conftest import damaged

PART = 100_000


def _quiet(_there: int, _all: int) -> None:
    return


def _imported(store: Store, source: Path) -> Contents:
    return bundle.import_bundle(store, bundle.verified_parts(source, _quiet), _quiet)


@pytest.fixture
def exported(store: Store, contents: Contents, tmp_path: Path) -> Path:
    """Return a bundle of everything, in several parts."""
    parts = bundle.export(store, contents, tmp_path / "bundle", part_size=PART, progress=_quiet)
    assert len(parts) > 2
    return tmp_path / "bundle"


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """Return the store of another machine, which serves something already."""
    there = Store(tmp_path / "other")
    there.add(b"old", "old.txt")
    versions.publish(there, Contents(), keep=3)
    return there


def _state(store: Store) -> dict[str, bytes | str]:
    """Return every file of a store with its content; times and locks are not what it holds."""
    data: dict[str, bytes | str] = {}
    for path in sorted(store.root.rglob("*")):
        if path.is_symlink():
            data[str(path.relative_to(store.root))] = str(path.readlink())
        elif path.is_file() and not path.name.endswith("lock"):
            data[str(path.relative_to(store.root))] = path.read_bytes()
    return data


def test_two_exports_are_equal_to_the_bit(store: Store, contents: Contents, exported: Path, tmp_path: Path) -> None:
    copy = Store(tmp_path / "copy")
    for digest in reversed(list(object_sizes(contents))):
        copy.adopt(store.path(digest), digest, "other")
    repeated = tmp_path / "again"
    bundle.export(copy, contents, repeated, part_size=PART, progress=_quiet)
    assert {p.name: p.read_bytes() for p in exported.iterdir()} == {p.name: p.read_bytes() for p in repeated.iterdir()}


def test_plain_tools_read_a_bundle(exported: Path, contents: Contents, tmp_path: Path) -> None:
    subprocess.run(["sha256sum", "--quiet", "-c", bundle.SUMS], cwd=exported, check=True)
    to = tmp_path / "plain"
    to.mkdir()
    subprocess.run(["/bin/sh", "-c", f"cat {exported}/bundle.tar.* | tar -x -C {to}"], check=True)
    wheel = contents.wheels[0]
    there = to / "sha256" / wheel.sha256[:2] / wheel.sha256
    assert hashlib.sha256(there.read_bytes()).hexdigest() == wheel.sha256


def test_a_bundle_makes_the_same_tree_on_another_machine(
    store: Store, contents: Contents, exported: Path, other: Store
) -> None:
    versions.publish(other, _imported(other, exported), keep=3)
    versions.publish(store, contents, keep=3)
    assert versions.read_manifest(other, 2).files == versions.read_manifest(store, 1).files
    assert damaged(other) == []
    assert other.name(contents.wheels[0].sha256) == contents.wheels[0].name


def test_an_export_hashes_what_it_writes(store: Store, contents: Contents, tmp_path: Path) -> None:
    path = store.path(contents.wheels[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(PromiseError, match="another hash than its name"):
        bundle.export(store, contents, tmp_path / "b", part_size=PART, progress=_quiet)
    assert list((tmp_path / "b").iterdir()) == []


def test_an_export_overwrites_nothing_and_lacks_nothing(store: Store, contents: Contents, exported: Path) -> None:
    with pytest.raises(ConfigError, match="a bundle exists already"):
        bundle.export(store, contents, exported, part_size=PART, progress=_quiet)
    store.evict(contents.wheels[0].sha256)
    with pytest.raises(UnavailableError, match="missing: 1 file,"):
        bundle.export(store, contents, exported.parent / "more", part_size=PART, progress=_quiet)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _swap(at: Path) -> None:
    rows = (at / bundle.SUMS).read_text().splitlines()
    (at / bundle.SUMS).write_text("\n".join([rows[1], rows[0], *rows[2:], ""]))


def _elsewhere(at: Path) -> None:
    rows = (at / bundle.SUMS).read_text()
    (at / bundle.SUMS).write_text(rows.replace("bundle.tar.000", "../bundle.tar.000"))


@pytest.mark.parametrize(
    ("harm", "kind", "message"),
    [
        (lambda at: _flip(at / "bundle.tar.001"), PromiseError, "bundle.tar.001: it has another sha256"),
        (lambda at: _cut(at / "bundle.tar.002"), PromiseError, "bundle.tar.002: it has another sha256"),
        (lambda at: (at / "bundle.tar.001").unlink(), UnavailableError, "missing: bundle.tar.001"),
        (lambda at: (at / bundle.SUMS).unlink(), ConfigError, "cannot read bundle.sha256"),
        (lambda at: (at / bundle.SUMS).write_text("x\n"), ConfigError, "does not list the parts"),
        (_swap, ConfigError, "in order"),
        (_elsewhere, ConfigError, "does not list the parts"),
    ],
)
def test_a_damaged_bundle_leaves_the_store_as_it_was(
    exported: Path, other: Store, harm: Callable[[Path], None], kind: type[EnvcheckError], message: str
) -> None:
    before = _state(other)
    harm(exported)
    with pytest.raises(kind, match=message):
        _imported(other, exported)
    assert _state(other) == before


def _member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname, member.mode = len(content), kind, link, 0o444
    return member, content


def _bundle(at: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Write a bundle by hand, whose parts have the hashes that it says."""
    at.mkdir()
    with tarfile.open(at / "bundle.tar.000", "w") as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    digest = hashlib.sha256((at / "bundle.tar.000").read_bytes()).hexdigest()
    (at / bundle.SUMS).write_text(f"{digest}  bundle.tar.000\n")
    return at


GOOD = b"good"
NAME = hashlib.sha256(GOOD).hexdigest()
PLACE = f"sha256/{NAME[:2]}/{NAME}"


def _list(**changes: object) -> tuple[tarfile.TarInfo, bytes]:
    wheel = {"name": "a-1-py3-none-any.whl", "sha256": NAME, "size": 4, **changes}
    return _member(bundle.CONTENTS, msgspec.json.encode({"wheels": [wheel]}))


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([_list(), _member("../../outside", GOOD)], id="parent"),
        pytest.param([_list(), _member("/tmp/outside", GOOD)], id="absolute"),  # noqa: S108 (a lie)
        pytest.param([_list(), _member(f"sha256/{NAME[:2]}/../{NAME[:2]}/{NAME}", GOOD)], id="detour"),
        pytest.param([_list(), _member(f"./{PLACE}", GOOD)], id="another spelling"),
        pytest.param([_list(), _member(PLACE, b"", tarfile.SYMTYPE, "/etc/passwd")], id="symlink"),
        pytest.param([_list(), _member(PLACE, b"", tarfile.LNKTYPE, bundle.CONTENTS)], id="hard link"),
        pytest.param([_list(), _member(PLACE, b"", tarfile.CHRTYPE)], id="device"),
        pytest.param([_list(), _member(PLACE, b"", tarfile.BLKTYPE)], id="block device"),
        pytest.param([_list(), _member(PLACE, b"", tarfile.FIFOTYPE)], id="pipe"),
        pytest.param([_list(), _member(PLACE, b"", tarfile.DIRTYPE)], id="directory"),
        pytest.param([_list(), _member(PLACE, GOOD), _member(PLACE, GOOD)], id="twice"),
        pytest.param([_list(), _list(), _member(PLACE, GOOD)], id="two lists"),
        pytest.param([_list(), _member(PLACE, GOOD), _member(f"sha256/00/{'0' * 64}", GOOD)], id="not listed"),
        pytest.param([_list(), _member(PLACE, b"evil")], id="other bytes"),
        pytest.param([_list(), _member(PLACE, b"longer")], id="another size"),
        pytest.param([_list(size=5), _member(PLACE, GOOD)], id="another size in the list"),
        pytest.param([_list()], id="lacks a file"),
        pytest.param([_member(PLACE, GOOD), _list()], id="no list first"),
        pytest.param([], id="empty"),
        pytest.param([_list(name="../a-1-py3-none-any.whl"), _member(PLACE, GOOD)], id="a wheel elsewhere"),
        pytest.param([_list(name="a-1-1/../../../x-py3-none-any.whl"), _member(PLACE, GOOD)], id="a build elsewhere"),
        pytest.param([_list(name="a"), _member(PLACE, GOOD)], id="no wheel"),
        pytest.param([_list(name=f"a-{'9' * 5000}-py3-none-any.whl"), _member(PLACE, GOOD)], id="endless version"),
        pytest.param([_list(name=f"{'a' * 231}-py3-none-any.whl"), _member(PLACE, GOOD)], id="no file's name"),
        pytest.param([_list(name='a-1-py3-none-any.whl">'), _member(PLACE, GOOD)], id="markup"),
        pytest.param([_list(index="../../etc"), _member(PLACE, GOOD)], id="an index elsewhere"),
        pytest.param([_list(sha256="../../x"), _member(PLACE, GOOD)], id="no hash"),
        pytest.param([_list(unknown=1), _member(PLACE, GOOD)], id="unknown key"),
        pytest.param([_member(bundle.CONTENTS, b"[]")], id="no contents"),
    ],
)
def test_a_bundle_that_lies_is_refused(
    other: Store, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    before, outside = _state(other), set(tmp_path.rglob("*")) - set(other.root.rglob("*"))
    where = _bundle(tmp_path / "b", members)
    with pytest.raises((PromiseError, ConfigError)):
        _imported(other, where)
    assert _state(other) == before
    assert set(tmp_path.rglob("*")) - set(other.root.rglob("*")) - set(where.rglob("*")) - {where} == outside


@pytest.mark.parametrize("name", [bundle.SUMS, "bundle.sha256.sig"])
@pytest.mark.timeout(60)
def test_a_pipe_in_a_bundle_is_refused_at_once(exported: Path, name: str) -> None:
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", "key.pem"], cwd=exported, check=True)
    subprocess.run(["openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "key.pub"], cwd=exported, check=True)
    (exported / name).unlink(missing_ok=True)
    os.mkfifo(exported / name)
    with pytest.raises((ConfigError, PromiseError), match=f"cannot read {name}"):
        bundle.verified_parts(exported, _quiet, key=exported / "key.pub")


@pytest.mark.parametrize(
    "model",
    [
        {"repo": "../x", "revision": "0" * 40, "files": []},
        {"repo": "o/r", "revision": "main", "files": []},
        {"repo": "o/r", "revision": "0" * 40, "files": [{"path": "../../x", "size": 4, "sha256": NAME}]},
        {"repo": "o/r", "revision": "0" * 40, "files": [{"path": "/x", "size": 4, "sha256": NAME}]},
    ],
)
def test_a_model_that_leads_outside_is_refused(other: Store, tmp_path: Path, model: dict[str, object]) -> None:
    listed = _member(bundle.CONTENTS, msgspec.json.encode({"models": [model]}))
    with pytest.raises(ConfigError):
        _imported(other, _bundle(tmp_path / "b", [listed, _member(PLACE, GOOD)]))


@pytest.mark.parametrize("branch", ["o/r@../../x", "o/r@", "other/r@main", "o/r@main/../.."])
def test_a_branch_that_leads_outside_is_refused(other: Store, tmp_path: Path, branch: str) -> None:
    model = {"repo": "o/r", "revision": "0" * 40, "files": [{"path": "x", "size": 4, "sha256": NAME}]}
    listed = _member(bundle.CONTENTS, msgspec.json.encode({"models": [model], "branches": {branch: "0" * 40}}))
    with pytest.raises(ConfigError):
        _imported(other, _bundle(tmp_path / "b", [listed, _member(PLACE, GOOD)]))


def test_a_disk_without_room_is_told_before_anything_is_unpacked(
    exported: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _state(other)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(UnavailableError, match="bytes are needed and 1 are free"):
        _imported(other, exported)
    assert _state(other) == before
