"""What the resolver promises beyond single facts: ranking, mixed nodes, alternatives, doubt, form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from envcheck.errors import ConfigError
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.query import normalized
from envcheck.matrix.resolver.resolve import Query, Resolution, resolve
from envcheck.matrix.resolver.verdict import runs_on
from tests.tables import beside, each

Ask = Callable[..., Resolution]
CASES = beside(__file__)


def test_the_json_form(ask: Ask) -> None:
    plain = msgspec.to_builtins(ask(torch="2.8.0", gpus=["H100"], driver="550.54.14", python="3.12", variant="cu128"))
    assert list(plain)[:7] == ["schema", "wanted", "verdict", "cell", "reasons", "alternatives", "verified"]
    assert plain["schema"] == "envcheck/resolution/1"
    assert plain["cell"] == "torch2.8.0-cu128-py312"
    assert plain["wanted"] == {
        "torch": "2.8.0", "variant": "cu128", "cuda": None, "python": "3.12", "driver": "550.54.14",
        "gpus": ["H100"], "cc": [], "arch": None,
    }  # fmt: skip
    assert [set(row) for row in plain["alternatives"]] == [{"cell", "change", "verdict"}] * len(plain["alternatives"])
    assert plain["verified"] is True


@each(
    ("gpus", "driver", "says"),
    [
        (["T4", "RTX 5090"], "580.95.05", ["runs on T4", "runs on RTX 5090", "driver 580.95.05"]),
        (["A100", "H100"], "535.54.03", ["runs on A100", "runs on H100", "minor-version compatibility"]),
        (["T4", "K80"], None, ["branches after R470 dropped K80", "runs on T4", "runs on K80", "the last R470"]),
    ],
)
def test_the_reasons_name_every_gpu_and_the_driver_once_and_last(
    ask: Ask, gpus: list[str], driver: str | None, says: list[str]
) -> None:
    reasons = ask(gpus=gpus, driver=driver).reasons
    assert [part in reason for part, reason in zip(says, reasons, strict=True)] == [True] * len(says), reasons


def test_an_orin_is_told_of_the_jetpack_that_takes_wheels(ask: Ask) -> None:
    # isl-org/Open3D#7484, roboflow/inference#2531
    assert "JetPack 7.2 or newer" in ask(gpus=["Jetson Orin NX"]).reasons[0]
    assert ask(cc=["8.7"], arch="aarch64", variant="cu132").legal
    assert not ask(cc=["8.7"], arch="aarch64", variant="cu130").legal


def test_an_old_gpu_needs_a_cudnn_with_code_for_it(ask: Ask) -> None:
    # NVIDIA's support matrix of cuDNN 9 begins with 5.0; on a K80 cuDNN 8.7 works (dailenson/SDT#25).
    assert ask(gpus=["K80"]).cell == "torch2.3.1-cu118-py312"
    newer = ask(gpus=["K80"], torch="2.7.1", variant="cu118")
    assert newer.verdict == "arch-not-in-wheel"
    assert newer.reasons == ["its cuDNN 9.1.0.70 has no code for K80 (compute capability 3.7): convolutions fail there"]


def test_a_gpu_of_another_maker_beside_one_of_nvidia_is_left_alone(ask: Ask) -> None:
    both = ask(gpus=["RTX 4090", "Intel UHD Graphics 770"])
    assert (both.verdict, both.cell) == ("ok", ask(gpus=["RTX 4090"]).cell)
    assert "Intel UHD Graphics 770 is an Intel GPU: CUDA wheels leave it alone" in both.notes
    assert ask(gpus=["RX 7900 XTX"], variant="cpu", torch="2.8").verdict == "ok"


@each(
    "gpus, axes, arch",
    [
        (["Jetson AGX Orin"], {"cc": ["8.7"]}, "aarch64"),
        (["Xavier"], {"cc": ["7.2"]}, "aarch64"),
        (["Jetson AGX Orin"], {"variant": "cpu"}, "aarch64"),
        (["Apple M2"], {"variant": "cpu"}, "aarch64"),
        (["Apple M2", "MI300X"], {"variant": "cpu"}, "x86_64"),
        (["Apple M2"], {"variant": "cpu", "arch": "x86_64"}, "x86_64"),
    ],
)
def test_an_accelerator_by_name_says_in_which_host_it_is(
    ask: Ask, gpus: list[str], axes: dict[str, object], arch: str
) -> None:
    answer = ask(gpus=gpus, **axes)
    assert answer.arch == arch
    assert any("JetPack" in note for note in answer.notes) == ("cc" in axes)


def test_newest_torch_first_then_native_then_pypis_own(ask: Ask) -> None:
    resolution = ask(gpus=["H100"], driver="570.124.06", torch=">=2.7,<2.9", python="3.12")
    assert [row.cell for row in resolution.ranked] == [
        "torch2.8.0-cu128-py312",  # native, and PyPI's own
        "torch2.8.0-cu126-py312",  # native
        "torch2.8.0-cu129-py312",  # minor-version compatibility
        "torch2.7.1-cu126-py312",
        "torch2.7.1-cu128-py312",
        "torch2.7.1-cu118-py312",
        "torch2.7.0-cu126-py312",
        "torch2.7.0-cu128-py312",
        "torch2.7.0-cu118-py312",
    ]


@each("gpu", ["A100", "H100", "L40S", "T4", "GH200"])
def test_what_runs_as_it_is_comes_before_what_needs_a_package(ask: Ask, gpu: str) -> None:
    resolution = ask(gpus=[gpu], driver="570.124.06")
    verdicts = [row.verdict for row in resolution.ranked]
    assert resolution.verdict in ("ok", "driver-ok-via-minor-compat")
    first = verdicts.index("forward-compat-required")
    assert set(verdicts[first:]) == {"forward-compat-required"}
    offer = {row.change: row.verdict for row in resolution.alternatives}
    assert offer["keep the driver, with cuda-compat: torch 2.15.0 with cu132"] == "forward-compat-required"


@each(
    ("requirement", "newest"),
    [
        ("2.8", "2.8.0"),
        ("2.7", "2.7.1"),
        ("2.7.*", "2.7.1"),
        ("2.7.0", "2.7.0"),
        (">=2.6,<2.9", "2.8.0"),
        ("torch==2.8.0", "2.8.0"),
        ("~=2.9.0", "2.9.1"),
    ],
)
def test_torch_is_a_pep_440_requirement(ask: Ask, requirement: str, newest: str) -> None:
    assert str(ask(torch=requirement).cell).startswith(f"torch{newest}-")


def test_a_mixed_node_needs_what_runs_on_all_and_names_the_culprit(ask: Ask) -> None:
    both = ask(gpus=["H100", "V100"], driver="570.124.06", torch="2.13.0", variant="cu130")
    assert both.verdict == "arch-not-in-wheel"
    assert "V100" in both.reasons[0]
    assert "H100" not in both.reasons[0]
    without = [row for row in both.alternatives if row.change == "without the V100"]
    assert [row.cell.rpartition("-")[0] for row in without] == ["torch2.13.0-cu130"]
    assert "cu126" in str(ask(gpus=["H100", "V100"], driver="570.124.06", torch="2.13.0").cell)


def test_the_cpu_variant_runs_under_any_driver_and_none(ask: Ask) -> None:
    for driver in (None, "390.157", "595.45.04"):
        resolution = ask(torch="2.8.0", variant="cpu", driver=driver)
        assert (resolution.verdict, resolution.index) == ("ok", "whl/cpu")


def test_a_gpu_is_never_answered_with_the_cpu_variant(ask: Ask) -> None:
    resolution = ask(gpus=["V100"], driver="590.44.01")
    assert resolution.verdict == "gpu-dropped-by-driver"
    assert not resolution.ranked
    changes = {row.change: row.cell for row in resolution.alternatives}
    assert "cpu" in changes["without the GPU: cpu"]
    assert "keep cu126: driver 580.65.06" in changes


def test_nearest_alternatives_per_axis(ask: Ask) -> None:
    resolution = ask(torch="2.8.0", variant="cu128", gpus=["RTX 4090"], driver="470.256.02")
    assert resolution.verdict == "driver-too-old"
    changes = [row.change for row in resolution.alternatives]
    assert "keep cu128: driver >= 525.78.01" in changes  # the first R525 that drives it, above the family's floor
    resolution = ask(torch="2.8.0", variant="cu128", gpus=["A100"], driver="460.32.03")
    assert "keep cu128: driver >= 525.60.13" in [row.change for row in resolution.alternatives]
    resolution = ask(torch="2.8.0", gpus=["H100"], driver="570.124.06", python="3.14")
    assert resolution.verdict == "python-unsupported"
    assert "keep torch 2.8.0+cu128: Python 3.13" in [row.change for row in resolution.alternatives]


def test_ptx_counts_only_under_a_driver_that_can_compile_it(ask: Ask) -> None:
    axes = {"cc": ["13.0"], "torch": "2.8.0", "variant": "cu129"}  # the only code for it is 12.0+PTX
    assert ask(driver="575.51.03", **axes).verdict == "ok"
    older = ask(driver="575.51.02", **axes)
    assert older.verdict == "driver-too-old"
    assert "only PTX fits" in older.reasons[0]


@each(("axes", "verified"), CASES["verified"])
def test_an_answer_on_a_weak_fact_says_so(ask: Ask, axes: dict[str, object], verified: bool) -> None:  # noqa: FBT001
    assert ask(**axes).verified is verified


@each(("axes", "message"), CASES["nonsense"])
def test_nonsense_is_refused_in_one_line(ask: Ask, axes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A.*{message}.*\Z"):
        ask(**axes)


@each(("axes", "reason", "change"), CASES["no-variant"])
def test_a_variant_that_no_torch_was_built_for_is_an_answer(
    ask: Ask, axes: dict[str, object], reason: str, change: str
) -> None:
    resolution = ask(**axes)
    assert (resolution.verdict, resolution.cell, resolution.legal) == ("no-wheel", None, False)
    assert re.search(reason, resolution.reasons[0])
    assert [row.change for row in resolution.alternatives][:1] == [change]


def test_an_old_cuda_leaves_the_gpu_s_newest_torch_among_the_alternatives(ask: Ask) -> None:
    changes = [row.change for row in ask(gpus=["V100"], variant="cu113").alternatives]
    assert changes[0] == "keep CUDA 11.x: torch 2.7.1 with cu118"
    assert "keep the machine: torch 2.14.1 with cu126" in changes


@each("name", ["AMD Instinct MI300X", "Intel Arc A770", "Apple M2", "Jetson AGX Orin"])
def test_an_accelerator_of_another_kind_is_answered_as_what_it_is(ask: Ask, name: str) -> None:
    resolution = ask(gpus=[name])
    assert (resolution.verdict, resolution.legal) == ("no-wheel", False)
    assert resolution.reasons[0].startswith(f"{name} is a")
    assert [(row.change, row.verdict) for row in resolution.alternatives] == [("without the GPU: cpu", "ok")]


def test_the_best_published_cell_is_named(ask: Ask, matrix: Matrix) -> None:
    published = {str(cell) for cell in matrix.cells()}
    for axes in ({"driver": "535.104.05", "gpus": ["H100"]}, {"variant": "cpu"}, {"gpus": ["RTX 4090"]}):
        resolution = ask(**axes)
        legal = [row.cell for row in resolution.ranked if row.cell in published]
        assert resolution.published == legal[0]
    assert ask(torch="2.0.1").published is None


def test_a_python_that_was_only_read_does_not_bind_the_published_cell(matrix: Matrix) -> None:
    query = Query(variant="cpu", python="3.14")
    assert resolve(matrix, query).published is None
    assert resolve(matrix, query, read_here={"python": "3.14"}).published in {str(c) for c in matrix.cells()}


def test_words_as_people_write_them() -> None:
    meant = normalized(Query(torch="2.8.0+cu121", python="3.12.4", cuda="12.1.1"))
    assert (meant.torch, meant.variant, meant.python, meant.cuda) == ("2.8.0", "cu121", "3.12", "12.1")
    with pytest.raises(ConfigError, match=r"\+cu121, --cuda says cu128"):
        normalized(Query(torch="2.8.0+cu121", variant="cu128"))


@each(("asked", "meant"), CASES["as people have them"])
def test_a_wheel_s_cuda_and_a_line_of_nvidia_smi(asked: dict[str, Any], meant: dict[str, Any]) -> None:
    assert normalized(Query(**asked)) == Query(**meant)


def test_a_first_driver_that_is_inferred_warns_and_never_refuses(ask: Ask) -> None:
    shipped = ask(gpus=["GB10"], driver="580.95.05")
    assert shipped.verdict == "driver-ok-via-minor-compat"
    earlier = ask(gpus=["GB10"], driver="580.82.09")
    assert (earlier.verdict, earlier.weak) == (shipped.verdict, ["the first driver for GB10"])
    assert any("< 580.95.05" in reason and "inferred" in reason for reason in earlier.reasons)
    assert ask(gpus=["GB10"], driver="570.26").verdict == "driver-too-old"
    assert ask(gpus=["NVIDIA Thor"], driver="580.00").legal


def test_a_branch_is_the_first_of_its_drivers_that_drives_the_gpu(ask: Ask) -> None:
    for gpu, driver in (("H100", "570"), ("L40S", "535"), ("B200", "570")):
        assert ask(gpus=[gpu], driver=driver).legal, gpu
    assert not ask(gpus=["B200"], driver="535").legal


def test_a_driver_of_windows_is_of_the_branch_within_which_it_counts_on(ask: Ask) -> None:
    # As WSL's nvidia-smi prints it: "NVIDIA-SMI 570.86.16  Driver Version: 572.16  CUDA Version: 12.8".
    for gpu, driver, legal in (
        ("RTX 5090", "572.16", True),
        ("RTX 4070", "555.99", True),
        ("RTX 5090", "566.36", False),
        ("GTX 1080", "581.29", True),
        ("GTX 1080", "591.44", False),
    ):
        assert ask(gpus=[gpu], driver=driver).legal is legal, (gpu, driver)


def test_new_drivers_are_known(ask: Ask) -> None:
    assert ask(driver="620").query.driver == "620.0"
    for driver in ("615.71.10", "620.70.06"):
        resolution = ask(driver=driver, gpus=["H100"])
        assert (resolution.verdict, resolution.verified) == ("ok", True)


def test_a_nightly_is_answered_with_the_release_and_its_index(ask: Ask) -> None:
    for torch, wish in (("nightly", "torch "), ("2.16.0.dev20261120", "torch==2.16.0.dev20261120 ")):
        (note,) = (note for note in ask(torch=torch, variant="cu130").notes if "nightly" in note)
        assert f"pip install --pre {wish}--index-url https://download.pytorch.org/whl/nightly/cu130" in note


@each("axes", CASES["as it is"])
def test_what_runs_on_the_node_as_it_is_stands_among_the_alternatives(ask: Ask, axes: dict[str, Any]) -> None:
    offers = ask(**axes).alternatives
    as_it_is = {"ok", "driver-ok-via-minor-compat"}
    assert any(
        each.verdict in as_it_is and "driver >=" not in each.change and "cpu" not in each.cell for each in offers
    )


@each(("gpu", "driver", "verdict"), CASES["drivers"])
def test_the_first_driver_of_each_branch_that_knows_the_gpu(ask: Ask, gpu: str, driver: str, verdict: str) -> None:
    variant = "cu128" if gpu == "GB200" else "cu118"
    torch = "2.9.1" if gpu == "GB200" else "2.6.0"
    assert ask(torch=torch, variant=variant, gpus=[gpu], driver=driver).verdict == verdict


@each(("axes", "note"), CASES["notes"])
def test_what_is_left_open_or_taken_for_granted_is_said(ask: Ask, axes: dict[str, object], note: str) -> None:
    assert any(message.endswith(note) for message in ask(**axes).notes)


@each(("base", "driver", "gpu", "says"), CASES["bases of nvidia"])
def test_what_an_nvidia_base_would_refuse(matrix: Matrix, base: str, driver: str, gpu: str, says: str) -> None:
    resolution = resolve(matrix, Query(driver=driver, gpus=[gpu]), base_cuda=base)
    assert says in resolution.notes[-1]


@each(("sass", "ptx", "cc", "cuda", "runs"), CASES["devices"])
def test_which_code_runs_on_which_device(matrix: Matrix, sass: Any, ptx: Any, cc: str, cuda: str, runs: Any) -> None:
    assert runs_on(matrix, sass, ptx, cc, cuda) is runs
