"""envcheck build: what is refused, with which exit code and which one line."""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.cli import Settings
from envcheck.cli.commands import build as progress
from envcheck.data import rendered
from envcheck.errors import UnavailableError
from envcheck.images.engines import venv
from envcheck.images.engines.build import BuildResult
from envcheck.images.spec import load_spec, select
from envcheck.matrix.file.load import load
from tests.processes import typed
from tests.tables import each
from tests.waiting import eventually

CELL = "torch2.13.0-cpu-py311"
UNLOCKED = "torch2.15.0-cpu-py311"


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no engine answers."""
    return {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no.sock", "ENVCHECK_HOME": str(tmp_path)}


def build(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return typed("build", *args, env=env)


@each(
    "arguments",
    [
        (CELL,),
        (CELL, "--target", "runtime", "--target", "devel", "--tag", "me/torch"),
        (CELL, "--target", "runtime", "--prefetch"),
    ],
)
def test_an_engine_that_does_not_answer_is_one_line(nowhere: dict[str, str], arguments: tuple[str, ...]) -> None:
    done = build(nowhere, *arguments, "--engine", "docker")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "no docker engine answers" in done.stderr


def test_without_a_cell_it_is_the_published_one_that_resolve_names(nowhere: dict[str, str], tmp_path: Path) -> None:
    dead = "pypi: [{url: 'http://127.0.0.1:9/simple'}]\npytorch: [{url: 'http://127.0.0.1:9/{variant}'}]\n"
    (tmp_path / "dead.yaml").write_text(f"closed: true\n{dead}")
    published = json.loads(typed("resolve", "--json", env=nowhere).stdout)["published"]
    done = build(nowhere, "--engine", "venv", "--dry-run", "--mirror", str(tmp_path / "dead.yaml"))
    assert f"cell    {published}: the best published one for this machine" in done.stderr


def test_a_directory_of_someone_else_is_not_taken(nowhere: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    for words in ((CELL,), (UNLOCKED, "--dry-run")):
        done = build(nowhere, *words, "--engine", "venv", "--output", str(tmp_path))
        if "no Python 3.11" in done.stderr:
            pytest.skip("Python 3.11 is not on this machine")
        assert (done.returncode, "was not created by `envcheck build`" in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "mine").read_text() == "x"


def test_the_plan_of_an_environment_is_printed_and_nothing_made(nowhere: dict[str, str], tmp_path: Path) -> None:
    dest = tmp_path / "env"
    done = build(nowhere, "torch2.13.0-cpu-py311", "--output", str(dest), "--dry-run")
    if "no Python 3.11" in done.stderr:
        pytest.skip("Python 3.11 is not on this machine")
    assert done.returncode == 0
    assert done.stdout.startswith("engine  venv (no docker or podman answers)\n")
    assert f"path    {dest}" in done.stdout
    assert "install 1 package of torch.lock" in done.stdout
    assert "skip" not in done.stdout
    assert not dest.exists()


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """Return a directory that holds an environment's key, as a build leaves it."""
    matrix = load()
    (cell,) = select(matrix, ["torch2.13.0-cpu-py311"])
    try:
        planned = venv.plan(load_spec(matrix, cell), tmp_path / "env")
    except UnavailableError:
        pytest.skip("Python 3.11 is not on this machine")
    (tmp_path / "env").mkdir()
    (tmp_path / "env/envcheck-key").write_text(planned.key)
    return tmp_path / "env"


def test_a_plan_says_that_nothing_would_be_built(nowhere: dict[str, str], held: Path) -> None:
    common = ("torch2.13.0-cpu-py311", "--engine", "venv", "--output", str(held), "--dry-run")
    assert "skip    this key is built there already" in build(nowhere, *common).stdout
    document = json.loads(build(nowhere, *common, "--json").stdout)
    assert (document["schema"], document["engine"], document["skipped"]) == ("envcheck/build-plan/1", "venv", True)
    assert document["installs"]["torch"] == 1


