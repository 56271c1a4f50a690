"""The kernel's log: what NVIDIA's driver writes there is found, and who may not read it is told why."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.node import kmsg

LOG = """6,1,100000000,-;Linux version 6.8
4,2,3600000000,-;NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
 SUBSYSTEM=pci
4,3,3601000000,-;NVRM: Xid (0000:03:00): 14, Channel 00000001
4,4,3602000000,-;nvidia-nvswitch3: SXid (PCI:0000:A9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
4,5,3603000000,-;NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)
4,6,3604000000,-;NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
4,7,3605000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev/kmsg").write_text(LOG)
    (tmp_path / "proc/uptime").write_text("7204.00 100.00\n")
    return tmp_path


def test_xids_have_code_place_age_and_words(node: Path) -> None:
    xids = kmsg.signals(node)["kernel.xids"].value
    assert [(x["code"], x["bus_id"]) for x in xids] == [
        (79, "0000:05:00"),
        (14, "0000:03:00"),
        (154, "0009:01:00"),
        (79, "0000:18:00"),
    ]
    assert xids[0]["age"] == 3604.0
    assert xids[2]["text"] == "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"


def test_sxids_are_kept_apart(node: Path) -> None:
    [sxid] = kmsg.signals(node)["kernel.sxids"].value
    assert (sxid["code"], sxid["bus_id"], sxid["text"]) == (20034, "0000:a9:00.0", "Fatal, Link 30 LTSSM Fault Up")


def test_how_far_the_log_reaches_back_is_told(node: Path) -> None:
    assert kmsg.signals(node)["kernel.log_hours"].value == round(7104 / 3600, 2)


def test_a_log_that_may_not_be_read_is_a_reason_and_never_an_empty_list(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: object, _flags: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "open", refuse)
    signals = kmsg.signals(node)
    assert {s.reason for s in signals.values()} == {"/dev/kmsg: Operation not permitted"}
    assert {s.value for s in signals.values()} == {None}


@pytest.mark.parametrize(("name", "text"), [("dev/kmsg", ""), ("proc/uptime", "soon"), ("proc/uptime", "")])
def test_an_empty_log_and_an_unknown_uptime_are_reasons(node: Path, name: str, text: str) -> None:
    (node / name).write_text(text)
    assert kmsg.signals(node)["kernel.xids"].value is None


def test_no_log_is_a_reason(tmp_path: Path) -> None:
    assert "No such file" in str(kmsg.signals(tmp_path)["kernel.xids"].reason)


def test_a_record_that_was_overwritten_meanwhile_is_passed_over(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[bytes | OSError] = iter([OSError(errno.EPIPE, "Broken pipe"), LOG.encode(), BlockingIOError()])

    def read(_handle: int, _size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert len(kmsg.signals(node)["kernel.xids"].value) == 4


@given(st.binary())
def test_no_bytes_break_the_parser(raw: bytes) -> None:
    records = list(kmsg.parse([raw]))
    assert kmsg.events(records, 1.0, "NVRM") + kmsg.events(records, 1.0, "SXid") is not None


@given(st.integers(1, 9999), st.text(max_size=300))
def test_any_xid_is_read_with_a_bounded_text(code: int, words: str) -> None:
    line = f"NVRM: Xid (PCI:0000:05:00): {code}, {words}".splitlines()[0]
    [event] = kmsg.events([kmsg.Record(1.0, line)], 2.0, "NVRM")
    assert event["code"] == code
    assert len(event["text"]) <= 160
