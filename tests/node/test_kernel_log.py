"""The kernel's log: what NVIDIA's driver writes there is found, and who may not read it is told why."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.node import kernel_log
from tests.builders import plant
from tests.tables import beside, each

LINES = beside(__file__, "kernel_log.yaml")
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
    plant(tmp_path, {"dev/kmsg": LOG, "proc/uptime": "7204.00 100.00\n"})
    return tmp_path


def test_xids_have_code_place_age_and_words(node: Path) -> None:
    xids = kernel_log.signals(node, {})["kernel.xids"].value
    places = [(79, "0000:05:00"), (14, "0000:03:00"), (154, "0009:01:00"), (79, "0000:18:00")]
    assert [(x["code"], x["bus_id"]) for x in xids] == places
    assert xids[0]["age"] == 3604.0
    assert xids[2]["text"] == "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"


def test_a_log_that_dmesg_wrote_there_is_read_too(node: Path) -> None:
    text = "[    0.000000] Linux version 6.8\n[ 3600.000000] NVRM: Xid (PCI:0000:05:00): 79, off the bus.\n"
    (node / "dev/kmsg").write_text(text)
    signals = kernel_log.signals(node, {})
    assert [(x["code"], x["age"]) for x in signals["kernel.xids"].value] == [(79, 3604.0)]
    assert signals["kernel.log_hours"].value == 2.0


def test_a_log_that_may_not_be_read_is_a_reason_and_never_an_empty_list(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: object, _flags: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "open", refuse)
    signals = kernel_log.signals(node, {})
    assert {s.reason for s in signals.values()} == {"/dev/kmsg: Operation not permitted"}
    assert {s.value for s in signals.values()} == {None}


@pytest.mark.parametrize(("name", "text"), [("dev/kmsg", ""), ("proc/uptime", "soon"), ("proc/uptime", "")])
def test_an_empty_log_and_an_unknown_uptime_are_reasons(node: Path, name: str, text: str) -> None:
    (node / name).write_text(text)
    assert kernel_log.signals(node, {})["kernel.xids"].value is None


def test_a_record_that_was_overwritten_meanwhile_is_passed_over(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[bytes | OSError] = iter([OSError(errno.EPIPE, "Broken pipe"), LOG.encode(), BlockingIOError()])

    def read(_handle: int, _size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert len(kernel_log.signals(node, {})["kernel.xids"].value) == 4


@given(st.binary())
def test_no_bytes_break_the_parser(raw: bytes) -> None:
    records = list(kernel_log.parse([raw]))
    assert kernel_log.events(records, 1.0, "NVRM") + kernel_log.events(records, 1.0, "SXid") is not None


@each(("line", "code", "bus", "instance"), LINES["xids"])
def test_every_form_that_drivers_write_is_read(line: str, code: int, bus: str, instance: str) -> None:
    for prefix in ("4,2,3600000000,-;", "4,2,3600000000,-,caller=T1234;"):
        [event] = kernel_log.events(kernel_log.parse([f"{prefix}{line}\n".encode()]), 7200.0, "NVRM")
        assert (event["code"], event["bus_id"], event.get("instance", "")) == (code, bus, instance)
        assert event["age"] == 3600.0


def test_a_fall_that_is_told_over_three_records_names_its_gpu() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    [event] = kernel_log.events([kernel_log.LogRecord(1.0, line) for line in lines], 2.0, "NVRM")
    assert (event["code"], event["bus_id"]) == (79, "0000:18:00")


@each("line", LINES["no_xids"])
def test_what_is_no_xid_is_none(line: str) -> None:
    assert kernel_log.events([kernel_log.LogRecord(1.0, line)], 2.0, "NVRM") == []


def test_a_fatal_link_is_not_replaced_by_a_later_one_that_is_not() -> None:
    lines = [
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x0)",
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001 0x0)",
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 02 (0x028405c6 0x00000000 0x0)",
    ]
    events = kernel_log.events([kernel_log.LogRecord(1.0, line) for line in lines], 2.0, "NVRM")
    assert len(events) == 3


def test_lines_that_were_folded_or_left_out_are_counted(node: Path) -> None:
    (node / "dev/kmsg").write_text(
        "4,1,3600000000,-;message repeated 6 times: [ NVRM: Xid (PCI:0000:05:00): 31, fault]\n"
        "4,2,3600000000,-;nv_printf: 120 callbacks suppressed\n"
        "4,3,3601000000,-;nv_printf: 3 callbacks suppressed\n"
        "4,4,3602000000,-;net_ratelimit: 12 callbacks suppressed\n"
        "4,5,3602000000,-;nvme: 7 callbacks suppressed\n"
        "4,5,3602000000,-;kauditd_printk_skb: 44 callbacks suppressed\n"
    )
    signals = kernel_log.signals(node, {})
    assert [event["count"] for event in signals["kernel.xids"].value] == [6]
    gaps = {gap["name"]: gap["count"] for gap in signals["kernel.suppressed"].value}
    assert gaps["nv_printf"] == 123
    assert "kauditd_printk_skb" not in gaps


EVENTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([13, 31, 79, 94]), st.sampled_from(["", " GPU-I:01"])))


@given(EVENTS)
def test_nothing_is_lost_and_each_kind_is_kept_once(seen: list[tuple[int, int, str]]) -> None:
    lines = [f"NVRM: Xid (PCI:0000:{bus:02x}:00{mig}): {code}, text {n}" for n, (bus, code, mig) in enumerate(seen)]
    events = kernel_log.events([kernel_log.LogRecord(float(n), line) for n, line in enumerate(lines)], 1e6, "NVRM")
    assert sum(event["count"] for event in events) == len(seen)
    assert len(events) == len(set(seen))
    last = {key: n for n, key in enumerate(seen)}
    assert sorted(event["age"] for event in events) == sorted(1e6 - n for n in last.values())


@each(("line", "kind", "bus"), LINES["failures"])
def test_failures_of_a_gpu_without_an_xid_are_found(line: str, kind: str, bus: str) -> None:
    records = kernel_log.parse([f"4,2,3600000000,-;{line}\n".encode() * 2])
    [failure] = kernel_log.failures(records, 7204.0, {"0000:00:03.0": ["0000:03:00.0"]})
    assert (failure["kind"], failure["bus_id"], failure["count"], failure["age"]) == (kind, bus, 2, 3604.0)


@each("line", LINES["no_failures"])
def test_what_sound_drivers_write_is_no_failure(line: str) -> None:
    assert kernel_log.failures([kernel_log.LogRecord(1.0, line)], 2.0, {}) == []


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): "


@each(("lines", "kept"), LINES["switch"])
def test_what_adds_to_a_switchs_error_is_none_of_its_own(lines: list[str], kept: list[str]) -> None:
    actual = kernel_log.events([kernel_log.LogRecord(1.0, f"{SWITCH}{line}") for line in lines], 2.0, "SXid")
    assert [event["count"] for event in actual] == [1] * len(kept)
    assert all(event["text"].startswith(words) for event, words in zip(actual, kept, strict=True))
