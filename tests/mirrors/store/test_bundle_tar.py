"""The tar of a bundle: what we write is read, by plain tar too, and whatever else is refused before it does harm."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
import tempfile
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envcheck.errors import ConfigError, PromiseError
from envcheck.mirrors.store import verify as store_verify
from envcheck.mirrors.store.bundle import bundle
from envcheck.mirrors.store.bundle import tar as bundle_tar
from envcheck.mirrors.store.bundle.tar import InvalidTarError
from envcheck.mirrors.store.objects import Store


def written(files: dict[str, bytes]) -> bytes:
    """Return a tar as an export writes it."""
    to = io.BytesIO()
    for name, content in files.items():
        bundle_tar.write(to, name, io.BytesIO(content), len(content))
    bundle_tar.end(to, to.tell())
    return to.getvalue()


def read_members(tar: bytes) -> dict[str, bytes]:
    return {member.name: member.body.read() for member in bundle_tar.read(io.BytesIO(tar))}


NAMES = st.text("abcdef0123456789/._-", min_size=1, max_size=99)
FILES = st.dictionaries(NAMES, st.binary(max_size=1500), max_size=5)


@given(FILES)
def test_what_is_written_is_read_and_plain_tar_reads_the_same(files: dict[str, bytes]) -> None:
    tar = written(files)
    assert read_members(tar) == files
    assert len(tar) % tarfile.RECORDSIZE == 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as plain:
        data = {member.name: (member.mode, member.mtime, member.uid, member.uname) for member in plain}
    assert set(data.values()) <= {(0o444, 0, 0, "")}
    assert set(data) == set(files)


class _Zeros:
    """A file that is longer than there is room for: a header, and then zeros as far as anybody reads."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.read_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        self.read_bytes += size
        taken, self.head = self.head[:size], self.head[size:]
        return taken or bytes(min(size, 1 << 20))


@pytest.mark.parametrize("size", [8 * 2**30 - 1, 8 * 2**30, 60 * 10**9])
def test_a_size_that_no_plain_header_has_room_for_is_read(size: int) -> None:
    head = bundle_tar.header("sha256/ab/large", size)
    assert len(head) == (512 if size < 8 * 2**30 else 1536)
    member = next(bundle_tar.read(_Zeros(head)))
    assert (member.name, member.size) == ("sha256/ab/large", size)
    with tarfile.open(fileobj=io.BytesIO(head + bytes(10240))) as plain:
        assert plain.next() is not None
    info = tarfile.TarInfo.frombuf(head[-512:], "utf-8", "strict")
    assert info.name == "sha256/ab/large"


@pytest.mark.parametrize(
    ("kind", "size"), [(b"x", 10**18), (b"g", 10**11), (b"L", 10**11), (b"K", 10**11), (b"0", 10**18)]
)
def test_a_header_that_says_it_is_huge_takes_no_memory(kind: bytes, size: int) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size, info.mode = kind, size, 0o444
    endless = _Zeros(info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(InvalidTarError):
        list(bundle_tar.read(endless))
    assert endless.read_bytes <= 1536


def test_what_is_no_tar_is_said_to_be_none() -> None:
    with pytest.raises(InvalidTarError, match="it is cut off, or not a tar"):
        list(bundle_tar.read(io.BytesIO(b"garbage")))


GOOD = {f"{n}.bin": random.Random(n).randbytes(n * 300) for n in range(1, 4)}  # noqa: S311 (data)
LISTED = msgspec.json.encode(
    {
        "models": [
            {
                "repo": "o/r",
                "revision": "0" * 40,
                "files": [
                    {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                    for name, content in GOOD.items()
                ],
            }
        ]
    }
)
OBJECTS = {hashlib.sha256(content).hexdigest(): content for content in GOOD.values()}
WHOLE = {bundle.CONTENTS: LISTED, **{f"sha256/{d[:2]}/{d}": content for d, content in sorted(OBJECTS.items())}}
SOUND = written(WHOLE)


def taken(tar: bytes) -> bool:
    """Take a tar in as a bundle whose parts have the hashes that it says; tell whether it was taken.

    Whether or not: what has a name in the store has its hash, and nothing has come to be anywhere else.
    """
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "b").mkdir()
        half = len(tar) // 2
        for number, part in enumerate((tar[:half], tar[half:])):
            (root / f"b/bundle.tar.00{number}").write_bytes(part)
        rows = [f"{hashlib.sha256(p).hexdigest()}  bundle.tar.00{n}\n" for n, p in enumerate((tar[:half], tar[half:]))]
        (root / "b" / bundle.SUMS).write_text("".join(rows))
        store = Store(root / "store")
        try:
            bundle.import_bundle(store, root / "b", lambda _there, _all: None)
        except (PromiseError, ConfigError) as error:
            done, message = False, str(error)
        else:
            done, message = True, ""
        assert "\n" not in message
        assert {one.sha256 for one in store.objects()} == (set(OBJECTS) if done else set())
        assert store_verify.verify(store) == []
        assert {path.name for path in root.iterdir()} <= {"b", "store"}
        assert {path.name for path in (root / "store").iterdir()} <= {"sha256", "info", "import.lock"}
        return done


def test_the_sound_one_is_taken() -> None:
    assert taken(SOUND)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255), st.sampled_from(["flip", "cut", "grow", "twice", "swap"]))
