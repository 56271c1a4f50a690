"""What NVML says of pairs of GPUs, and what stands between them on the bus, read off small trees that look like one."""

import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.node import buses, nvml
from tests.builders import plant
from tests.node.conftest import read

Fake = Callable[..., Any]
ROOT = "sys/devices/pci0000:00"
REDIRECTS = 0b0011101  # source validation, request and completion redirect, upstream forwarding


def test_each_pair_is_told_with_what_its_gpus_may_and_the_path_between_them(fake_nvml: Fake) -> None:
    def status(a: int, b: int, cap: int) -> int:
        return {(0, 2): 3, (1, 2): 9}.get((a, b), 0) if cap != 2 else 5

    fake = fake_nvml(
        nvmlDeviceGetCount=3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetP2PStatus=status,
        nvmlDeviceGetTopologyCommonAncestor=lambda a, _b: 50 if a else 10,
    )
    signals, _ = nvml.read(fake)
    told = ((0, 1, "ok", "PIX"), (0, 2, "topology not supported", "PIX"), (1, 2, "unknown (9)", "SYS"))
    assert signals["gpu.p2p"].value == [
        {"a": a, "b": b, "read": may, "write": may, "nvlink": "not supported", "path": path} for a, b, may, path in told
    ]


def test_what_nvml_will_not_say_of_pairs_is_a_reason_and_one_without_a_path_has_none(fake_nvml: Fake) -> None:
    two = {"nvmlDeviceGetCount": 2, "nvmlDeviceGetP2PStatus": 0, "nvmlDeviceGetTopologyCommonAncestor": 10}
    signals, _ = nvml.read(fake_nvml({"nvmlDeviceGetTopologyCommonAncestor": "Not Supported"}, **two))
    assert [pair["path"] for pair in signals["gpu.p2p"].value] == [None]
    signals, _ = nvml.read(fake_nvml({"nvmlDeviceGetP2PStatus": "Not Supported"}, **two))
    assert signals["gpu.p2p"].reason == "NVML: Not Supported"
    assert nvml.read(fake_nvml())[0]["gpu.p2p"].value == []
    assert "gpu.p2p" not in nvml.read(fake_nvml(), (nvml.VERSIONS, nvml.IDENTITY))[0]


def test_who_computes_is_told_by_name_where_the_driver_tells_it(fake_nvml: Fake) -> None:
    process = SimpleNamespace(pid=4711, usedGpuMemory=3 << 30)
    _, [gpu] = nvml.read(
        fake_nvml(
            nvmlDeviceGetComputeRunningProcesses=[process],
            nvmlSystemGetProcessName=b"/opt/venv/bin/python train.py --token=x",
            nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97, memory=40),
        )
    )
    assert gpu.signal("processes").value == [{"pid": 4711, "memory": 3 << 30, "name": "python"}]
    assert gpu.signal("utilization").value == 97
    denied = {"nvmlSystemGetProcessName": "Insufficient Permissions"}
    _, [hidden] = nvml.read(fake_nvml(denied, nvmlDeviceGetComputeRunningProcesses=[process]))
    assert hidden.signal("processes").value == [{"pid": 4711, "memory": 3 << 30, "name": None}]


def test_the_far_end_of_each_link_that_is_up_is_told(fake_nvml: Fake) -> None:
    fake = fake_nvml(
        nvmlDeviceGetNvLinkState=lambda _gpu, link: int(link != 1),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda _gpu, link: {0: 2, 2: 0}.get(link, 255),
    )
    _, [gpu] = nvml.read(fake)
    assert gpu.signal("nvlink_remotes").value == ["switch", "gpu", "other"]


def config(*capabilities: tuple[int, int]) -> bytes:
    """Return 4 KiB of configuration space with these extended capabilities: an id, and what stands 4 bytes on."""
    space = bytearray(4096)
    for number, (identity, body) in enumerate(capabilities):
        at, last = 0x100 + 0x40 * number, number == len(capabilities) - 1
        struct.pack_into("<II", space, at, identity | 1 << 16 | (0 if last else at + 0x40) << 20, body)
    return bytes(space)


