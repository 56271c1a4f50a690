"""Two nodes and the network between them: what NCCL's log says, what is missing, and what the ports carry."""

from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank, View
from envcheck.checks.collectives import fabrics, timed_collectives, transports
from envcheck.checks.env import all_reduce_bandwidth, collective_bandwidth, fabric_libraries, rails, transport
from tests.builders import Entry, gpu_view, group, plant, put
from tests.tables import each

A_RAIL = {"device": "mlx5_0", "port": "1", "layer": "InfiniBand", "vendor": "0x15b3", "rate": 400.0}
RAILS = [{**A_RAIL, "device": f"mlx5_{number}"} for number in range(8)]
ROCE = [{**port, "layer": "Ethernet"} for port in RAILS]
EFA = [{**A_RAIL, "device": f"rdmap{number}s0", "layer": "Unspecified", "vendor": "0x1d0f"} for number in range(8)]
INFO = "node1:1:2 [0] NCCL INFO "
# As NCCL writes them, 2.14 to 2.29 and from 2.30 on: of the plain libibverbs.so every sound image complains there.
NO_VERBS = INFO + "Failed to open libibverbs.so[.1]\n"
NO_VERBS_230 = INFO + "Count not open libibverbs.so.1: cannot open shared object file\n"
SOUND_230 = INFO + "Count not open libibverbs.so\n"
SOCKETS = f"{INFO}NET/Socket : Using [0]eth0:10.45.223.193<0>\n{INFO}Using network Socket\n"
NO_MEMORY = "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
NVLS = INFO + "NVLS comm 0x1 headRank 0 nHeads 8\nAllReduce: 268435456 Bytes -> Algo NVLS_TREE proto SIMPLE\n"


def verbs(layer: str = "IB") -> str:
    used = " ".join(f"[{number}]mlx5_{number}:1/{layer}" for number in range(8))
    return f"{INFO}NET/IB : Using {used} [RO]; OOB eth0:10.0.0.1<0>\n{INFO}Using network IB\n"


