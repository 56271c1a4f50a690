"""`envcheck matrix` as a user meets it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
SHIPPED = Path(__file__).parents[2] / "matrix.yaml"


def test_show_one_release(run: Run) -> None:
    code, out, _ = run("matrix", "show", "--torch", "2.8.0")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:5]] == ["cu129", "cu128", "cu126", "cpu"]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("args", [("--torch", "9"), ("--python", "3.99"), ("--torch", "2.8", "--cuda", "cu132")])
def test_show_says_when_no_row_is_left(run: Run, args: tuple[str, ...]) -> None:
    code, out, err = run("matrix", "show", *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"envcheck: no row of the matrix meets {' '.join(args)}; ask for less")
    assert err.count("\n") == 1
    code, out, _ = run("matrix", "show", *args, "--json")
    assert (code, json.loads(out)) == (2, [])


def test_a_list_of_gpus_says_the_driver_of_each_whole_and_pads_nothing(run: Run) -> None:
    _, out, _ = run("matrix", "show", "--list-gpus")
    rows = [line.split() for line in out.splitlines()]
    assert ["520.56.06", "9.0", "x86_64", "yes", "H100"] in rows
    assert "…" not in out
    for shown in (out, run("images", "torch2.8.0-*")[1], run("resolve", "--torch", "2.8", "--no-here", "--all")[1]):
        assert not [line for line in shown.splitlines() if line != line.rstrip() or len(line) > 80]


def test_show_takes_what_resolve_takes(run: Run) -> None:
    _, arm, _ = run("matrix", "show", "--torch", "2.13.0", "--arch", "arm64")
    assert arm == run("matrix", "show", "--torch", "2.13.0", "--arch", "aarch64")[1]
    assert "* what the default Python index has" in arm.splitlines()


def test_check_passes_on_what_is_shipped(run: Run) -> None:
    code, out, _ = run("matrix", "check")
    assert (code, out) == (
        0,
        "nothing wrong with 29 torch releases, 31 GPUs, 27 driver branches\n",
    )


def test_check_finds_and_exits_1(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "matrix.yaml"
    broken.write_text(SHIPPED.read_text().replace('floor: "525.60.13"', 'floor: "425.60.13"'))
    code, out, _ = run("--matrix", str(broken), "matrix", "check")
    assert code == 1
    assert "CUDA 12.x: floor 425.60.13 is not above 450.80.02 of 11.x" in out
    code, out, _ = run("--matrix", str(broken), "matrix", "check", "--json")
    assert code == 1
    assert json.loads(out)[0]["where"] == "CUDA 12.x"
