"""InfiniBand and RoCE ports, read off small trees that look like /sys/class/infiniband."""

from pathlib import Path

from envcheck.node import buses
from tests.builders import plant

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def port(root: Path, device: str, layer: str = "InfiniBand", rate: str = "400 Gb/sec (4X NDR)") -> Path:
    path = root / "sys/class/infiniband" / device / "ports/1"
    plant(path.parents[1], {"node_type": "1: CA\n", "fw_ver": "28.39.1002\n", "board_id": "MT_0000000838\n"})
    plant(path, {"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": rate, "link_layer": f"{layer}\n"})
    return path


def test_a_port_is_read_whole_and_names_no_address(tmp_path: Path) -> None:
    path = port(tmp_path, "mlx5_0", "Ethernet")
    own = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
    for index, (value, kind) in enumerate(((own, "IB/RoCE v1"), (own, "RoCE v2"), (ZERO, "RoCE v2"))):
        plant(path, {f"gids/{index}": f"{value}\n", f"gid_attrs/types/{index}": f"{kind}\n"})
    plant(path, {"counters/link_downed": "3\n", "counters/symbol_error": "N/A (no PMA)\n"})
    signal = buses.infiniband_sources(tmp_path)["ib.ports"].signal()
    [actual] = signal.value
    counters = actual.pop("counters")
    assert actual == {
        "device": "mlx5_0",
        "slot": None,
        "port": 1,
        "type": "CA",
        "model": "MT_0000000838",
        "firmware": "28.39.1002",
        "layer": "Ethernet",
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate": 400.0,
        "gids": {"IB/RoCE v1": 1, "RoCE v2": 1},
    }
    assert (counters["link_downed"], counters["symbol_error"], counters["port_rcv_errors"]) == (3, None, None)
    assert "fe80" not in str(signal)


def test_the_bridge_to_the_nvswitches_and_a_guests_virtual_function_are_no_rails(tmp_path: Path) -> None:
    (port(tmp_path, "mlx5_9").parents[1] / "device/physfn").mkdir(parents=True)
    for device, vpd in (("mlx5_0", b"\x82\x00CX7 NDR"), ("mlx5_8", b"\x82\x00V3 SW_MNG V4")):
        plant(port(tmp_path, device).parents[1], {"device/vpd": vpd})
    assert [p["device"] for p in buses.infiniband_sources(tmp_path)["ib.ports"].signal().value] == ["mlx5_0"]


def test_a_card_whose_firmware_crashed_is_told_and_its_like_are_not(tmp_path: Path) -> None:
    for number, kept in enumerate((".", "infiniband", "net", "mlx5_core.rdma.3", "physfn")):
        place = tmp_path / f"sys/bus/pci/devices/0000:65:0{number}.0"
        plant(place, {"class": "0x020700\n", f"{kept}/uevent": ""})
        (place / "driver").symlink_to(tmp_path / "mlx5_core")
    assert buses.infiniband_sources(tmp_path)["ib.torn_down"].signal().value == ["0000:65:00.0"]


def test_the_ports_of_one_card_are_in_one_slot(tmp_path: Path) -> None:
    for device, place in (("mlx5_0", "0000:5E:00.0"), ("mlx5_1", "0000:5e:00.1"), ("siw0", "virtual")):
        port(tmp_path, device)
        (tmp_path / place).mkdir()
        (tmp_path / f"sys/class/infiniband/{device}/device").symlink_to(tmp_path / place)
    slots = [p["slot"] for p in buses.infiniband_sources(tmp_path)["ib.ports"].signal().value]
    assert slots == ["0000:5e:00", "0000:5e:00", None]


def test_no_device_is_an_empty_list_and_no_sys_a_reason(tmp_path: Path) -> None:
    assert buses.infiniband_sources(tmp_path)["ib.ports"].signal().reason
    (tmp_path / "sys/class").mkdir(parents=True)
    assert buses.infiniband_sources(tmp_path)["ib.ports"].signal().value == []