def two_nodes(message: str, way: str, ports: list[Any] | None = None, *, local: int = 8, **more: Any) -> list[Entry]:
    """Return the ranks of two nodes, with NVLink within and `way` between them; `ports` are those of each node."""
    world = 2 * local

    def measured(rank: int) -> Entry:
        ways = {peer: "P2P/CUMEM" if rank // local == peer // local else way for peer in range(world) if peer != rank}
        lines = "".join(f"{INFO}Channel 00/0 : {rank}[0] -> {peer}[0] via {each}\n" for peer, each in ways.items())
        log = {**transports.parse(message + NVLS + lines), "ports": RAILS if ports is None else ports}
        return {"host": f"node{rank // local + 1}", "nccl": log, "wrong": [], **more}

    return group(measured, world)


def curve(busbw: float, world: int) -> list[dict[str, Any]]:
    sizes, factor = timed_collectives.SIZES["cuda"], 2 * (world - 1) / world
    return [{"bytes": size, "seconds": size * factor / busbw / 1e9, "right": True} for size in sizes]


def bandwidth(view: View, busbw: float, message: str, way: str, **more: Any) -> Any:
    local = more.get("local", 8)
    return all_reduce_bandwidth.judge(view, two_nodes(message, way, curve=curve(busbw, 2 * local), latency={}, **more))


@each(
    "message, line, fix",
    [
        (NO_VERBS + SOCKETS, "Failed to open libibverbs.so[.1]", "ibverbs-providers"),
        (SOUND_230 + NO_VERBS_230 + SOCKETS, "Count not open libibverbs.so.1", "ibverbs-providers"),
        (SOUND_230 + SOCKETS, "Using network Socket", "fabric-libraries"),
        (INFO + "NET/IB : No device found.\n" + SOCKETS, "NET/IB : No device found", "/dev/infiniband"),
        (INFO + "NET/Plugin: Could not find: libnccl-net.so\n" + SOCKETS, "Could not find", "plug-in"),
        (
            INFO + "NET/Plugin: No plugin found (libnccl-net.so)\n" + INFO + "NET/Plugin: Plugin load returned 2 : "
            "/lib/libc.so.6: version `GLIBC_2.32' not found (required by /usr/local/lib64/libnccl-net.so) : when\n",
            "GLIBC_2.32",
            "built on",
        ),  # AI-Hypercomputer/gpu-recipes#5
        (
            INFO + "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object\n"
            f"{INFO}NET/Plugin : No plugin found, using internal implementation\n{SOCKETS}",
            "No plugin found",
            "install",
        ),
        (f"node1:1:2 [0] misc/ibvwrap.cc:240 NCCL WARN {NO_MEMORY}\n{SOCKETS}", NO_MEMORY, "memlock"),
        (INFO + "NCCL_IB_DISABLE set by environment to 1.\n" + SOCKETS, "Using network Socket", "NCCL_IB_DISABLE"),
    ],
)
def test_two_nodes_over_sockets_beside_eight_ports_fail_with_node_and_line(
    h100: View, message: str, line: str, fix: str
) -> None:
    outcome = transport.judge(h100, two_nodes(message, "NET/Socket/0"))
    assert (outcome.status, outcome.code, outcome.culprit) == (FAIL, "transport.sockets", "node1")
    assert [finding.culprit for finding in outcome.findings if finding.status == FAIL] == ["node1", "node2"]
    assert line in outcome.summary
    assert "beside 8 active RDMA ports (mlx5_0, mlx5_1, mlx5_2, mlx5_3, …)" in outcome.summary
    assert fix in outcome.remedy
    slow = bandwidth(h100, 3.0, message, "NET/Socket/0")
    assert (slow.status, slow.code, slow.remeasure) == (FAIL, "transport.sockets", False)


def test_its_twin_over_rdma_passes_with_a_limit(h100: View) -> None:
    assert transport.judge(h100, two_nodes(SOUND_230 + verbs(), "NET/IB/0/GDRDMA")).status == PASS
    outcome = bandwidth(h100, 380.0, verbs(), "NET/IB/0/GDRDMA")
    assert (outcome.status, outcome.limit.value) == (PASS, 320.0)
    assert "8 x 400 Gb/s IB on each of 2 nodes" in outcome.limit.source


@each("busbw, status", [(319.0, FAIL), (321.0, WARN), (361.0, PASS), (740.0, PASS), (751.0, ERROR)])
def test_an_all_reduce_between_hosts_is_judged_by_what_the_ports_carry(h100: View, busbw: float, status: str) -> None:
    code = {FAIL: "speed.slow", WARN: "speed.low", ERROR: "speed.impossible"}.get(status, "")
    for message, ports in ((verbs(), RAILS), (verbs("RoCE"), ROCE)):
        outcome = bandwidth(h100, busbw, message, "NET/IB/0/GDRDMA", ports=ports)
        assert (outcome.status, outcome.code) == (status, code)


def test_fewer_ranks_owe_what_their_own_ports_carry(h100: View) -> None:
    outcome = bandwidth(h100, 95.0, verbs(), "NET/IB/0", local=2)
    assert (outcome.status, outcome.limit.value) == (PASS, 80.0)


def test_efa_is_judged_by_one_public_floor_which_only_warns(h100: View) -> None:
    message = INFO + "NET/OFI Selected provider is efa, fabric is efa-direct (found 8 nics)\n"
    message += INFO + "Using network Libfabric\n"
    assert bandwidth(h100, 301.0, message, "NET/Libfabric/0", ports=EFA).status == PASS
    slow = bandwidth(h100, 260.0, message, "NET/Libfabric/0", ports=EFA)
    assert (slow.status, slow.code) == (WARN, "speed.unverified")
    over_tcp = message.replace("provider is efa, fabric is efa-direct", "provider is tcp")
    assert transport.judge(h100, two_nodes(over_tcp, "NET/Libfabric/0", EFA)).code == "transport.sockets"


@each(
    "message, way, ports",
    [
        (SOCKETS, "NET/Socket/0", []),  # no RDMA here
        (SOCKETS, "P2P/MNNVL", RAILS),  # NVLink between hosts: what was initialized beside it carries nothing
        (verbs(), "P2P/MNNVL", RAILS),
        (verbs(), "NET/IB/0", [{**port, "rate": None} for port in RAILS]),
        (verbs(), "NET/IB/0", RAILS[:7]),  # a device that nobody read
        (INFO + "Using network gIB\n", "NET/gIB/0/GDRDMA", ROCE),
    ],
)
def test_what_is_not_known_between_hosts_is_reported_and_no_alarm(
    h100: View, message: str, way: str, ports: list[Any]
) -> None:
    assert transport.judge(h100, two_nodes(message, way, ports)).status == PASS
    outcome = bandwidth(h100, 3.0, message, way, ports=ports)
    assert (outcome.status, "reported, not judged (no limit known between hosts" in outcome.summary) == (PASS, True)


def test_who_declines_roce_is_warned_and_within_a_node_nothing_is_asked(h100: View, cpu: View) -> None:
    declined = INFO + "NCCL_IB_DISABLE set by environment to 1.\n" + SOCKETS
    outcome = transport.judge(h100, two_nodes(declined, "NET/Socket/0", ROCE))
    assert (outcome.status, outcome.code) == (WARN, "transport.sockets-chosen")
    here = [{**entry, "host": "node1"} for entry in two_nodes(SOCKETS, "P2P/CUMEM")]
    assert fabrics.sockets(h100, here) == fabrics.sockets(cpu, two_nodes(SOCKETS, "NET/Socket/0")) == []


def test_other_collectives_fail_over_sockets_too_and_have_no_limit(h100: View) -> None:
    names = collective_bandwidth.ROWS
    more: dict[str, Any] = {"curves": {name: curve(3.0, 16) for name in names}, "latency": {}, "unsupported": {}}
    assert collective_bandwidth.judge(h100, two_nodes(SOCKETS, "NET/Socket/0", **more)).code == "transport.sockets"
    assert collective_bandwidth.judge(h100, two_nodes(verbs(), "NET/IB/0", **more)).status == PASS


def test_ports_are_read_off_the_node(tmp_path: Path) -> None:
    found, azure = tmp_path / "class", tmp_path / "devices/MSFT1000:00"
    for at, device, state, layer in (
        (found, "mlx5_0", "4: ACTIVE", "InfiniBand"),
        (found, "mlx5_1", "1: DOWN", "InfiniBand"),
        (found, "mlx5_8", "4: ACTIVE", "InfiniBand"),
        (azure, "mlx5_9", "4: ACTIVE", "Ethernet"),
        (azure, "mlx5_7", "4: ACTIVE", "InfiniBand"),
    ):
        port = {"state": f"{state}\n", "link_layer": f"{layer}\n", "rate": "400 Gb/sec (4X NDR)\n"}
        plant(at / device / "ports/1", port)
        plant(at / device, {"device/vendor": "0x15b3\n"})
    # An HGX B200's bridge to its switches (siderolabs/extensions#893).
    (found / "mlx5_8/device/vpd").write_bytes(b"\x82\x00V3 SW_MNG \xff V4")
    # Azure's Ethernet carries no RoCE, its InfiniBand is one (Azure/aks-rdma-infiniband#11).
    for guest in azure.iterdir():
        (found / guest.name).symlink_to(guest)
    assert fabrics.active_ports(found) == [A_RAIL, {**A_RAIL, "device": "mlx5_7"}]
    assert fabrics.active_ports(tmp_path / "none") == []


def libraries(**changes: Any) -> list[Entry]:
    loaded = {"libraries": dict.fromkeys(fabric_libraries.LIBRARIES), "providers": ["libmlx5-rdmav34.so"]}
    machine = {"plugins": {"libnccl-net.so": ABSENT}, "ports": RAILS, "maker": "Dell Inc."}
    return [{"rank": 0, **loaded, **machine, **changes}]


ABSENT = "libnccl-net.so: cannot open shared object file: No such file or directory"
LACKS = {"libibverbs.so.1": "libibverbs.so.1: cannot open shared object file", "libmlx5.so.1": "the same"}
PROMISED = {"fabric": "libibverbs.so.1 libmlx5.so.1"}


@each(
    "changes, promises, status, code",
    [
        ({}, {}, PASS, ""),
        ({"libraries": LACKS}, {}, FAIL, "missing"),
        ({"libraries": {**LACKS, "libibverbs.so.1": None}}, {}, PASS, ""),
        ({"libraries": {**LACKS, "libibverbs.so.1": None}}, PROMISED, FAIL, "missing"),
        ({"libraries": LACKS, "ports": ROCE}, {}, FAIL, "missing"),
        ({"libraries": LACKS, "ports": ROCE[:1]}, {}, WARN, "missing"),
        ({"libraries": LACKS, "ports": ROCE[:1]}, PROMISED, FAIL, "missing"),
        ({"providers": []}, {}, FAIL, "no-provider"),
        ({"ports": EFA}, {}, FAIL, "no-plugin"),
        ({"ports": EFA, "plugins": {"x": ABSENT, "libnccl-net-x.so": None}}, {}, PASS, ""),
        ({"ports": ROCE, "maker": "Google"}, {}, WARN, "no-plugin"),
        ({"libraries": None}, {}, ERROR, "unmeasured"),
    ],
)
def test_what_nccl_opens_has_to_load_where_ports_are_up_or_promised(
    changes: dict[str, Any], promises: dict[str, str], status: str, code: str
) -> None:
    outcome = fabric_libraries.judge(gpu_view("h100x8", promises, cuda="12.8"), libraries(**changes))
    assert (outcome.status, outcome.code) == (status, code and f"fabric-libraries.{code}")
    assert status in (PASS, ERROR) or outcome.remedy


def test_the_nodes_own_ports_count_where_the_container_sees_none(cpu: View) -> None:
    h100 = gpu_view("h100x8", {}, cuda="12.8")
    assert fabric_libraries.judge(h100, libraries(libraries=LACKS, ports=[])).status == FAIL
    bare = put(h100, ib__ports=[])
    assert fabric_libraries.judge(bare, libraries(libraries=LACKS, ports=[])).status == SKIP
    assert fabric_libraries.judge(cpu, libraries(libraries=LACKS)).code == "torch.no-cuda"
    # On a build machine without a GPU its ports say nothing of where the image will run, and its promise all.
    built = gpu_view("cpu", PROMISED, cuda="12.8")
    assert fabric_libraries.judge(built, libraries(libraries=LACKS, ports=[])).status == FAIL


def test_what_this_machine_has_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_libraries, "LIBRARIES", ("libc.so.6", "libnot-there.so.1"))
    monkeypatch.setenv("NCCL_NET_PLUGIN", "ofi")
    measured = fabric_libraries.measure(Rank(0, 1, 0, "cpu", "gloo", ""))
    assert measured["libraries"]["libc.so.6"] is None
    assert "libnot-there.so.1" in measured["libraries"]["libnot-there.so.1"]
    assert {*measured["plugins"]} == {"ofi", "libnccl-net-ofi.so"}


