"""A wheel is read member by member, and one that was made to harm gives one line."""

import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envcheck.binaries import wheel_members
from envcheck.binaries.native_library import BinaryError
from envcheck.binaries.wheel_members import read_members
from tests.elf_files import CUBIN, MadeLibrary, library

LIBRARY = library(MadeLibrary(needed=["libcudart.so.12"], code=[(CUBIN, 90)]))
METADATA = b"Metadata-Version: 2.1\nName: x\nVersion: 1.0\n"


def wheel(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in {"x-1.0.dist-info/METADATA": METADATA, **members}.items():
            archive.writestr(name, data)
    return path


def test_libraries_are_found_by_their_content(tmp_path: Path) -> None:
    members = {"x/_C.so": LIBRARY, "x/data.bin": LIBRARY, "x/fake.so": b"text", "x/empty.so": b"", "x/dir/": b""}
    contents = read_members(wheel(tmp_path / "x.whl", members))
    assert [actual.path for actual in contents.libraries] == ["x/_C.so", "x/data.bin"]
    assert contents.libraries[0].sass == ("9.0",)
    assert contents.metadata == METADATA.decode()
    assert contents.unread == {"x/fake.so": "not an ELF file", "x/empty.so": "an empty file"}


def test_a_library_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    members = {"x/_C.so": LIBRARY, "x/old.so": b"\x7fELF\1\1" + bytes(60), "x/cut.so": LIBRARY[:-9]}
    contents = read_members(wheel(tmp_path / "x.whl", members))
    assert len(contents.libraries) == 1
    assert contents.unread["x/old.so"] == "a 32-bit ELF file"
    assert "truncated" in contents.unread["x/cut.so"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"y-1.0.dist-info/METADATA": METADATA}, "it has 2 METADATA"),
        ({"../x.py": b""}, "../x.py lies outside of it"),
        ({"/etc/x": b""}, "/etc/x lies outside of it"),
        ({"x/bomb.so": b"\x7fELF" + bytes(1 << 20)}, "more than 100 times as large"),
    ],
)
def test_a_zip_that_is_no_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes], words: str
) -> None:
    monkeypatch.setattr(wheel_members, "_FLOOR", 1 << 16)
    with pytest.raises(BinaryError, match=words):
        read_members(wheel(tmp_path / "x.whl", members))


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path / "x.whl", {"x/_C.so": LIBRARY, "x/_D.so": b""})
    path.write_bytes(path.read_bytes().replace(b"x/_D.so", b"x/_C.so"))
    with pytest.raises(BinaryError, match=r"it has x/_C\.so twice"):
        read_members(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 600))
def test_a_damaged_wheel_gives_one_line_or_is_read(tmp_path: Path, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(wheel(tmp_path / "x.whl", {"x/_C.so": LIBRARY}).read_bytes())
    for at, value in changes:
        data[-1 - at % len(data)] = value
    (tmp_path / "bad.whl").write_bytes(data[: len(data) - cut // 4])
    try:
        read_members(tmp_path / "bad.whl")
    except BinaryError as error:
        complaint = str(error)
    else:
        complaint = ""
    assert "\n" not in complaint