def test_no_change_of_a_bundle_is_taken(at: int, by: int, how: str) -> None:
    """A byte, a length, a block twice, two blocks in each other's place: with the hashes of the parts made to fit."""
    assume(how != "flip" or not 512 <= at < 512 + len(LISTED))  # another list of contents, and as sound a one
    block = at // 512 * 512
    other = (block + by * 512) % len(SOUND)
    changed = {
        "flip": SOUND[:at] + bytes([SOUND[at] ^ by]) + SOUND[at + 1 :],
        "cut": SOUND[:at],
        "grow": SOUND[:at] + bytes([by]) + SOUND[at:],
        "twice": SOUND[:block] + SOUND[block : block + 512] * 2 + SOUND[block + 512 :],
        "swap": _swapped(block, other),
    }[how]
    assert taken(changed) == (changed == SOUND)


def _swapped(first: int, second: int) -> bytes:
    tar = bytearray(SOUND)
    tar[first : first + 512], tar[second : second + 512] = SOUND[second : second + 512], SOUND[first : first + 512]
    return bytes(tar)


KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, *b"1 2 3 4 5 6 7 g x L K S V D N".split()])
WRONG_NAMES = st.one_of(
    NAMES,
    st.sampled_from([*WHOLE, *(f"./{name}" for name in WHOLE), *(f"/{name}" for name in WHOLE)]),
    st.sampled_from(
        ["../x", "/etc/passwd", "a/../../x", "sha256/../../x", "x" * 300, "sha256/ab/" + "ä" * 60, "..", "."]
    ),
)
FORMS: Final[tuple[Literal[0, 1, 2], ...]] = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
FORMATS = st.sampled_from(FORMS)
TEXTS = st.dictionaries(
    st.sampled_from(["path", "linkpath", "size", "GNU.sparse.name"]), st.text(max_size=20), max_size=2
)


@st.composite
def tar_members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member as somebody else's tar could have it."""
    info = tarfile.TarInfo(draw(WRONG_NAMES))
    content = draw(st.sampled_from([b"", b"x" * 700, *OBJECTS.values()]))
    info.type, info.mode = draw(KINDS), draw(st.sampled_from([0o444, 0o4755]))
    info.linkname = draw(st.sampled_from(["", "../../etc/passwd", "/etc/passwd", bundle.CONTENTS]))
    info.size = draw(st.sampled_from([len(content), len(content), 0, len(content) + 1, 2**40]))
    info.mtime, info.uid = draw(st.sampled_from([0, 0, 1])), draw(st.sampled_from([0, 0, 1000]))
    info.pax_headers = draw(TEXTS)
    return info, content


@settings(max_examples=120, deadline=None)
@given(
    st.lists(tar_members(), min_size=1, max_size=4),
    st.integers(0, len(WHOLE)),
    FORMATS,
)
def test_nothing_that_others_put_between_is_taken(
    others: list[tuple[tarfile.TarInfo, bytes]], where: int, form: Literal[0, 1, 2]
) -> None:
    """Links, devices, extensions, paths that lead outside, names that are there already: among what belongs there."""
    blocks = [_block(name, content) for name, content in WHOLE.items()]
    strange = [_foreign(info, content, form) for info, content in others]
    tar = b"".join([*blocks[:where], *strange, *blocks[where:]])
    tar += bytes(1024 + -(len(tar) + 1024) % tarfile.RECORDSIZE)
    assert not taken(tar)


def _block(name: str, content: bytes) -> bytes:
    return bundle_tar.header(name, len(content)) + content + bytes(-len(content) % 512)


def _foreign(info: tarfile.TarInfo, content: bytes, form: Literal[0, 1, 2]) -> bytes:
    try:
        head = info.tobuf(form, "utf-8", "surrogateescape")
    except ValueError:  # what that format has no way to say
        head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + content + bytes(-len(content) % 512)
