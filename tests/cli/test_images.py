"""`envcheck images`, `lock` and `render`: what they print, where they stop, how they end."""

import errno
import json
import os
import re
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.data import data_path
from envcheck.errors import ConfigError, NothingLegalError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images.lockfile import Lock, Pin, read_locks
from envcheck.images.spec import load_spec
from envcheck.images.targets import SHARED_GROUPS
from envcheck.matrix.facts.model import Cell, HostArch
from envcheck.matrix.file.load import load
from envcheck.node import collect
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from tests.tables import each

CELL = "torch2.13.0-cpu-py311"
OTHER = "torch2.13.0-cu130-py311"
GRACE = "torch2.14.1-cu130-py312"
Run = Callable[..., Result]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / CELL).mkdir()
    for path in (data_path("images") / CELL).glob("*.lock"):
        (tmp_path / CELL / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture
def run(images: Path) -> Run:
    def call(command: str, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [command, "--images", str(images), *arguments])

    return call


def test_cells_without_a_lock_are_named_with_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Signal(reason="no library", why="failed")
    monkeypatch.setattr(collect, "identify", lambda: Snapshot("", {"driver.version": reason}))
    shown = run("images", "torch2.13.0-*py311")
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert lines[1].split() == [CELL, "yes", "runs", "none", "runtime", "devel", "train", "jupyter"]
    assert lines[2].split()[:2] == ["torch2.13.0-cu130-py311", "NO"]
    assert "  torch2.13.0-cu130-py311: run `envcheck lock torch2.13.0-cu130-py311` where" in shown.output
    assert max(len(line) for line in lines[:-1]) <= 80


def test_nothing_runs_on_a_gpu_that_is_older_than_all_on_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("GPU-0", {"name": Signal("Tesla K40m"), "compute_capability": Signal("3.5")})
    node = Snapshot("", {"driver.version": Signal("470.256.02")}, [gpu])
    monkeypatch.setattr(collect, "identify", lambda: node)
    shown = run("images", CELL)
    assert (shown.exit_code, shown.output.splitlines()[1].split()[:3]) == (0, [CELL, "yes", "none"])


def test_the_list_is_of_what_runs_on_the_machine_that_is_described(run: Run) -> None:
    def listed(*options: str) -> set[str]:
        return {row["cell"] for row in json.loads(run("images", *options, "--json").output)["cells"]}

    assert listed("--gpu", "H100", "--driver", "550.54.14", "--python", "3.12") >= {"torch2.10.0-cu128-py312"}
    # Its driver would need the package cuda-compat.
    assert "torch2.13.0-cu130-py312" not in listed("--gpu", "H100", "--driver", "550.54.14")
    assert {cell.split("-", 1)[1] for cell in listed("--cuda", "cpu", "--python", "3.11")} == {"cpu-py311"}
    none = run("images", "--gpu", "V100", "--driver", "590.44.01")
    assert isinstance(none.exception, NothingLegalError)
    assert "none of them has this Python" in str(run("images", "--gpu", "H100", "--python", "3.9").exception)
    shown = run("images", "torch2.9*py312", "--gpu", "RTX 5080").output
    assert [line.split()[-2] for line in shown.splitlines()[1:4]] == ["570.86.16", "570.86.16", "580.65.06"]


@pytest.mark.parametrize(("cell", "lacking"), [(CELL, "torch"), (CELL, "base"), (OTHER, "nvidia")])
def test_a_lock_file_that_is_missing_is_named_and_nothing_is_built(
    run: Run, images: Path, cell: str, lacking: str
) -> None:
    shutil.copytree(data_path("images") / cell, images / cell, dirs_exist_ok=True)
    assert run("images", cell).output.splitlines()[1].split()[1] == "yes"
    (images / cell / f"{lacking}.lock").unlink()
    shown = run("images", cell)
    assert shown.exit_code == 0
    assert shown.output.splitlines()[1].split()[1] == "BAD"
    assert f"lacks {lacking}.lock: restore it, or run" in shown.output
    row = json.loads(run("images", cell, "--json").output)["cells"][0]
    assert (row["locked"], row["missing"]) == (False, [f"{lacking}.lock"])
    for command in (["build", cell, "--engine", "venv"], ["render", cell]):
        ended = run(*command)
        assert isinstance(ended.exception, ConfigError), ended.output
        assert f"lacks {lacking}.lock" in str(ended.exception)


def test_an_edited_dockerfile_is_warned_of(images: Path) -> None:
    shutil.copyfile(data_path("images") / CELL / "Dockerfile", images / CELL / "Dockerfile")
    argv = ["build", CELL, "--engine", "venv", "--images", str(images), "--dry-run"]
    before = CliRunner().invoke(cli, argv)
    (images / CELL / "Dockerfile").write_text("FROM scratch\n")
    after = CliRunner().invoke(cli, argv)
    assert "warning" not in before.stderr
    assert "Dockerfile is edited or out of date and is not what this build uses" in after.stderr
    assert (after.exit_code, after.stdout) == (before.exit_code, before.stdout)


def test_a_bad_lock_hides_no_other_cell(images: Path) -> None:
    (images / CELL / "torch.lock").write_bytes(b"# index: pytorch/cpu\ntorch>=2\n")
    argv = ["images", "--images", str(images), "torch2.13.0-*py311"]
    shown = CliRunner().invoke(cli, argv, standalone_mode=False)
    assert shown.return_value == 2
    assert [row.split()[1] for row in shown.stdout.splitlines()[1:3]] == ["BAD", "NO"]
    error = f"{images / CELL / 'torch.lock'}:2: 'torch>=2' is not an exact version with a hash"
    assert error in shown.stdout
    assert f"envcheck: {error}" in shown.stderr
    assert "run `envcheck lock` for the cell" in shown.stderr
    rows = json.loads(CliRunner().invoke(cli, [*argv, "--json"], standalone_mode=False).stdout)["cells"]
    assert [(row["locked"], bool(row["error"])) for row in rows] == [(False, True), (False, False)]


def test_a_lock_that_may_not_be_read_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.suffix == ".lock":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    shown = CliRunner().invoke(cli, ["images", "--images", str(images), CELL], standalone_mode=False)
    assert shown.return_value == 2
    assert f"{images / CELL / 'torch.lock'}: Permission denied; give this user the right to read it" in shown.stderr


@pytest.mark.parametrize("words", [["images"], ["images", "list"]])
def test_the_group_is_its_list_where_no_command_is_named(words: list[str], images: Path) -> None:
    arguments = ["--images", str(images), "torch2.13.0-cpu*", "--json"]
    shown = json.loads(CliRunner().invoke(cli, [*words, *arguments]).stdout)
    assert [row["cell"] for row in shown["cells"]] == [CELL]
    result = CliRunner().invoke(cli, words, env={"ENVCHECK_IMAGES_LIST_CELL": CELL, "ENVCHECK_IMAGES_LIST_JSON": "1"})
    assert [row["cell"] for row in json.loads(result.stdout)["cells"]] == [CELL]
    assert "--images DIRECTORY" in CliRunner().invoke(cli, [*words, "--help"]).output


@each("words", ["", "torch2.13.0-cpu", f"{CELL} torch2.13.0-cpu"])
def test_the_shell_offers_cells(words: str) -> None:
    typed = ["envcheck", "images", *words.split(" ")]
    shell = BashComplete(cli, {}, "envcheck", "_ENVCHECK_COMPLETE")
    assert CELL in [item.value for item in shell.get_completions(typed[1:-1], typed[-1])]


def test_the_list_is_also_for_programs(run: Run) -> None:
    shown: dict[str, Any] = json.loads(run("images", "--json", "torch2.13.0-*py311").output)
    assert shown["schema"] == "envcheck/images/1"
    assert [(cell["cell"], cell["locked"], cell["tags"]) for cell in shown["cells"]] == [
        (CELL, True, [f"2.13.0-cpu-py311-{target}" for target in ("runtime", "devel", "train", "jupyter")]),
        ("torch2.13.0-cu130-py311", False, ["2.13.0-cu130-py311-runtime", "2.13.0-cu130-py311-train"]),
    ]


def test_rendering_writes_compares_and_removes(run: Run, images: Path) -> None:
    before = run("render", "--check", CELL)
    assert (before.exit_code, before.output.splitlines()[0]) == (1, f"missing: {images}/{CELL}/Dockerfile")
    assert run("render", CELL).exit_code == 0
    assert (images / CELL / "Dockerfile").read_bytes() == (data_path("images") / CELL / "Dockerfile").read_bytes()
    assert run("render", "--check", CELL).exit_code == 0
    lacking = run("render", "--check", OTHER)
    told = f"missing: {images}/{OTHER} has no lock; run `envcheck lock {OTHER} --images {images}`"
    assert (lacking.exit_code, told in lacking.output) == (1, True)
    (images / CELL / "Dockerfile").write_text("FROM x\n")
    (images / CELL / "notes.txt").touch()
    stale = run("render", "--check", CELL)
    assert stale.exit_code == 1
    assert stale.output.splitlines()[:2] == [f"stale: {images}/{CELL}/Dockerfile", f"orphan: {images}/{CELL}/notes.txt"]
    assert run("render", CELL).exit_code == 0
    assert (images / CELL / "notes.txt").exists()
    (images / "torch0.1.0-cpu-py36").mkdir()
    (images / "torch0.1.0-cpu-py36/Dockerfile").touch()
    assert run("render", "--check").exit_code == 1
    told = run("render").output
    assert f"removed {images}/torch0.1.0-cpu-py36/Dockerfile" in told
    assert told.endswith(f" removed in {images}\n")
    assert sorted(path.name for path in images.iterdir()) == [CELL]
    assert f"orphan: {images}/{CELL}/notes.txt" in run("render", "--check").output.splitlines()
    (images / CELL / "notes.txt").unlink()  # it is not what rendering gave
    assert run("render", "--check").exit_code == 0


def test_a_context_is_written_and_the_command_that_builds_it_printed(run: Run, tmp_path: Path) -> None:
    profile = tmp_path / "site.yaml"
    (tmp_path / "netrc").touch()
    profile.write_text("netrc: netrc\npypi: [{url: 'http://127.0.0.1:9/simple'}]\n")
    out = tmp_path / "my ctx"
    shown = run("render", CELL, "--mirror", str(profile), "--output", str(out))
    assert shown.exit_code == 0, shown.output
    secret = f"--secret id=netrc,src={tmp_path / 'netrc'}"
    assert (
        shown.output.splitlines()[-1]
        == f"docker build --network host {secret} --target runtime -t envcheck/torch:2.13.0-cpu-py311-runtime '{out}'"
    )
    assert (out / "mirror/torch/sources.tsv").is_file()


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_context_is_that_of_the_machine_which_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: HostArch
) -> None:
    """It holds this machine's uv; with both architectures in one Dockerfile the last would win."""
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=arch))
    shown = CliRunner().invoke(cli, ["render", GRACE, "--mirror", "none", "--output", str(tmp_path / "ctx")])
    assert shown.exit_code == 0, shown.output
    text = (tmp_path / "ctx/Dockerfile").read_text()
    assert text.count(" AS runtime\n") == 1
    mounted = set(re.findall(r"source=(\S+\.lock),", text))
    assert {str(path.relative_to(tmp_path / "ctx")) for path in (tmp_path / "ctx").rglob("*.lock")} == mounted
    cell = Cell.parse(GRACE)
    assert cell is not None
    for target in ("runtime", "devel", "train"):
        promised = json.loads((tmp_path / "ctx/images" / GRACE / f"{target}.json").read_text())
        assert promised == load_spec(load(), cell, target, arch=arch).own_promises
        assert f'envcheck.lock="{promised["lock"]}"' in text


