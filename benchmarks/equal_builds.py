"""Two builds of one key, from two clones on two engines: whether the images are equal, and in what they differ.

    python benchmarks/equal_builds.py [--json] [--cell torch2.13.0-cpu-py311] [--target runtime] [--mirror host]

Clones this checkout (what is committed) twice, the second under another umask, and builds the cell in each, on an
engine of its own with a base of its own (tests/e2e/private_engine.py: root on Debian or Ubuntu). Then compares

    content    each layer's names, types, modes, owners, links and bytes, without times: the goal is that all are equal
    bits       the same build with BuildKit's OCI exporter, `rewrite-timestamp=true` and the SOURCE_DATE_EPOCH that
               envcheck passes (the commit's date): the goal is one digest of each layer. The manifest's digest is one
               only on one base: the history of a bootstrapped base holds the date at which docker imported it

An image in an engine keeps the times of its files, so that its own digests differ. Exit 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

from tests.e2e.private_engine import private_engine

ROOT: Final = Path(__file__).resolve().parents[1]
UMASKS: Final = (0o022, 0o077)
_SHOWN: Final = 10

Entries = dict[str, str]


class BuiltImage(NamedTuple):
    """One side: the key, each layer's entries (path -> what it is), its digests, and those of the OCI archive."""

    key: str
    layers: list[Entries]
    diff_ids: list[str]
    manifest: str
    blobs: list[str]


class Side(NamedTuple):
    """A clone, and the environment of the commands that run in it."""

    clone: Path
    env: dict[str, str]
    umask: int

    def run(self, *argv: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            argv, cwd=self.clone, env=self.env, umask=self.umask, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(argv)[:200]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout


def build(scratch: Path, umask: int, options: argparse.Namespace) -> BuiltImage:
    """Build in a new clone, on a new engine, and read the image."""
    clone, archive = scratch / "clone", scratch / "image.tar"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], umask=umask, check=True)
    with private_engine() as engine:
        env = {**os.environ, **engine.environment, "ENVCHECK_HOME": str(scratch / "home"), "PYTHONPATH": str(clone)}
        side = Side(clone, env, umask)
        command = [sys.executable, "-m", "envcheck", "build", options.cell, "--target", options.target, "--json"]
        command += ["--mirror", options.mirror, "--engine", "docker", "--base", "bootstrap"]
        built = json.loads(side.run(*command))
        side.run("docker", "save", "--output", str(archive), built["image"])
        layers = list(read_layers(archive))
        archive.unlink()
        (inspected,) = json.loads(side.run("docker", "image", "inspect", built["image"]))
        argv = json.loads(side.run(*command, "--dry-run"))["argv"]
        output = f"--output=type=oci,dest={archive},rewrite-timestamp=true"
        side.run(*(output if word == "--load" else str(word) for word in argv))
        manifest, blobs = oci_digests(archive)
    return BuiltImage(built["key"], layers, inspected["RootFS"]["Layers"], manifest, blobs)


def smoke() -> dict[str, Any]:
    """Build an image of one file twice on one engine, and compare the two."""
    sides = []
    with private_engine() as engine, tempfile.TemporaryDirectory(prefix="envcheck-equal-") as scratch:
        side = Side(Path(scratch), {**os.environ, **engine.environment}, UMASKS[0])
        (side.clone / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        archive = side.clone / "image.tar"
        for tag in ("one", "other"):
            side.run("docker", "build", "--quiet", "--no-cache", "--tag", tag, str(side.clone))
            side.run("docker", "save", "--output", str(archive), tag)
            layers = list(read_layers(archive))
            archive.unlink()
            (inspected,) = json.loads(side.run("docker", "image", "inspect", tag))
            sides.append(BuiltImage("smoke", layers, inspected["RootFS"]["Layers"], "", []))
    return compare(*sides)


def read_layers(archive: Path) -> Iterator[Entries]:
    """Yield each layer of what `docker save` wrote, lowest first."""
    with tarfile.open(archive) as saved:
        (manifest,) = json.loads(_member(saved, "manifest.json").read())
        for name in manifest["Layers"]:
            stream = _member(saved, name)
            compressed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            plain = cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if compressed else stream
            with tarfile.open(fileobj=plain, mode="r|") as layer:
                yield {member.name: _described(layer, member) for member in layer}


def _described(layer: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """Return all of an entry but its name and its times."""
    content = layer.extractfile(member) if member.isfile() else None
    digest = hashlib.sha256(content.read()).hexdigest() if content else ""
    owner = f"{member.uid}:{member.gid}"
    extended = {name: value for name, value in member.pax_headers.items() if "time" not in name}
    return f"{member.type!r} {member.mode:o} {owner} {member.linkname} {digest} {extended}"


def oci_digests(archive: Path) -> tuple[str, list[str]]:
    """Return the digests of the manifest and of the layers in an OCI archive."""
    with tarfile.open(archive) as saved:
        manifest = str(json.loads(_member(saved, "index.json").read())["manifests"][0]["digest"])
        layers = json.loads(_member(saved, f"blobs/{manifest.replace(':', '/')}").read())["layers"]
    return manifest, [str(layer["digest"]) for layer in layers]


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    return cast("IO[bytes]", archive.extractfile(name))


def compare(one: BuiltImage, other: BuiltImage) -> dict[str, Any]:
    """Return what is equal, and some of the entries of each layer that are not."""
    pairs = list(zip(one.layers, other.layers, strict=False))
    differing = {
        number: sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))[:_SHOWN]
        for number, (a, b) in enumerate(pairs)
        if a != b
    }
    same = len(one.layers) == len(other.layers) and not differing
    return {
        "keys": [one.key, other.key],
        "layers": [len(one.layers), len(other.layers)],
        "entries": sum(map(len, one.layers)),
        "content_equal": same,
        "differing": differing,
        "digests_equal": sum(a == b for a, b in zip(one.diff_ids, other.diff_ids, strict=False)),
        "oci_manifests": [one.manifest, other.manifest],
        "oci_layers_equal": sum(a == b for a, b in zip(one.blobs, other.blobs, strict=False)),
        "met": same and one.key == other.key and one.blobs == other.blobs,
    }


def main() -> None:
    """Build twice, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    parser.add_argument("--cell", default="torch2.13.0-cpu-py311")
    parser.add_argument("--target", default="runtime")
    parser.add_argument("--mirror", default="host")
    options = parser.parse_args()
    sides = []
    for umask in UMASKS if not options.smoke else ():
        with tempfile.TemporaryDirectory(prefix="envcheck-equal-") as scratch:
            sides.append(build(Path(scratch), umask, options))
    differences = smoke() if options.smoke else compare(*sides)
    if options.json:
        print(json.dumps({"benchmark": "equal_builds", "cell": options.cell, "target": options.target, **differences}))
    else:
        for name, value in differences.items():
            print(f"{name}: {value}")
    raise SystemExit(not differences["met"])


if __name__ == "__main__":
    main()