def test_acs_is_found_wherever_it_stands_in_the_list() -> None:
    on = ["source validation", "request redirect", "completion redirect", "upstream forwarding"]
    assert buses.acs(config((0x0001, 0), (0x000D, REDIRECTS << 16))) == on
    assert buses.acs(config((0x000D, 0xFFFF))) == []  # the capability register is not the control register
    assert buses.acs(config((0x0001, 0))) == []
    assert buses.acs(bytes(4096)) == []
    assert buses.acs(b"\xff" * 4096) == []  # a device that fell off the bus
    assert buses.acs(bytes(256) + struct.pack("<I", 0x0001 | 0x100 << 20) + bytes(60)) == []  # a list that is a circle


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    """Make a root port with a switch, two GPUs below it, and a third GPU at a root port of its own."""
    places = {
        "0000:10:00.0": "0000:00:01.0/0000:0e:00.0/0000:0f:00.0/0000:10:00.0",
        "0000:11:00.0": "0000:00:01.0/0000:0e:00.0/0000:0f:01.0/0000:11:00.0",
        "0000:20:00.0": "0000:00:02.0/0000:20:00.0",
    }
    on = {"0000:0f:00.0": REDIRECTS, "0000:0f:01.0": 1}
    listed = tmp_path / "sys/bus/pci/devices"
    listed.mkdir(parents=True)
    for path in places.values():
        at = tmp_path / ROOT
        for part in path.split("/"):
            at /= part
            vendor, kind = ("0x10de\n", "0x030200\n") if part in places else ("0x1000\n", "0x060400\n")
            plant(at, {"vendor": vendor, "class": kind, "config": config((0x000D, on.get(part, 0) << 16))})
            if not (listed / part).exists():
                (listed / part).symlink_to(at)
    return tmp_path


def test_each_bridge_above_a_gpu_says_what_of_acs_is_on_and_whom_it_is_above(bus: Path) -> None:
    bridges = read(buses.pci_sources(bus))["pci.acs"].value
    data = {bridge["bus_id"]: (bridge["gpus"], bridge["enabled"]) for bridge in bridges}
    both = ["0000:10:00.0", "0000:11:00.0"]
    assert data["0000:00:01.0"] == data["0000:0e:00.0"] == (both, [])
    assert data["0000:0f:00.0"][0] == both[:1]
    assert "request redirect" in data["0000:0f:00.0"][1]
    assert data["0000:0f:01.0"] == (both[1:], ["source validation"])
    assert data["0000:00:02.0"] == (["0000:20:00.0"], [])
    assert len(data) == 5


def test_a_gpu_that_is_for_a_guest_is_below_no_bridge(bus: Path) -> None:
    listed = bus / "sys/bus/pci/devices"
    links = (("10", "driver", "nvidia"), ("11", "driver", "vfio-pci"), ("20", "physfn", "0000:20:00.1"))
    for gpu, name, target in links:
        (bus / target).mkdir()
        (listed / f"0000:{gpu}:00.0" / name).symlink_to(bus / target)
    assert buses.above(listed) == {f"0000:{at}.0": ["0000:10:00.0"] for at in ("00:01", "0e:00", "0f:00")}
    # Nobody misses a virtual function in NVML's list: harvester/harvester#6487, 32 of them on an L40S.
    drivers = {gpu["bus_id"]: gpu["driver"] for gpu in read(buses.pci_sources(bus))["pci.gpus"].value}
    assert drivers == {"0000:10:00.0": "nvidia", "0000:11:00.0": "vfio-pci"}


def test_the_64_bytes_that_are_for_everybody_are_no_answer(bus: Path) -> None:
    (bus / "sys/bus/pci/devices/0000:0f:00.0/config").write_bytes(bytes(64))
    assert "only root may read" in str(read(buses.pci_sources(bus))["pci.acs"].reason)


def test_a_conventional_bridge_of_256_bytes_has_no_acs(bus: Path) -> None:
    (bus / "sys/bus/pci/devices/0000:0f:00.0/config").write_bytes(bytes(256))
    bridges = {bridge["bus_id"]: bridge["enabled"] for bridge in read(buses.pci_sources(bus))["pci.acs"].value}
    assert bridges["0000:0f:00.0"] == []


def test_the_iommu_is_told_by_each_gpus_group(bus: Path) -> None:
    for gpu, kind in (("0000:10:00.0", "DMA-FQ"), ("0000:11:00.0", "identity")):
        group = bus / "sys/kernel/iommu_groups" / gpu
        plant(group, {"type": f"{kind}\n"})
        (bus / "sys/bus/pci/devices" / gpu / "iommu_group").symlink_to(group)
    signals = read(buses.pci_sources(bus))
    assert signals["pci.iommu"].value == {"0000:10:00.0": "DMA-FQ", "0000:11:00.0": "identity", "0000:20:00.0": None}
