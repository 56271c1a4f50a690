"""What NCCL's log proves: real lines of every form it had, garbage, and what is made of both."""

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank, View
from envcheck.checks.collectives import transports
from envcheck.checks.env import transport
from tests.builders import DATA, Entry, gpu_view, group, put, put_gpu
from tests.tables import beside, each

NAN = float("nan")


@each("log, data", [(row["log"], row["said"]) for row in beside(str(DATA / "nccl_logs.yaml"))])
def test_a_real_line_is_read(log: str, data: dict[str, Any]) -> None:
    parsed = transports.parse(log)
    assert {name: parsed[name] for name in data} == data


WORDS = st.sampled_from(
    "NCCL INFO |NCCL WARN |Channel 00/0 : |1[1] -> |0[0]| via |P2P/|NET/|Bytes -> Algo |² proto|AllReduce: 8 |"
    f" set by environment to |NVLS comm 0x|Using network |\n|\0|{'9' * 30}".split("|")
)


@settings(max_examples=300)
@given(st.lists(WORDS | st.text(max_size=12)).map("".join))
def test_no_line_makes_the_parser_fail_or_its_answer_unjudgeable(text: str) -> None:
    logs = {0: transports.parse(text), 1: {}}
    keys = ("lines", "version", "network", "fabric", "edges", "indirect", "nvls", "algorithms", "settings")
    assert tuple(logs[0]) == keys
    assert all(way.startswith(("P2P/", "SHM/", "NET/")) for ways in transports.edges(logs).values() for way in ways)
    assert isinstance(transports.nvls(logs)["used"], bool)


