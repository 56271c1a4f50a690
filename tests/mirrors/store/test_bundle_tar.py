"""The tar of a bundle: plain tar reads it, and whatever somebody else put into it does no harm."""

from __future__ import annotations

import hashlib
import random
import tarfile
import tempfile
from pathlib import Path
from typing import Final, Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.errors import ConfigError, PromiseError
from envcheck.mirrors.store import bundle
from envcheck.mirrors.store.objects import Store
from tests.mirrors.store.conftest import damaged


def block(name: str, content: bytes) -> bytes:
    """Return a member as an export writes it."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o444
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def written(files: dict[str, bytes]) -> bytes:
    """Return a tar as an export writes it."""
    tar = b"".join(block(name, content) for name, content in files.items())
    return tar + bytes(1024 + -(len(tar) + 1024) % tarfile.RECORDSIZE)


NAMES = st.text("abcdef0123456789/._-", min_size=1, max_size=99)
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
            parts = bundle.verified_parts(root / "b", lambda _there, _all: None)
            bundle.import_bundle(store, parts, lambda _there, _all: None)
        except (PromiseError, ConfigError) as error:
            done, message = False, str(error)
        else:
            done, message = True, ""
        assert "\n" not in message
        assert {one.sha256 for one in store.objects()} == (set(OBJECTS) if done else set())
        assert damaged(store) == []
        assert {path.name for path in root.iterdir()} <= {"b", "store"}
        assert {path.name for path in (root / "store").iterdir()} <= {"sha256", "info", "import.lock"}
        return done


def test_the_sound_one_is_taken_and_no_end_of_it_is_needed() -> None:
    assert taken(SOUND)
    assert not taken(SOUND[:600])
    assert not taken(b"garbage" * 100)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255), st.sampled_from(["flip", "cut", "grow", "twice"]))
def test_no_change_of_a_bundle_brings_in_other_bytes(at: int, by: int, how: str) -> None:
    """A byte, a length, a block twice: with the hashes of the parts made to fit; `taken` looks at what came in."""
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


@settings(max_examples=80, deadline=None)
@given(st.lists(tar_members(), min_size=1, max_size=4), st.integers(0, len(WHOLE)), FORMATS)
def test_nothing_that_others_put_between_is_taken(
    others: list[tuple[tarfile.TarInfo, bytes]], where: int, form: Literal[0, 1, 2]
) -> None:
    """Links, devices, extensions, paths that lead outside, names that are there already: among what belongs there."""
    blocks = [block(name, content) for name, content in WHOLE.items()]
    strange = [_foreign(info, content, form) for info, content in others]
    tar = b"".join([*blocks[:where], *strange, *blocks[where:]])
    tar += bytes(1024 + -(len(tar) + 1024) % tarfile.RECORDSIZE)
    assert not taken(tar)


def _foreign(info: tarfile.TarInfo, content: bytes, form: Literal[0, 1, 2]) -> bytes:
    try:
        head = info.tobuf(form, "utf-8", "surrogateescape")
    except ValueError:  # what that format has no way to say
        head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + content + bytes(-len(content) % 512)
