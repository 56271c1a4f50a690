"""Rendered files are pure, complete, and hold nothing they must not."""

import _ctypes
import re
import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path

import msgspec
import pytest

from envcheck.data import data_path
from envcheck.images.dockerfile import (
    drift,
    labels,
    remove_orphans,
    render_cells,
    render_dockerfile,
)
from envcheck.images.formats import bake_of_checkout
from envcheck.images.lockfile import Lock
from envcheck.images.spec import ImageSpec, load_specs, make_spec
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.file.load import load
from tests.processes import ran
from tests.tables import each

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")
# What no rendered file may hold.
FORBIDDEN = (
    *(r"--extra-index-url", "://", r"(?m)^\s*ADD\s", r"(?i)#\s*syntax\s*=", r"(?m)^FROM [^$\s]*:latest"),
    r"(?im)^\s*(ARG|ENV)\s.*(token|password|secret|netrc|index|proxy)",
    *(r"chown\s+-R", r"mirror\.example|[0-9]{4}-[0-9]{2}-[0-9]{2}"),
)


@pytest.fixture
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, CELL, locks)


def offences(text: str) -> list[str]:
    return [pattern for pattern in FORBIDDEN if re.search(pattern, text)]


def test_committed_images_are_what_rendering_gives_no_more_and_no_less() -> None:
    facts = load()
    archs = [(cell, arch) for cell in facts.cells() for arch in facts.archs(cell)]
    specs = [spec for cell, arch in archs for spec in load_specs(facts, cell, arch=arch)]
    locked = [spec for spec in specs if spec.locks]
    files = {**render_cells(locked), "bake.json": bake_of_checkout(locked).encode()}
    assert drift(data_path("images"), files) == []


def test_the_lint_catches_what_it_is_for() -> None:
    lines = ["RUN x --extra-index-url y", "RUN x https://mirror.example/s", "ADD a b", "# syntax=docker/dockerfile:1"]
    lines += ["FROM debian:latest AS os", "ARG HF_TOKEN", "RUN chown -R 1 /o", "# written 2026-11-21"]
    assert {*offences("\n".join(lines))} == {*FORBIDDEN}
    assert [line for line in lines if not offences(line)] == []


def test_committed_images_name_no_url_no_mirror_no_date_and_no_secret() -> None:
    files = [path for path in data_path("images").rglob("*") if path.is_file()]
    assert {str(path): offences(path.read_text()) for path in files if offences(path.read_text())} == {}


def test_layers_are_ordered_by_how_rarely_they_change_and_labels_come_last(spec: ImageSpec) -> None:
    text = render_dockerfile(spec)
    steps = ["os.sh", "install.sh nvidia", "install.sh torch", "install.sh base", "install.sh envcheck", "LABEL"]
    actual = [text.index(step) for step in steps]
    assert actual == sorted(actual)
    assert not re.search(r"(?m)^(RUN|COPY|ENV)", text[text.index("LABEL") :])


def test_the_torch_is_proven_inside_the_run_that_completes_it(spec: ImageSpec) -> None:
    runs = re.findall(r"(?m)^RUN (?:.*\\\n)*.*$", render_dockerfile(spec))
    last = next(run for run in runs if "install.sh base" in run)
    proof = "prove.py torch=2.8.0+cu128 cuda=12.8 cudnn=9.10.2 nccl=2.27.3 python=3.11 'arch-list=sm_80 sm_90'"
    assert f"{proof} 'fabric=libibverbs.so.1 libmlx5.so.1'" in last


def test_only_cuda_cells_hold_the_rdma_libraries(spec: ImageSpec, matrix: Matrix) -> None:
    assert "os.sh ca-certificates ibverbs-providers libibverbs1 python3 " in render_dockerfile(spec)
    cpu = make_spec(matrix, Cell(torch="2.8.0", variant="cpu", python="3.11"), [])
    text = render_dockerfile(msgspec.structs.replace(cpu, locks=spec.locks))
    assert ("verbs" in text, "fabric=" in text.partition("LABEL ")[0]) == (False, False)


def test_the_fabric_is_proven_by_what_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = runpy.run_path(str(data_path("templates") / "context/prove/prove.py"))
    fabric = prove["fabric"]
    monkeypatch.setitem(fabric.__globals__, "PROVIDERS", f"{tmp_path}/*-rdmav*.so")
    assert fabric("libc.so.6 libm.so.6") == "libc.so.6 libm.so.6 without a provider"
    (tmp_path / "libmlx5-rdmav34.so").write_bytes(b"cut off")
    assert fabric("libc.so.6").endswith("without a provider")
    (tmp_path / "libefa-rdmav34.so").symlink_to(_ctypes.__file__)
    assert fabric("libc.so.6 libm.so.6") == "libc.so.6 libm.so.6"
    assert fabric("libc.so.6 libnot-there.so.1") == "libc.so.6"
    assert fabric("libnot-there.so.1") == "none"


def test_every_promise_is_a_label(spec: ImageSpec) -> None:
    written = dict(re.findall(r'([\w.-]+)="([^"]*)"', render_dockerfile(spec).partition("LABEL ")[2]))
    assert {f"envcheck.{name}": value for name, value in spec.promises.items()}.items() <= written.items()
    assert labels(spec).items() <= written.items()


