"""Every benchmark still runs, and what those of image builds conclude from a log and from two images."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import equal_builds as equal

ROOT = Path(__file__).parents[1]
# What a benchmark needs besides this checkout.
MARKS = {
    "collectives": pytest.mark.torch,
    "sound_extensions": pytest.mark.torch,
    "suite": pytest.mark.torch,
    "equal_builds": pytest.mark.engine,
    "images": pytest.mark.engine,
    "fetch": pytest.mark.tools,
    "registry": pytest.mark.tools,
}
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES])
def test_every_benchmark_runs_in_its_smallest_form(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    command = [sys.executable, str(ROOT / f"benchmarks/{name}.py"), "--smoke", "--json"]
    if MARKS.get(name) == pytest.mark.torch:
        option = "--cpu" if name == "sound_extensions" else "--python"
        command += [option, str(request.getfixturevalue("torch_python"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr + completed.stdout
    assert json.loads(completed.stdout.splitlines()[-1] if name == "sound_extensions" else completed.stdout)


def saved(path: Path, *, time: int, mode: int = 0o644, text: bytes = b"x") -> list[equal.Entries]:
    """Return the layers of an archive as `docker save` writes them, with one file in its one layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        entry = tarfile.TarInfo("etc/file")
        entry.mtime, entry.mode, entry.size = time, mode, len(text)
        archive.addfile(entry, io.BytesIO(text))
    contents = {"manifest.json": json.dumps([{"Layers": ["blob"]}]).encode(), "blob": gzip.compress(layer.getvalue())}
    with tarfile.open(path, "w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return list(equal.read_layers(path))


@pytest.mark.parametrize(
    ("mode", "text", "differing"),
    [(0o644, b"x", {}), (0o600, b"x", {0: ["etc/file"]}), (0o644, b"y", {0: ["etc/file"]})],
    ids=["time", "mode", "bytes"],
)
def test_images_that_differ_in_times_alone_are_equal(
    tmp_path: Path, mode: int, text: bytes, differing: dict[int, list[str]]
) -> None:
    first, second = saved(tmp_path / "one", time=1), saved(tmp_path / "other", time=2, mode=mode, text=text)
    one = equal.BuiltImage("key", first, ["sha256:1"], "sha256:m", ["sha256:b"])
    other = equal.BuiltImage("key", second, ["sha256:2"], "sha256:n", ["sha256:b"])
    actual = equal.compare(one, other)
    assert (actual["differing"], actual["content_equal"], actual["met"]) == (differing, not differing, not differing)
    assert (actual["entries"], actual["digests_equal"]) == (1, 0)
    assert equal.compare(one, other._replace(blobs=["sha256:c"]))["met"] is False
