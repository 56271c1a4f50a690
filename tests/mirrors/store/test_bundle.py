"""Bundles: equal to the bit, whole and authentic or refused, and no harm by whatever somebody else put into one."""

import errno
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.cli import cli
from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.store import bundle, releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents, object_sizes
from tests.mirrors.store.conftest import damaged, sha256
from tests.tables import each

Keys = Callable[[str], tuple[Path, Path]]


def imported(store: Store, source: Path, **options: Any) -> Contents:
    return bundle.import_bundle(store, bundle.verified(source, **options))


def export(store: Store, contents: Contents, to: Path, key: Path | None = None) -> Path:
    digest = bundle.export(store, contents, to, key)
    assert digest == sha256((to / bundle.TAR).read_bytes())
    return to


@pytest.fixture
def exported(store: Store, contents: Contents, tmp_path: Path) -> Path:
    return export(store, contents, tmp_path / "bundle")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    there = Store(tmp_path / "other")
    there.add(b"old", "old.txt")
    releases.release(there, Contents(), keep=3)
    return there


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    def make(name: str) -> tuple[Path, Path]:
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
        return private, public

    return make


def _state(store: Store) -> dict[str, bytes | str]:
    """Return every file of a store with its content; times and locks are not what it holds."""
    paths = [path for path in store.root.rglob("*") if path.name not in {"lock", "users"}]
    data: dict[str, bytes | str] = {str(path): path.read_bytes() for path in paths if path.is_file()}
    return data | {str(path): str(path.readlink()) for path in paths if path.is_symlink()}


def test_equal_contents_give_equal_bytes_which_plain_tools_read(
    store: Store, contents: Contents, exported: Path, tmp_path: Path
) -> None:
    copy = Store(tmp_path / "copy")
    for digest in reversed(list(object_sizes(contents))):
        copy.adopt(store.path(digest), digest, "other")
    repeated = export(copy, contents, tmp_path / "again")
    assert {p.name: p.read_bytes() for p in exported.iterdir()} == {p.name: p.read_bytes() for p in repeated.iterdir()}
    subprocess.run(["sha256sum", "--quiet", "-c", bundle.SUMS], cwd=exported, check=True)
    subprocess.run(["tar", "-x", "-f", exported / bundle.TAR, "-C", tmp_path], check=True)
    wheel = contents.wheels[0]
    assert sha256((tmp_path / "sha256" / wheel.sha256[:2] / wheel.sha256).read_bytes()) == wheel.sha256


def test_a_bundle_makes_the_same_tree_on_another_machine(
    store: Store, contents: Contents, exported: Path, other: Store
) -> None:
    releases.release(other, imported(other, exported), keep=3)
    releases.release(store, contents, keep=3)
    assert releases.read_manifest(other, 2).files == releases.read_manifest(store, 1).files
    assert damaged(other) == []
    assert other.name(contents.wheels[0].sha256) == contents.wheels[0].name


