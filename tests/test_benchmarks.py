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
from benchmarks.images import cached_parts

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


LOG = """
#6 [os 1/2] FROM localhost/envcheck/base:1@sha256:1
#6 DONE 0.0s
#8 [installed 1/2] RUN sh /run/install/install.sh torch /opt/venv
#8 CACHED
#7 [os 2/2] RUN sh /run/os/os.sh tini
#7 CACHED
#9 [installed 2/2] RUN sh /run/install/install.sh base /opt/venv
#9 0.761 Resolved 1 package
#9 DONE 3.0s
#10 [runtime 1/1] COPY envcheck /opt
#10 DONE 0.1s
"""


def test_the_steps_that_were_built_again_are_those_that_are_not_cached() -> None:
    assert list(cached_parts(LOG).items()) == [
        ("RUN sh /run/os/os.sh tini", False),
        ("RUN sh /run/install/install.sh torch /opt/venv", False),
        ("RUN sh /run/install/install.sh base /opt/venv", True),
        ("COPY envcheck /opt", True),
    ]


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


def test_the_digests_of_an_oci_archive_are_those_of_its_manifest_and_layers(tmp_path: Path) -> None:
    contents = {
        "index.json": {"manifests": [{"digest": "sha256:aa"}]},
        "blobs/sha256/aa": {"layers": [{"digest": "sha256:bb"}, {"digest": "sha256:cc"}]},
    }
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        for name, content in contents.items():
            text = json.dumps(content).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    assert equal.oci_digests(tmp_path / "image.tar") == ("sha256:aa", ["sha256:bb", "sha256:cc"])
