"""InfiniBand and RoCE ports, read off small trees that look like /sys/class/infiniband."""

from pathlib import Path

from envcheck.node import buses

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def port(root: Path, device: str, layer: str = "InfiniBand", rate: str = "400 Gb/sec (4X NDR)") -> Path:
    path = root / "sys/class/infiniband" / device / "ports/1"
    for directory in ("gids", "gid_attrs/types", "counters"):
        (path / directory).mkdir(parents=True)
    (path.parents[1] / "node_type").write_text("1: CA\n")
    (path.parents[1] / "fw_ver").write_text("28.39.1002\n")
    (path.parents[1] / "board_id").write_text("MT_0000000838\n")
    for name, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", rate), ("link_layer", layer)):
        (path / name).write_text(f"{text}\n")
    return path


def gid(path: Path, index: int, value: str, kind: str | None) -> None:
    (path / f"gids/{index}").write_text(f"{value}\n")
    if kind:
        (path / f"gid_attrs/types/{index}").write_text(f"{kind}\n")


def test_a_port_is_read_whole_and_names_no_address(tmp_path: Path) -> None:
    path = port(tmp_path, "mlx5_0", "Ethernet")
    gid(path, 0, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1")
    gid(path, 1, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2")
    gid(path, 2, ZERO, "RoCE v2")
    (path / "counters/link_downed").write_text("3\n")
    (path / "counters/symbol_error").write_text("N/A (no PMA)\n")
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


def test_the_bridge_to_the_nvswitches_is_no_rail(tmp_path: Path) -> None:
    for device, vpd in (("mlx5_0", b"\x82\x00CX7 NDR"), ("mlx5_8", b"\x82\x00V3 SW_MNG V4")):
        (port(tmp_path, device).parents[1] / "device").mkdir()
        (tmp_path / "sys/class/infiniband" / device / "device/vpd").write_bytes(vpd)
    assert [p["device"] for p in buses.infiniband_sources(tmp_path)["ib.ports"].signal().value] == ["mlx5_0"]


def test_the_ports_of_one_card_are_in_one_slot(tmp_path: Path) -> None:
    for device, place in (("mlx5_0", "0000:5E:00.0"), ("mlx5_1", "0000:5e:00.1"), ("siw0", "virtual")):
        port(tmp_path, device)
        (tmp_path / place).mkdir()
        (tmp_path / f"sys/class/infiniband/{device}/device").symlink_to(tmp_path / place)
    assert [p["slot"] for p in buses.infiniband_sources(tmp_path)["ib.ports"].signal().value] == [
        "0000:5e:00",
        "0000:5e:00",
        None,
    ]


def test_a_guests_virtual_function_is_left_to_the_guest(tmp_path: Path) -> None:
    (port(tmp_path, "mlx5_8").parents[1] / "device/physfn").mkdir(parents=True)
    port(tmp_path, "mlx5_0")
    assert [p["device"] for p in buses.infiniband_sources(tmp_path)["ib.ports"].signal().value] == ["mlx5_0"]


def test_no_device_is_an_empty_list_and_no_sys_a_reason(tmp_path: Path) -> None:
    assert buses.infiniband_sources(tmp_path)["ib.ports"].signal().reason
    (tmp_path / "sys/class").mkdir(parents=True)
    assert buses.infiniband_sources(tmp_path)["ib.ports"].signal().value == []