def looped(odd: dict[str, float] | None = None, message: str | None = None, **more: Any) -> list[Entry]:
    """Return the ranks of one node whose GPUs reach each other through one port each; `odd` ports are slower."""
    rates = [(odd or {}).get(f"mlx5_{number}", 47.0) for number in range(8)]

    def measured(rank: int) -> Entry:
        lines = "".join(
            f"{INFO}Channel 00/0 : {rank}[0] -> {(rank + 1) % 8}[0] [{way}] via NET/IB/{number}/GDRDMA\n"
            for number, way in ((rank, "send"), ((rank + 1) % 8, "receive"))
        )
        source = (rank - 1) % 8
        sent = {"bytes": 1 << 27, "seconds": (1 << 27) / min(rates[source], rates[rank]) / 1e9, "right": True}
        whole = {"bytes": 1 << 30, "seconds": (1 << 30) * 1.75 / min(rates) / 1e9, "right": True}
        log = transports.parse((verbs() if message is None else message) + lines)
        mine = [sent if number == source else None for number in range(8)]
        return {"whole": whole, "sent": mine, "ports": RAILS, "nccl": log, **more}

    return group(measured, 8)


def test_each_rail_is_told_and_the_slow_one_named(h100: View) -> None:
    sound = rails.judge(h100, looped())
    assert (sound.status, sound.value, len(sound.details["rails"])) == (PASS, pytest.approx(47.0), 8)
    outcome = rails.judge(h100, looped(odd={"mlx5_3": 12.0}))
    # No port was met and the floors have one source each: they warn.
    assert (outcome.status, outcome.code) == (WARN, "speed.unverified")
    assert [finding.culprit for finding in outcome.findings] == ["all-reduce", "mlx5_3:1/IB"]
    assert "mlx5_3:1/IB: 12 GB/s over the network, of its port's 50" in outcome.findings[1].summary
    unnamed = rails.judge(h100, [{**e, "nccl": transports.parse(verbs())} for e in looped(odd={"mlx5_3": 12.0})])
    assert {f.culprit for f in unnamed.findings} == {"all-reduce", "rank 2 to rank 3", "rank 3 to rank 4"}


@each(
    "ranks, status, code",
    [
        (looped(message=NO_VERBS + SOCKETS), FAIL, "rails.sockets"),
        (looped(message=SOCKETS, ports=ROCE[:1]), WARN, "rails.sockets"),
        (looped(message=INFO), ERROR, "transport.unread"),
        (looped(ports=[]), SKIP, "rails.none"),
        (looped(sent=None), ERROR, "rails.unmeasured"),
        (looped(whole={"bytes": 1 << 30, "seconds": 0.1, "right": False}), FAIL, "data.wrong"),
        (looped(whole={"bytes": 1 << 30, "seconds": None, "right": True}), ERROR, "speed.missing"),
    ],
)
def test_a_node_that_does_not_use_its_own_rails_is_no_pass(h100: View, ranks: Any, status: str, code: str) -> None:
    outcome = rails.judge(h100, ranks)
    assert (outcome.status, outcome.code) == (status, code)