def test_an_export_hashes_what_it_writes_and_overwrites_no_whole_bundle(
    store: Store, contents: Contents, exported: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="a bundle exists already"):
        export(store, contents, exported)
    whole = (exported / bundle.TAR).read_bytes()
    (exported / bundle.SUMS).unlink()  # as an export leaves it that was killed before its end
    (exported / bundle.TAR).write_bytes(b"half")
    assert (export(store, contents, exported) / bundle.TAR).read_bytes() == whole
    path = store.path(contents.wheels[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(PromiseError, match="another hash than its name"):
        export(store, contents, tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []
    store.evict(contents.wheels[0].sha256)
    with pytest.raises(UnavailableError, match="missing: 1 file,"):
        export(store, contents, tmp_path / "more")


HARMS: list[tuple[Callable[[Path], object], type[EnvcheckError], str]] = [
    (lambda at: os.truncate(at / bundle.TAR, 3000), PromiseError, "bundle.tar: it has another sha256"),
    (lambda at: (at / bundle.TAR).unlink(), UnavailableError, "missing: bundle.tar"),
    (lambda at: (at / bundle.SUMS).unlink(), ConfigError, "cannot read bundle.sha256"),
    (lambda at: (at / bundle.SUMS).write_text("x\n"), ConfigError, "not the line"),
    (lambda at: (at / bundle.SUMS).write_text(f"{'0' * 64}  ../bundle.tar\n"), ConfigError, "not the line"),
]


@pytest.mark.parametrize(("harm", "kind", "message"), HARMS)
def test_a_damaged_bundle_leaves_the_store_as_it_was(
    exported: Path, other: Store, harm: Callable[[Path], object], kind: type[EnvcheckError], message: str
) -> None:
    before = _state(other)
    harm(exported)
    with pytest.raises(kind, match=message):
        imported(other, exported)
    assert _state(other) == before


@pytest.mark.timeout(60)
def test_a_pipe_in_a_bundle_is_refused_at_once(exported: Path, other: Store, keys: Keys) -> None:
    for name in (bundle.SIGNATURE, bundle.SUMS):
        (exported / name).unlink(missing_ok=True)
        os.mkfifo(exported / name)
        with pytest.raises((ConfigError, PromiseError), match=f"cannot read {name}"):
            imported(other, exported, key=keys("own")[1])


def test_a_disk_without_room_is_told_before_anything_is_unpacked(
    exported: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _state(other)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(UnavailableError, match="bytes are needed and 1 are free"):
        imported(other, exported)
    assert _state(other) == before


def test_a_disk_that_fills_up_during_an_import_leaves_what_is_served(
    exported: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = _state(other)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        patch.setattr(shutil, "copyfileobj", fill)
        imported(other, exported)
    assert _state(other) == before
    assert imported(other, exported).wheels


def test_only_the_right_digest_and_signature_are_taken(
    store: Store, contents: Contents, other: Store, tmp_path: Path, keys: Keys
) -> None:
    (private, public), (_, foreign) = keys("own"), keys("other")
    ours = export(store, contents, tmp_path / "ours", private)
    theirs = export(store, msgspec.structs.replace(contents, branches={}), tmp_path / "theirs")
    assert imported(other, ours, sha256=sha256((ours / bundle.TAR).read_bytes()), key=public) == contents
    with pytest.raises(PromiseError, match="another digest"):
        imported(other, ours, sha256="0" * 64)
    with pytest.raises(PromiseError, match="not signed by the key"):
        imported(other, ours, key=foreign)
    with pytest.raises(PromiseError, match="is not signed"):
        imported(other, theirs, key=public)
    for signed in ((ours / bundle.SIGNATURE).read_bytes(), b"", bytes(64), bytes(1000)):
        (theirs / bundle.SIGNATURE).write_bytes(signed)
        with pytest.raises(PromiseError, match="not signed by the key"):
            imported(other, theirs, key=public)


def test_a_tar_that_changes_after_it_was_verified_is_refused(
    store: Store, contents: Contents, exported: Path, tmp_path: Path
) -> None:
    changed = export(store, msgspec.structs.replace(contents, branches={}), tmp_path / "c")
    content = (changed / bundle.TAR).read_bytes()
    there = Store(tmp_path / "there")
    verified = bundle.verified(exported)
    (exported / bundle.TAR).write_bytes(content)
    with pytest.raises(PromiseError, match="changed while it was read"):
        bundle.import_bundle(there, verified)
    assert there.objects() == []


def ran(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    return (99, str(result.exception)) if isinstance(result.exception, EnvcheckError) else (0, result.output)


def test_the_commands_sign_print_and_refuse(store: Store, contents: Contents, tmp_path: Path, keys: Keys) -> None:
    private, public = keys("own")
    releases.release(store, contents, keep=3)
    message = ran("store", "--store", store.root, "export", "-o", tmp_path / "b", "--key", private)[1]
    digest = sha256((tmp_path / "b" / bundle.TAR).read_bytes())
    assert f"digest {digest}, signed" in message
    taken = ("store", "--store", tmp_path / "other", "import", tmp_path / "b")
    assert "another digest" in ran(*taken, "--sha256", "0" * 64)[1]
    assert "not a sha256" in ran(*taken, "--sha256", "short")[1]
    code, message = ran(*taken, "--sha256", digest, "--key", public)
    assert (code, "not authenticated" in message) == (0, False)
    assert "not authenticated" in ran(*taken)[1]


def test_a_bundle_of_earlier_days_is_told_by_the_branch_that_it_moves_back(
    store: Store, contents: Contents, tmp_path: Path, keys: Keys
) -> None:
    private, public = keys("own")
    model = contents.models[0]
    newer = msgspec.structs.replace(model, revision="b" * 40)
    for name, one in (("old", model), ("new", newer)):
        export(store, Contents(models=[one], branches={"owner/tiny@main": one.revision}), tmp_path / name, private)
    taken = ("store", "--store", tmp_path / "other", "import", "--key", public)
    said = [ran(*taken, tmp_path / name) for name in ("old", "new", "new", "old")]
    assert [(code, " moves " in text, "back from" in text) for code, text in said] == [
        (0, False, False),
        (0, True, False),
        (0, False, False),
        (0, True, True),
    ]
    again = ("store", "--store", tmp_path / "again", "import", "--key", public)
    assert [ran(*again, tmp_path / name)[0] for name in ("old", "new")] == [0, 0]
    assert ran("store", "--store", tmp_path / "again", "release", "--rollback")[0] == 0
    assert " moves from" in ran(*again, tmp_path / "new")[1]  # newer than what is served, though it was there before


def test_a_wheel_that_a_published_cell_locks_is_held_against_the_lock(
    store: Store, contents: Contents, tmp_path: Path, make_wheel: Callable[..., Path]
) -> None:
    path = make_wheel("mpmath", "1.3.0")
    digest = sha256(path.read_bytes())
    store.adopt(path, digest)
    forged = msgspec.structs.replace(contents.wheels[0], name=path.name, sha256=digest, size=path.stat().st_size)
    at = export(store, msgspec.structs.replace(contents, wheels=[forged]), tmp_path / "b")
    message = ran("store", "--store", tmp_path / "other", "import", at)[1]
    assert "another sha256 than the locks of the published cells" in message
    assert Store(tmp_path / "other").objects() == []


# What somebody else put into a tar, whose hash is then made to fit.
GOOD = [random.Random(n).randbytes(n * 300) for n in range(1, 4)]  # noqa: S311 (data)
OBJECTS = {sha256(content): content for content in GOOD}
NAME = sha256(GOOD[0])
PLACE = f"sha256/{NAME[:2]}/{NAME}"


def block(name: str, content: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o444
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def written(*blocks: bytes) -> bytes:
    tar = b"".join(blocks)
    return tar + bytes(1024 + -(len(tar) + 1024) % tarfile.RECORDSIZE)


def taken(tar: bytes, objects: set[str] = set(OBJECTS)) -> bool:  # noqa: B006 (never changed)
    """Take a tar in as a bundle; tell whether it was taken.

    Whether or not: what has a name in the store has its hash, and nothing has come to be anywhere else.
    """
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "b").mkdir()
        (root / "b" / bundle.TAR).write_bytes(tar)
        (root / "b" / bundle.SUMS).write_text(f"{sha256(tar)}  {bundle.TAR}\n")
        store, message = Store(root / "store"), ""
        try:
            imported(store, root / "b")
        except (PromiseError, ConfigError) as error:
            message = str(error)
        assert "\n" not in message
        assert {one.sha256 for one in store.objects()} == (set() if message else objects)
        assert damaged(store) == []
        assert {path.name for path in root.iterdir()} == {"b", "store"}
        assert {path.name for path in (root / "store").iterdir()} <= {"sha256", "info", "lock"}
        return not message


def _model(**changes: object) -> dict[str, object]:
    files = [{"path": f"{n}.bin", "size": len(content), "sha256": sha256(content)} for n, content in enumerate(GOOD)]
    return {"repo": "o/r", "revision": "0" * 40, "files": files, **changes}


LISTED = msgspec.json.encode({"models": [_model()]})
WHOLE = {bundle.CONTENTS: LISTED, **{f"sha256/{d[:2]}/{d}": content for d, content in sorted(OBJECTS.items())}}
SOUND = written(*(block(name, content) for name, content in WHOLE.items()))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255), st.sampled_from(["flip", "cut", "grow", "twice"]))
def test_no_change_of_a_bundle_brings_in_other_bytes(at: int, by: int, how: str) -> None:
    """A byte, a length, a block twice; `taken` looks at what came in."""
    first = at // 512 * 512
    if how == "flip" and 512 <= at < 512 + len(LISTED):
        return  # another list of contents, and as sound a one
    taken(
        {
            "flip": SOUND[:at] + bytes([SOUND[at] ^ by]) + SOUND[at + 1 :],
            "cut": SOUND[:at],
            "grow": SOUND[:at] + bytes([by]) + SOUND[at:],
            "twice": SOUND[:first] + SOUND[first : first + 512] * 2 + SOUND[first + 512 :],
        }[how]
    )


KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, *b"1 2 3 4 5 6 7 g x L K S V D N".split()])
WRONG_NAMES = st.one_of(
    st.text("abcdef0123456789/._-", min_size=1, max_size=99),
    st.sampled_from([*WHOLE, *(f"./{name}" for name in WHOLE), *(f"/{name}" for name in WHOLE)]),
    st.sampled_from(["../x", "/etc/passwd", "sha256/../../x", "x" * 300, "sha256/ab/" + "ä" * 60, "..", "."]),
)
TEXTS = st.dictionaries(
    st.sampled_from(["path", "linkpath", "size", "GNU.sparse.name"]), st.text(max_size=20), max_size=2
)


@st.composite
def tar_members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(draw(WRONG_NAMES))
    content = draw(st.sampled_from([b"", b"x" * 700, *GOOD]))
    info.type, info.mode = draw(KINDS), draw(st.sampled_from([0o444, 0o4755]))
    info.linkname = draw(st.sampled_from(["", "../../etc/passwd", "/etc/passwd", bundle.CONTENTS]))
    info.size = draw(st.sampled_from([len(content), len(content), 0, len(content) + 1, 2**40]))
    info.pax_headers = draw(TEXTS)
    return info, content


@settings(max_examples=80, deadline=None)
@given(
    st.lists(tar_members(), min_size=1, max_size=4),
    st.integers(0, len(WHOLE)),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_nothing_that_others_put_between_is_taken(
    others: list[tuple[tarfile.TarInfo, bytes]], where: int, form: Literal[0, 1, 2]
) -> None:
    """Links, devices, extensions, paths that lead outside, names that are there already: among what belongs there."""
    blocks = [block(name, content) for name, content in WHOLE.items()]
    strange = [_foreign(info, content, form) for info, content in others]
    assert not taken(written(*blocks[:where], *strange, *blocks[where:]))


def _foreign(info: tarfile.TarInfo, content: bytes, form: Literal[0, 1, 2]) -> bytes:
    try:
        head = info.tobuf(form, "utf-8", "surrogateescape")
    except ValueError:  # what that format has no way to say
        head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + content + bytes(-len(content) % 512)


def _wheel(**changes: object) -> dict[str, object]:
    return {"wheels": [{"name": "a-1-py3-none-any.whl", "sha256": NAME, "size": len(GOOD[0]), **changes}]}


def test_the_sound_one_is_taken_and_no_end_of_it_is_needed() -> None:
    assert taken(SOUND)
    assert taken(written(block(bundle.CONTENTS, msgspec.json.encode(_wheel())), block(PLACE, GOOD[0])), {NAME})
    for tar in (SOUND[:600], b"garbage" * 100, b"", written(), written(block(PLACE, GOOD[0]))):
        assert not taken(tar)


@each(
    "listed",
    [
        [],
        {"unknown": 1},
        {"schema": "envcheck/contents/2"},
        _wheel(size=5),
        _wheel(unknown=1),
        _wheel(index="../../etc"),
        _wheel(sha256="../../x"),
        *(
            _wheel(name=name)
            for name in (
                *("../a-1-py3-none-any.whl", "a-1-1/../../../x-py3-none-any.whl", 'a-1-py3-none-any.whl">', "a"),
                *(f"a-{'9' * 5000}-py3-none-any.whl", f"{'a' * 231}-py3-none-any.whl"),
            )
        ),
        *({"models": [_model(**change)]} for change in ({"repo": "../x"}, {"revision": "main"})),
        *({"models": [_model(files=[{"path": p, "size": 300, "sha256": NAME}])]} for p in ("../../x", "/x")),
        *(
            {"models": [_model()], "branches": {branch: "0" * 40}}
            for branch in ("o/r@../../x", "o/r@", "other/r@main", "o/r@main/../..")
        ),
    ],
)
def test_contents_that_lie_or_lead_outside_are_refused(listed: object) -> None:
    members = [block(bundle.CONTENTS, msgspec.json.encode(listed)), *(block(n, c) for n, c in list(WHOLE.items())[1:])]
    assert not taken(written(*members))
