"""`envcheck resolve` as a user meets it: the answer, its exit code, and one line for whatever is wrong."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.cli.commands import resolve as this_machine
from envcheck.errors import UnavailableError
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query
from envcheck.node import collect
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from tests.tables import each

Run = Callable[..., tuple[int, str, str]]

NO_GPU = Snapshot(
    signals={
        "host.arch": Signal("x86_64"),
        "driver.version": Signal(reason="libnvidia-ml.so.1 is not there", why="failed"),
    }
)


def node(*gpus: dict[str, Signal], driver: Signal | None = None) -> Snapshot:
    signals = {"host.arch": Signal("x86_64"), "driver.version": driver or Signal("570.124.06")}
    return Snapshot(signals=signals, gpus=[Gpu(f"GPU-{at}", gpu) for at, gpu in enumerate(gpus)])


def h100() -> dict[str, Signal]:
    return {"name": Signal("NVIDIA H100 80GB HBM3"), "compute_capability": Signal("9.0")}


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(collect, "identify", lambda: NO_GPU)
    monkeypatch.setattr(this_machine, "active_python", lambda: "3.11")
    return run


def test_the_answer_comes_first_then_why(run: Run) -> None:
    code, out, _ = run("resolve", "--torch", "2.8.0", "--gpu", "H100", "--driver", "570.124.06", "--python", "3.12")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "runs: torch2.8.0-cu128-py312"
    assert lines[1] == "why: ok (the driver and the GPU are made for it, or it needs neither)"
    assert lines[2] == "  pip install torch==2.8.0 torchvision==0.23.0 torchaudio==2.8.0"
    assert out.index("Why") > out.index("pip install")
    assert "driver 570.124.06 >= 570.26" in out
    assert max(map(len, lines)) <= 80
    assert "read from this node" not in out


def test_the_pip_command_can_be_pasted(run: Run) -> None:
    ask = ("resolve", "--torch", "2.8.0", "--cuda", "cu126", "--no-here", "--mirror", "none")
    _, out, _ = run(*ask)
    command = shlex.split(out.split("\n\n")[0].replace("\\\n", " ").split("\n", 2)[2])
    assert command == [
        *("pip", "install", "torch==2.8.0+cu126", "torchvision==0.23.0", "torchaudio==2.8.0"),
        *("--index-url", "https://download.pytorch.org/whl/cu126"),
    ]
    _, out, _ = run(*ask, "--json")
    assert shlex.split(json.loads(out)["pip"]) == command


@pytest.mark.parametrize(
    ("profile", "ends"),
    [
        ("pytorch: [{url: 'https://mirror.example/whl/{variant}'}]", "--index-url https://mirror.example/whl/cu126"),
        (
            "pytorch: [{url: 'https://mirror.example/links/', kind: find-links}]",
            "--find-links https://mirror.example/links/",
        ),
        ("closed: true", ""),
    ],
)
def test_the_pip_command_names_the_index_of_the_mirror_profile(
    run: Run, tmp_path: Path, profile: str, ends: str
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"{profile}\n", encoding="utf-8")
    _, out, _ = run("resolve", "--torch", "2.8.0", "--cuda", "12.6", "--no-here", "--mirror", str(path), "--json")
    assert json.loads(out)["pip"].endswith(ends)
    assert "download.pytorch.org" not in out


def test_the_published_cell_is_the_command_that_builds_it(run: Run) -> None:
    _, out, _ = run("resolve", "--gpu", "H100", "--driver", "535.104.05")
    assert "envcheck build torch2.10.0-cu128-py313" in out
    assert "is not published; this is the best that is" in " ".join(out.split())
    _, out, _ = run("resolve", "--torch", "2.0.1", "--no-here")
    assert "none of the published cells fits" in out
    assert "envcheck build torch2.0.1-cu117-py311\n    not published: its lock is made first" in out
    _, out, _ = run("resolve", "--torch", "2.15.0", "--python", "3.15", "--no-here")
    assert "none of the published cells fits: use the pip command above" in " ".join(out.split())


def test_nothing_legal_is_exit_1_with_what_could_be_done(run: Run) -> None:
    code, out, _ = run("resolve", "--torch", "2.8.0+cu121", "--no-here")
    assert code == 1
    assert out.startswith("does not run: no combination matches\nwhy: no-wheel (there is no such wheel)")
    assert "keep cu121: torch 2.5.1" in out
    code, out, _ = run("resolve", "--with", "vllm==0.6.3", "--gpu", "L4", "--no-here")
    assert (code, out[:10], "on record are vllm 0.16.0 - " in out) == (1, "not known:", True)


def test_an_offer_of_torch_alone_says_so(run: Run) -> None:
    code, out, _ = run("resolve", "--no-here", "--with", "flash-attn", "--gpu", "RTX 5080", "--driver", "566.36")
    offers = [line for line in out.partition("Or\n")[2].partition("Note")[0].splitlines() if line.startswith("  - ")]
    assert (code, len(offers)) == (1, 4)
    assert all(line.endswith(" (without flash-attn)") for line in offers)


def test_a_verdict_is_told_in_plain_words_where_it_is_new(run: Run) -> None:
    _, out, _ = run("resolve", "--torch", "2.8.0", "--gpu", "H100", "--driver", "470.57.02", "--no-here", "--all")
    plain = "driver-ok-via-minor-compat: an older driver of the same CUDA major runs it"
    assert f"({plain})" in " ".join(out.split())
    assert "torch2.8.0-cu128-py313 (ok)\n" in out
    assert out.endswith("\nVerdicts\n  - driver-too-old: it needs a newer driver\n")
    _, out, _ = run("resolve", "--torch", "2.15.0", "--cuda", "cpu", "--no-here")
    assert "not confirmed by a second source (verified: false): the x86_64 wheels" in " ".join(out.split())


def test_all_that_is_wrong_is_told_at_once(run: Run) -> None:
    words = ("--gpu", "H10", "--gpu", "H10x", "--driver", "abc", "--python", "9", "--cuda", "xx", "--torch", "x.y")
    code, out, err = run("resolve", "--no-here", *words)
    first, *lines = err.splitlines()
    assert (code, out, first) == (2, "", "envcheck: 6 inputs are wrong:")
    told = (
        "--cuda 'xx' is",
        "--python 9 is",
        "--driver abc is",
        "no GPU named 'H10'",
        "no GPU named 'H10x'",
        "--torch",
    )
    assert [line.startswith(f"  {start}") for line, start in zip(lines, told, strict=True)] == [True] * 6
    assert all("; " in line for line in lines)


def test_the_number_of_gpus_changes_nothing(run: Run) -> None:
    plain = run("resolve", "--gpu", "A100", "--driver", "550.54.14")
    assert run("resolve", "--gpu", "A100", "--gpus", "4", "--driver", "550.54.14") == plain
    assert run("resolve", "--gpu", "4xA100", "--driver", "550.54.14")[0] == 0


@each(
    ("name", "gpus"),
    [
        ("RTX 4090, H100", ["RTX 4090", "H100"]),
        ("NVIDIA A100-SXM4-80GB, 81920 MiB, 550.54.15", ["NVIDIA A100-SXM4-80GB, 81920 MiB, 550.54.15"]),
        ("NVIDIA GeForce\nRTX\u2122 4090", ["NVIDIA GeForce RTX 4090"]),
        ("NVIDIA H100\n80GB HBM3\n", ["NVIDIA H100 80GB HBM3"]),
        ("NVIDIA L4\nRTX 4090, H100", ["NVIDIA L4", "RTX 4090", "H100"]),
        ("GH100 [NVIDIA H100]\nAD102 [NVIDIA RTX 4090]", ["GH100 [NVIDIA H100]", "AD102 [NVIDIA RTX 4090]"]),
    ],
)
def test_a_list_of_gpus_is_taken_apart(run: Run, name: str, gpus: list[str]) -> None:
    code, out, _ = run("resolve", "--gpu", name, "--json")
    assert (code, json.loads(out)["wanted"]["gpus"]) == (0, gpus)


def test_a_machine_without_a_gpu_gets_the_cpu_variant_and_is_told(run: Run) -> None:
    code, out, _ = run("resolve", "--torch", "2.13.0")
    assert code == 0
    assert out.startswith("runs: torch2.13.0-cpu-py311\nwhy: ok")
    assert "no NVIDIA GPU on this node" in out
    assert "read from this node: python 3.11" in out


def test_a_gpu_node_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "identify", lambda: node(h100(), h100()))
    code, out, _ = run("resolve", "--torch", "2.8", "--json")
    answer = json.loads(out)
    assert (code, answer["cell"]) == (0, "torch2.8.0-cu128-py311")
    assert answer["wanted"]["gpus"] == ["NVIDIA H100 80GB HBM3"]
    assert answer["read_here"]["driver"] == "570.124.06"


def test_another_machine_is_asked_about_without_this_nodes_facts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "identify", lambda: node(h100()))
    _, out, _ = run("resolve", "--gpu", "V100", "--json")
    assert json.loads(out)["read_here"] == {}
    _, out, _ = run("resolve", "--gpu", "V100", "--here", "--json")
    answer = json.loads(out)
    assert answer["wanted"]["gpus"] == ["V100"]
    assert answer["read_here"] == {"python": "3.11", "driver": "570.124.06"}


Filled = Callable[..., tuple[Query, dict[str, str], list[str]]]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filled:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lambda snapshot, **axes: this_machine.fill(load(), Query(**axes), snapshot, "3.12")


def test_an_unknown_name_is_resolved_by_its_capability(fill: Filled) -> None:
    gpu = {"name": Signal("NVIDIA X10"), "compute_capability": Signal("8.6")}
    query, _, _ = fill(node(gpu))
    assert (query.cc, query.gpus) == (["8.6"], [])


@each(
    ("snapshot", "says"),
    [
        (
            node(h100(), driver=Signal(reason="no answer in 2 s", why="timed-out")),
            "driver version could not be read: no answer in 2 s",
        ),
        (node({"name": Signal(reason="Unknown Error", why="failed")}), "GPU GPU-0 cannot be identified: not collected"),
        (
            node({"name": Signal(""), "compute_capability": Signal(reason="lost", why="failed")}),
            "cannot be identified: lost",
        ),
    ],
)
def test_a_gpu_that_cannot_be_read_is_never_left_free(fill: Filled, snapshot: Snapshot, says: str) -> None:
    with pytest.raises(UnavailableError, match=says):
        fill(snapshot)


def test_a_driver_without_a_gpu_is_said(fill: Filled) -> None:
    query, _, notes = fill(node())
    assert query.variant == "cpu"
    assert "driver 570.124.06 is loaded, but NVML lists no GPU" in notes[0]


def test_what_was_asked_for_is_kept(fill: Filled) -> None:
    query, _, notes = fill(NO_GPU, variant="cu128", python="3.13")
    assert (query.variant, query.python) == ("cu128", "3.13")
    assert "left free" in notes[0]


def make(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_active_python(tmp_path: Path) -> None:
    make(tmp_path / "path" / "python3.10")
    (tmp_path / "path" / "python3").symlink_to("python3.10")
    path = {"PATH": str(tmp_path / "path")}
    assert this_machine.active_python(path) == "3.10"
    make(tmp_path / "venv" / "pyvenv.cfg", "home = /usr/bin\nversion = 3.12.4\n")
    make(tmp_path / "venv" / "bin" / "python")
    assert this_machine.active_python({**path, "VIRTUAL_ENV": str(tmp_path / "venv")}) == "3.12"
    make(tmp_path / "free" / "bin" / "python3.13t")
    (tmp_path / "free" / "bin" / "python").symlink_to("python3.13t")
    assert this_machine.active_python({**path, "CONDA_PREFIX": str(tmp_path / "free")}) == "3.13t"
    make(tmp_path / "shim" / "bin" / "python", "#!/bin/sh\necho python3.9t\n")
    assert this_machine.active_python({**path, "VIRTUAL_ENV": str(tmp_path / "shim")}) == "3.9t"
    make(tmp_path / "shim" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    own = f"3.{sys.version_info.minor}"
    assert this_machine.active_python({**path, "VIRTUAL_ENV": str(tmp_path / "shim")}) == own
    assert this_machine.active_python({"PATH": ""}) == own