def test_nccl_is_asked_before_and_its_log_is_read_after(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "100%"
    scratch.mkdir()
    data: dict[str, str] = {}
    monkeypatch.setattr("os.environ", data)
    rank = Rank(3, 8, 3, "cuda:3", "nccl", str(scratch))
    assert transports.read(rank) == {}
    transports.ask(rank, calls=True)
    assert data["NCCL_DEBUG"] == "INFO"
    assert {"INIT", "NET", "P2P", "SHM", "TUNING"} <= {*data["NCCL_DEBUG_SUBSYS"].split(",")}
    # As NCCL expands it.
    (scratch / data["NCCL_DEBUG_FILE"].replace("%%", "%").rpartition("/")[2]).write_bytes(b"\xff NCCL INFO x\n")
    assert transports.read(rank)["lines"] == 1
    data.clear()
    transports.ask(Rank(0, 2, 0, "cpu", "gloo", str(tmp_path)))
    assert data == {}


def line(a: int, b: int, way: str) -> str:
    return f"node1:1:2 [{a}] NCCL INFO Channel 00/0 : {a}[{a}] -> {b}[{b}] via {way}\n"


MULTICAST = "node1:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0\n"
USED = "node1:1:2 [0] NCCL INFO NVLS comm 0x1 headRank 0 nHeads 8\n"
SWITCH = f"{MULTICAST}{USED}AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE\n"
RING = "AllReduce: 268435456 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}\n"


def entries(world: int, way: str, message: str = SWITCH, odd: dict[tuple[int, int], str] | None = None) -> list[Entry]:
    """Return ranks each of which connected to every other by `way`, but for the odd pairs."""

    def measured(rank: int) -> Entry:
        ways = {peer: (odd or {}).get((min(rank, peer), max(rank, peer)), way) for peer in range(world) if peer != rank}
        log = transports.parse(message + "".join(line(rank, peer, each) for peer, each in ways.items()))
        return {"nccl": log, "wrong": []}

    return group(measured, world)


def test_eight_gpus_over_nvlink_and_nvls_pass() -> None:
    outcome = transport.judge(gpu_view("h100x8"), entries(8, "P2P/CUMEM"))
    assert (outcome.status, outcome.value) == (PASS, 0)
    assert outcome.summary == "8 ranks over NVLS, P2P/CUMEM"
    assert outcome.details["algorithms"] == {"AllReduce": "NVLS"}


@each("way, name", itertools.product(["SHM/direct/direct", "NET/Socket/0", "NET/IB/0/GDRDMA"], ["h100x8", "a100x8"]))
def test_a_pair_that_goes_round_its_nvlink_is_named(name: str, way: str) -> None:
    outcome = transport.judge(gpu_view(name), entries(8, "P2P/CUMEM", odd={(2, 5): way}))
    assert (outcome.status, outcome.value) == (WARN, 1)
    assert f"ranks 2-5 talk over {'/'.join(way.split('/')[:2])}; they have a faster link" in outcome.summary
    assert outcome.remedy


def test_bridged_pairs_may_use_the_hosts_memory_to_others_but_not_to_their_own() -> None:
    bridged = put_gpu(gpu_view("a100x8"), range(8), name="NVIDIA A100 80GB PCIe")
    pairs = {(a, b): "SHM/direct/direct" for a in range(8) for b in range(a + 1, 8) if a // 2 != b // 2}
    assert transport.judge(bridged, entries(8, "P2P/CUMEM", RING, pairs)).status == PASS
    assert transport.judge(bridged, entries(8, "SHM/direct/direct", RING)).status == WARN


def test_what_nvml_shows_between_two_gpus_decides_which_of_them_go_round() -> None:
    bridged = put_gpu(gpu_view("a100x8"), range(8), name="NVIDIA A100 80GB PCIe", nvlink_remotes=["gpu"] * 12)
    ends = [gpu.uuid for gpu in bridged.snapshot.gpus]
    matrix = [
        {"a": a, "b": b, "nvlink": "ok" if a // 2 == b // 2 else "not supported", "path": "SYS"}
        for a in range(8)
        for b in range(a + 1, 8)
    ]
    view = put(bridged, gpu__p2p=matrix)
    ranks = entries(8, "P2P/CUMEM", RING, {(a, b): "SHM/direct/direct" for a in range(8) for b in range(a + 1, 8)})
    for entry in ranks:
        entry["device"] = ends[entry["rank"]]
    outcome = transport.judge(view, ranks)
    assert (outcome.status, outcome.value) == (WARN, 4)
    assert "ranks 0-1, 2-3, 4-5, 6-7 talk over SHM/direct" in outcome.summary


@each("way, status", [("SHM/direct/direct", PASS), ("NET/IB/0", PASS), ("NET/Socket/0", WARN)])
def test_gpus_without_nvlink_may_use_what_they_have_but_not_sockets_within_a_host(way: str, status: str) -> None:
    assert transport.judge(gpu_view("mixed"), entries(2, way, RING)).status == status


@each("way, status", [("NET/IB/0", WARN), ("P2P/CUMEM", PASS)])
def test_cards_that_do_not_reach_the_gpus_are_named_where_messages_go_over_them(way: str, status: str) -> None:
    message = SWITCH + "node1:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
    ranks = entries(8, "P2P/CUMEM", message, {(0, 7): way})
    ranks[7]["host"] = "node2"
    outcome = transport.judge(gpu_view("h100x8"), ranks)
    assert (outcome.status, outcome.culprit) == (status, "mlx5_0" if status == WARN else "")


@each(
    "world, message, status, summary",
    [
        (8, MULTICAST + RING, WARN, "8 GPUs in a fabric, and NCCL did not use it"),
        (8, SWITCH + "nvls.cc:254 NCCL WARN Cuda failure 401\n", WARN, "Cuda failure 401"),
        (5, MULTICAST + RING, WARN, "5 GPUs in a fabric"),
        (4, MULTICAST + RING, PASS, "4 ranks over P2P/CUMEM"),
        (8, RING + "NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n", PASS, "NVLS was declined"),
        (8, MULTICAST + RING + "NCCL INFO NCCL_ALGO set by environment to ring,tree\n", PASS, "NVLS was declined"),
        (8, MULTICAST + RING + "NCCL INFO NCCL_ALGO set by environment to ^NVLS\n", PASS, "NVLS was declined"),
        (8, MULTICAST + RING + "NCCL INFO NCCL_ALGO set by environment to ^TREE\n", WARN, "did not use it"),
    ],
)
def test_nvls_is_missed_where_it_is_faster_and_nobody_declined_it(
    world: int, message: str, status: str, summary: str
) -> None:
    outcome = transport.judge(gpu_view("h100x8"), entries(world, "P2P/CUMEM", message))
    assert outcome.status == status
    assert summary in outcome.summary


def test_nvls_is_not_missed_on_ampere_nor_out_of_a_fabric() -> None:
    assert transport.judge(gpu_view("a100x8"), entries(8, "P2P/IPC/read", RING)).status == PASS
    unknown = put_gpu(gpu_view("h100x8"), [3], fabric=None)
    assert transport.judge(unknown, entries(8, "P2P/CUMEM", RING)).status == PASS


def test_a_log_that_says_nothing_proves_nothing(cpu: View) -> None:
    ranks = entries(8, "P2P/CUMEM")
    ranks[3]["nccl"] = {}
    outcome = transport.judge(gpu_view("h100x8"), ranks)
    assert (outcome.status, outcome.summary) == (ERROR, "NCCL left no log of rank 3")
    nowhere = [{**entry, "nccl": transports.parse(MULTICAST)} for entry in ranks]
    assert transport.judge(gpu_view("h100x8"), nowhere).status == ERROR
    assert transport.judge(gpu_view("h100x8"), []).status == ERROR
    assert transport.judge(gpu_view("h100x8"), entries(1, "P2P/CUMEM")).status == SKIP
    gloo = [{**entry, "is_cuda": False, "backend": "gloo", "device": "cpu"} for entry in ranks]
    assert transport.judge(cpu, gloo).status == SKIP
    assert transport.judge(gpu_view("h100x8"), gloo).status == FAIL


@each(
    "field, value",
    [
        *(("lines", value) for value in ("many", NAN)),
        *(("edges", value) for value in ({"0>1": ["by car"]}, {"0>9": ["P2P/IPC"]}, {"0>0": ["P2P/IPC"]})),
    ],
)
def test_what_no_parser_of_ours_wrote_is_no_pass(field: str, value: Any) -> None:
    ranks = entries(2, "P2P/CUMEM", RING)
    ranks[1]["nccl"][field] = value
    assert transport.judge(gpu_view("mixed"), ranks).status == ERROR


@each(
    "message, way, judged",
    [
        (SWITCH, "P2P/CUMEM", "nvls"),
        (MULTICAST + RING, "P2P/CUMEM", "nvlink"),
        (USED, "P2P/CUMEM", "nvls"),
        (f"{USED}NCCL INFO NCCL_ALGO set by environment to ring\n", "P2P/CUMEM", "nvlink"),
        # What is slower is no excuse: eight H100s over the host's memory fail NVLink's floor.
        (MULTICAST + RING, "SHM/direct/direct", "nvlink"),
    ],
)
def test_bandwidth_is_judged_by_the_link_that_is_proven(message: str, way: str, judged: str) -> None:
    assert transports.of(gpu_view("h100x8"), entries(8, way, message)).judged == judged
    # Where nothing is proven, what NVML shows is the guess.
    silent = [{**entry, "nccl": {}} for entry in entries(2, "P2P/CUMEM")]
    views = (gpu_view("h100x8"), gpu_view("mixed"), dataclasses.replace(gpu_view("cpu"), mode="cpu"))
    assert [transports.of(view, silent).judged for view in views] == ["nvls", "pcie", ""]


@each("wrong, status", [([], PASS), (["all-reduce"], FAIL), (None, ERROR), ("", ERROR)])
def test_messages_that_were_wrong_or_that_nobody_compared_are_no_pass(wrong: Any, status: str) -> None:
    ranks = entries(8, "P2P/CUMEM")
    ranks[3]["wrong"] = wrong
    outcome = transport.judge(gpu_view("h100x8"), ranks)
    assert outcome.status == status
    assert status == PASS or "rank 3" in outcome.summary


def test_multicast_that_one_rank_does_not_find_is_not_there_for_the_group() -> None:
    whole = entries(8, "P2P/CUMEM", MULTICAST + RING)
    assert transports.nvls({entry["rank"]: entry["nccl"] for entry in whole})["available"] is True
    whole[5]["nccl"]["nvls"]["available"] = False
    assert transports.nvls({entry["rank"]: entry["nccl"] for entry in whole})["available"] is False
    outcome = transport.judge(gpu_view("h100x8"), whole)
    assert (outcome.status, "NCCL finds no multicast" in outcome.summary) == (WARN, True)


@each(
    "judged, name, most",
    [
        ("nvls", "all-reduce", 700.0),  # 450 * 2 * 7 / 9
        ("nvls", "all-gather", 450.0),
        ("nvlink", "all-reduce", 450.0),
    ],
)
def test_only_what_the_switch_adds_may_pass_the_links_and_by_so_much(judged: str, name: str, most: float) -> None:
    assert transports.Links(judged, (), "nccl", 8, 450.0).ceiling(name) == pytest.approx(most)
    assert transports.Links(judged, (), "nccl", 2, 450.0).ceiling(name) == 450.0
    assert transports.Links(judged, (), "nccl", 8, None).ceiling(name) is None
