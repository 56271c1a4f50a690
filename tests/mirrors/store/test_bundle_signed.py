"""A bundle on a stick is the one that was exported, or it is refused: by its digest, its signature and the locks."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import PromiseError
from envcheck.mirrors.store import bundle, versions
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Give a function that makes a private and a public key."""

    def make(name: str, kind: str = "ed25519") -> tuple[Path, Path]:
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        words = ["openssl", "genpkey", "-algorithm", kind, "-out", str(private)]
        subprocess.run(words, check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
        return private, public

    return make


def quiet(_there: int, _all: int) -> None:
    """Say nothing."""


def exported(store: Store, contents: Contents, to: Path, key: Path | None = None) -> Path:
    bundle.export(store, contents, to, part_size=1 << 20, progress=quiet, key=key)
    return to


def test_the_right_digest_and_key_are_taken_and_others_are_refused(
    store: Store, contents: Contents, tmp_path: Path, keys: Callable[[str], tuple[Path, Path]]
) -> None:
    (private, public), (_, other) = keys("own"), keys("other")
    at = exported(store, contents, tmp_path / "b", private)
    digest = bundle.bundle_digest(at)
    assert digest == hashlib.sha256((at / bundle.SUMS).read_bytes()).hexdigest()
    assert bundle.verified_parts(at, quiet, sha256=digest, key=public)
    with pytest.raises(PromiseError, match="another digest"):
        bundle.verified_parts(at, quiet, sha256="0" * 64)
    with pytest.raises(PromiseError, match="not signed by the key"):
        bundle.verified_parts(at, quiet, key=other)


def test_a_bundle_that_another_made_is_refused_though_its_hashes_fit(
    store: Store, contents: Contents, tmp_path: Path, keys: Callable[[str], tuple[Path, Path]]
) -> None:
    private, public = keys("own")
    ours = exported(store, contents, tmp_path / "ours", private)
    theirs = exported(store, msgspec.structs.replace(contents, branches={}), tmp_path / "theirs")
    with pytest.raises(PromiseError, match="is not signed"):
        bundle.verified_parts(theirs, quiet, key=public)
    for signed in ((ours / bundle.SIGNATURE).read_bytes(), b"", bytes(64), bytes(1000)):
        (theirs / bundle.SIGNATURE).write_bytes(signed)
        with pytest.raises(PromiseError, match="not signed by the key"):
            bundle.verified_parts(theirs, quiet, key=public)


def test_a_part_that_changes_after_it_was_verified_is_refused(store: Store, contents: Contents, tmp_path: Path) -> None:
    at = exported(store, contents, tmp_path / "b")
    parts = bundle.verified_parts(at, quiet)
    changed = exported(store, msgspec.structs.replace(contents, branches={}), tmp_path / "c")
    (at / "bundle.tar.000").write_bytes((changed / "bundle.tar.000").read_bytes())
    other = Store(tmp_path / "other")
    with pytest.raises(PromiseError, match="changed while it was read"):
        bundle.import_bundle(other, parts, quiet)
    assert other.objects() == []


def ran(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 99, str(result.exception)
    return result.exit_code, result.output


def test_the_commands_sign_print_and_refuse(
    store: Store, contents: Contents, tmp_path: Path, keys: Callable[[str], tuple[Path, Path]]
) -> None:
    private, public = keys("own")
    versions.publish(store, contents, keep=3)
    code, message = ran("store", "--store", store.root, "export", "-o", tmp_path / "b", "--key", private)
    digest = bundle.bundle_digest(tmp_path / "b")
    assert (code, f"digest {digest}, signed" in message) == (0, True)
    taken = ("store", "--store", tmp_path / "other", "import", tmp_path / "b")
    assert "another digest" in ran(*taken, "--sha256", "0" * 64)[1]
    assert "not a sha256" in ran(*taken, "--sha256", "short")[1]
    code, message = ran(*taken, "--sha256", digest, "--key", public)
    assert (code, "not authenticated" in message) == (0, False)
    assert "not authenticated" in ran(*taken)[1]


def test_a_wheel_that_a_published_cell_locks_is_held_against_the_lock(
    store: Store, contents: Contents, tmp_path: Path, make_wheel: Callable[..., Path]
) -> None:
    path = make_wheel("mpmath", "1.3.0")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    store.adopt(path, digest)
    forged = msgspec.structs.replace(contents.wheels[0], name=path.name, sha256=digest, size=path.stat().st_size)
    at = exported(store, msgspec.structs.replace(contents, wheels=[forged]), tmp_path / "b")
    message = ran("store", "--store", tmp_path / "other", "import", at)[1]
    assert "another sha256 than the locks of the published cells" in message
    assert Store(tmp_path / "other").objects() == []