def test_a_context_of_a_cell_that_this_machine_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine="aarch64"))
    shown = CliRunner().invoke(cli, ["render", CELL, "--mirror", "none", "--output", str(tmp_path / "ctx")])
    assert f"{CELL} is not published for aarch64, and a context holds uv of this machine" in str(shown.exception)
    assert not (tmp_path / "ctx").exists()


@each("more", [[], ["--mirror", "none", "--output", "/no/such"]])
def test_a_cell_without_a_lock_is_not_rendered(run: Run, more: list[str]) -> None:
    assert f"has no lock; run `envcheck lock {OTHER}" in str(run("render", OTHER, *more).exception)


def test_a_cell_that_cannot_be_locked_keeps_its_lock_and_is_named(
    run: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    profile = tmp_path / "dead.yaml"
    dead = "[{url: 'http://127.0.0.1:9/simple'}]"
    profile.write_text(f"pypi: {dead}\npytorch: {dead}\n")
    before = {path: path.read_bytes() for path in (images / CELL).iterdir()}
    ended = run("lock", "--mirror", str(profile), CELL)
    assert ended.exit_code == 3
    assert f"without a new lock: {CELL}" in ended.output
    assert "next" not in ended.output
    assert ended.output.startswith(f"{CELL} cannot be locked: 127.0.0.1:9 cannot be reached;")
    assert max(map(len, ended.output.splitlines())) <= 80
    assert {path: path.read_bytes() for path in (images / CELL).iterdir()} == before


def test_a_new_lock_replaces_the_whole_of_the_old_one(run: Run, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = read_locks(images / CELL)
    monkeypatch.setattr(lock_with_uv, "lock_cell", lambda *_: locks[:1])
    monkeypatch.setattr(lock_on_top, "lock_target", lambda *_: [])
    ended = run("lock", "--mirror", "none", CELL)
    assert "facts" not in ended.output
    next_step = f"locked 1 of 1; next: envcheck render --images {images}"
    assert (ended.exit_code, ended.output.splitlines()[-1]) == (0, next_step)
    assert [path.name for path in (images / CELL).iterdir()] == ["torch.lock"]
    assert "as it was" in run("lock", "--mirror", "none", CELL).output


def test_a_target_is_locked_for_another_architecture_on_top_of_its_own_locks(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data_path("images") / GRACE, images / GRACE)
    requests: list[tuple[str, str]] = []

    def add(
        _matrix: object, _cell: object, target: str, locks: list[Lock], _profile: object, arch: str, *_: object
    ) -> list[Lock]:
        requests.append((target, arch))
        assert locks == read_locks(images / GRACE, SHARED_GROUPS, "aarch64")
        return [Lock(group="train", index="pypi", pins=[Pin(name="peft", version="1", sha256=["c" * 64])])]

    monkeypatch.setattr(lock_on_top, "lock_target", add)
    before = {path.name: path.read_bytes() for path in (images / GRACE).iterdir()}
    words = ["lock", GRACE, "--arch", "aarch64", "--target", "train", "--mirror", "none", "--images", str(images)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    after = {path.name: path.read_bytes() for path in (images / GRACE).iterdir()}
    assert requests == [("train", "aarch64")]
    assert {name for name in after if after[name] != before[name]} == {"train.aarch64.lock"}
    assert before.keys() == after.keys()