def test_a_kept_value_reaches_the_image_as_it_is(spec: ImageSpec) -> None:
    text = render_dockerfile(spec, kept={"HF_ENDPOINT": 'https://hf.example/$x"y'})
    assert 'ENV HF_ENDPOINT="https://hf.example/\\$x\\"y"\n' in text


def test_files_that_rendering_never_gave_stay_whatever_directory_was_named(spec: ImageSpec, tmp_path: Path) -> None:
    mine = ["notes.txt", ".ssh/key", "thesis/chapter/one.tex", "my-own/Dockerfile", "my-own/base.lock", "empty/keep/x"]
    mine += [f"{CELL}/notes.txt", "torch1.0.0-cpu-py39/train.py", "torchvision/Dockerfile"]
    for path in mine:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "empty/keep/x").unlink()
    (tmp_path / "torch1.0.0-cpu-py39/nvidia.lock").touch()
    assert remove_orphans(tmp_path, render_cells([spec])) == ["torch1.0.0-cpu-py39/nvidia.lock"]
    assert {path for path in mine if (tmp_path / path).exists()} == {*mine} - {"empty/keep/x"}
    assert (tmp_path / "empty/keep").is_dir()
    assert {d.path for d in drift(tmp_path, render_cells([spec])) if d.kind == "orphan"} == {*mine} - {"empty/keep/x"}


def test_hadolint_finds_nothing(spec: ImageSpec, tmp_path: Path) -> None:
    kept = tmp_path / "Dockerfile"
    kept.write_text(render_dockerfile(spec, kept={"HF_ENDPOINT": "https://hf.example"}))
    tool = Path(sysconfig.get_path("scripts")) / "hadolint"
    completed = ran([tool, "--no-color", *sorted(data_path("images").glob("*/Dockerfile")), kept])
    assert (completed.returncode, completed.stdout) == (0, "")


@each("script", (data_path("templates") / "context").rglob("*.sh"))
def test_scripts_are_posix_sh(script: Path) -> None:
    subprocess.run([shutil.which("dash") or "sh", "-n", script], check=True)


def test_targets_of_a_cell_share_one_dockerfile_and_the_layers_of_torch() -> None:
    facts = load()
    cell = Cell(torch="2.13.0", variant="cpu", python="3.11")
    text = render_dockerfile(*load_specs(facts, cell))
    stages = re.findall(r"(?m)^FROM (\S+) AS (\S+)$", text)
    assert stages[:5] == [
        *(("scratch", n) for n in ("wheels", "mirror")),
        ("${BASE}", "os"),
        *(("os", n) for n in ("uv", "installed")),
    ]
    assert stages[5:] == [("installed", name) for name in ("devel", "train", "jupyter", "runtime")]
    assert text.count("install.sh torch") == 1
    for spec in load_specs(facts, cell):
        stage = re.search(rf"(?ms)^FROM installed AS {spec.target}$.*?(?=^FROM|\Z)", text)
        assert stage is not None
        assert f'envcheck.target="{spec.target}"' in stage[0]
        assert f"source=images/{cell}/{spec.target}.json" in stage[0]
        assert "USER 1000:1000\n" in stage[0]


def test_all_that_a_committed_dockerfile_mounts_is_in_a_clone() -> None:
    root, missing = data_path("images").parent, set()
    let_in = {line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for file in data_path("images").glob("*/Dockerfile"):
        text = file.read_text()
        for mount in re.findall(r"--mount=type=bind,(\S+)", text):
            options = dict(part.split("=", 1) for part in mount.split(","))
            source, stage = options.get("source", ""), options.get("from")
            if stage is None:
                there = (root / source).exists() and source.partition("/")[0] in let_in
            else:
                there = f" AS {stage}\n" in text and (stage != "mirror" or f"\nWORKDIR /{source}\n" in text)
            missing |= set() if there else {f"{file}: {mount}"}
    assert missing == set()


def test_a_build_of_envcheck_uses_the_same_file_with_two_stages_in_its_context(spec: ImageSpec) -> None:
    own, committed = render_dockerfile(spec, carried=True), render_dockerfile(spec)
    assert not {"mirror", "uv"} & set(re.findall(r" AS (\S+)", own))
    for stage, place in {"from=mirror,source=": "source=mirror/", "from=uv,source=uv": "source=bin/uv"}.items():
        committed = committed.replace(stage, place)
    committed = re.sub(r"(?ms)^# (?:Empty too|By the hash).*?\n\n", "", committed)
    assert committed.splitlines()[2:] == own.splitlines()[2:]


def test_devel_has_a_cuda_home_where_the_wheel_has_cuda_and_no_other_target_has() -> None:
    facts = load()
    text = render_dockerfile(*load_specs(facts, Cell(torch="2.14.1", variant="cu130", python="3.11")))
    devel = text.partition(" AS devel\n")[2].partition("\nFROM ")[0]
    assert "/opt/venv/lib/python3.11/site-packages /usr/local/cuda 13.0\n" in devel
    assert "CUDA_HOME=/usr/local/cuda" in devel
    assert text.count("CUDA_HOME") == 1
    assert "CUDA_HOME" not in render_dockerfile(*load_specs(facts, Cell(torch="2.13.0", variant="cpu", python="3.11")))