def on_top(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a dry run with a package on top, through an index that does not answer."""
    profile = home / "dead.yaml"
    profile.write_text("pypi: [{url: 'http://127.0.0.1:9/simple'}]\n")
    environ = {**os.environ, "ENVCHECK_HOME": str(home), "UV_HTTP_RETRIES": "0"}
    return build(environ, CELL, "--engine", "venv", "--dry-run", "--mirror", str(profile), *options)


def test_a_kept_lock_that_is_broken_is_named_with_what_to_do(tmp_path: Path) -> None:
    completed = on_top(tmp_path, "--with", "einops")
    assert completed.returncode == 3, completed.stderr
    assert not (tmp_path / "locks-on-top").exists()
    spec = load_spec(load(), select(load(), [CELL])[0])
    request = json.dumps([spec.tag, spec.promises["lock"], ["einops"]])
    kept = tmp_path / "locks-on-top" / f"{spec.tag}-{hashlib.sha256(request.encode()).hexdigest()[:16]}.lock"
    kept.parent.mkdir()
    pin = "\\\n    --hash=sha256:" + "0" * 64 + "\n"
    for text in ("", "# index: pypi\n", f"# index: pypi\ntorch==2.0.0 {pin}", f"# index: pypi\nother==1 {pin}"):
        kept.write_text(text)
        refused = on_top(tmp_path, "--with", "einops")
        assert refused.returncode == 2
        assert f"{kept}" in refused.stderr
        assert "delete it: the next build makes it anew" in refused.stderr
    kept.write_text(f"# index: pypi\neinops==0.8.1 {pin}")
    assert on_top(tmp_path, "--with", "einops").returncode == 0


def test_a_package_that_its_marker_excludes_is_left_out_and_named(tmp_path: Path) -> None:
    completed = on_top(tmp_path, "--with", "einops; python_version < '3'")
    assert completed.returncode == 0, completed.stderr
    assert "with    einops; python_version < '3' is left out: its marker excludes this Python" in completed.stderr
    assert "with    nothing to add\n" in completed.stderr


def test_a_build_names_its_steps_whole_and_is_never_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.05)
    told = ""

    def so_far(last: str) -> int:
        nonlocal told
        told += capsys.readouterr().err
        return min(told.count(last), 2)

    with progress.listeners(Settings(None, verbose=False, quiet=False), "the build starts") as (_, on_line):
        assert eventually(lambda: so_far("... the build starts\n"), 2) == 2
        on_line(f"#5 [runtime 2/9] RUN --mount=a {'long ' * 30}end")
        on_line(f"[1/2] STEP 3/9: RUN --mount=b {'long ' * 30}end")
        on_line("#6 sha256:ab 12.58MB / 50.10MB")
        assert eventually(lambda: so_far("... #6 sha256:ab 12.58MB / 50.10MB\n"), 2) == 2
        for line in (
            "#7 1.2 Downloading torch (2.0GiB)",
            "#7 1.3 Downloading numpy (15.6MiB)",
            "#7 9.0  Downloaded numpy",
        ):
            on_line(line)
        assert eventually(lambda: so_far("... Downloaded numpy (16.4 MB of 2.2 GB fetched)\n"), 2) == 2
    assert f"  [runtime 2/9] RUN {'long ' * 30}end\n" in told
    assert f"  [3/9] RUN {'long ' * 30}end\n" in told


def test_the_sum_says_compressed_and_on_disk_and_no_time_of_what_was_skipped() -> None:
    promises = dict.fromkeys(("torch", "cuda", "cudnn", "nccl", "python"), "none")
    common: dict[str, Any] = {"cell": CELL, "target": "runtime", "key": "", "promises": promises, "sources": []}
    common["log"] = None
    image = BuildResult(
        engine="docker", image="a:b", id="sha256:1", bytes_on_disk=2_900_000_000, bytes_compressed=None, tags=["a:b"],
        skipped=False, held_back={}, base="x", seconds=1494.0, **common,
    )  # fmt: skip
    skipped = msgspec.structs.replace(image, skipped=True, seconds=0.0, bytes_compressed=1_200_000_000)
    environment = venv.Environment(
        path="/v", python="/v/bin/python", skipped=False, seconds=2.0, bytes_on_disk=5_000_000, **common
    )
    how = {"quiet": False, "run_options": lambda *_, **__: "", "local_name": lambda _engine, image: image}
    pushed = msgspec.structs.replace(image, pushed="r.example/a@sha256:1")
    first, second, third, fourth = (
        rendered("printed/built.txt.j2", {"built": one, **how}) for one in (image, skipped, environment, pushed)
    )
    assert "size    2900 MB on disk, compressed known once it is pushed\n" in first
    assert "took    1494.0 s\n" in first
    assert "size    2900 MB on disk, compressed 1200 MB\n" in second
    assert "took" not in second
    assert "size    5 MB on disk\n" in third
    assert "size    2900 MB on disk, compressed unknown\n" in fourth


def test_the_plan_of_a_cell_without_a_lock_is_for_programs_too(tmp_path: Path) -> None:
    environ = {**os.environ, "ENVCHECK_HOME": str(tmp_path)}
    plan = json.loads(build(environ, UNLOCKED, "--engine", "venv", "--dry-run", "--json", "--with", "einops").stdout)
    assert (plan["schema"], plan["engine"], plan["with"]) == ("envcheck/build-plan/1", "venv", ["einops"])
