"""Building the images of a cell: how long it takes, what is built again, and how large they are.

    python benchmarks/images.py [--json] [--cell torch2.13.0-cpu-py311] [--mirror host] [--only PART]...

Starts a container engine of its own (tests/e2e/private_engine.py: root on Debian or Ubuntu), so that cold is cold and
no cache of yours is emptied. Takes about 15 minutes on two cores. PART is one of

    times      `envcheck build` of the target runtime, cold (the base is made too), and unchanged, as a whole command;
               the peer is `docker buildx build` of the same context, where every step is cached
    lock       a pin taken out of base.lock: how many of the steps above it and below it are built again
    targets    all targets of the cell by one `envcheck build`, with an empty cache: it downloads what it installs. The
               peer is a plain Dockerfile for each target, as people write them: the same distribution packages, then
               `pip install --no-cache-dir` of the same versions, on the same base. Its wheels are there already, it
               makes no second environment for envcheck, proves nothing, and shares no layer
    size       bytes of all files of runtime, against `pip install` of the same torch and numpy into a virtual
               environment on the same base, which holds no recommended package; of a cell with CUDA also against
               NVIDIA's libraries and compilers, a C++ compiler and the same `pip install` (a stand-in for an image on
               cudnn-devel, which has more); and what the image holds beyond its wheels, their bytecode and the base

Goals: unchanged in 2 s; nothing above the changed lock is built again, and all below it; all targets in half the time
of the peer; 3 % beyond wheels and base. Exit 1 if one is missed. Nothing is pulled or pushed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from envcheck.images.engines import bootstrap, connect
from envcheck.images.spec import load_spec, select
from envcheck.images.targets import FABRIC_PACKAGES, RECIPES, SHARED_GROUPS, os_packages
from envcheck.matrix.facts.model import Target
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors.profiles.load import load as profile
from tests.e2e.private_engine import private_engine

ROOT: Final = Path(__file__).resolve().parents[1]
GOALS: Final = {"unchanged_s": 2.0, "targets_ratio": 0.5, "beyond": 0.03}
# A step of BuildKit's plain progress: its number, its stage and its place there, and its instruction.
_STEP: Final = re.compile(
    r"^#(?P<number>\d+) \[(?P<stage>\w+) +(?P<place>\d+)/\d+\] (?P<text>(?:RUN|COPY|WORKDIR) .*)$", re.MULTILINE
)
_STAGES: Final = {"os": 0, "installed": 1}
_PIN: Final = re.compile(r"^([a-z0-9-]+)==(\S+) ", re.MULTILINE)
_TAKEN_OUT: Final = "networkx"
# Prints the bytes of the bytecode of what is under /opt.
BYTECODE: Final = "find /opt -name '*.pyc' -printf '%s\\n' | awk '{total += $1} END {print total}'"
PIP: Final = """FROM {base}
RUN --mount=type=bind,from=wheels,target=/wheels python3 -m venv /opt/venv \\
 && /opt/venv/bin/pip install --quiet --no-cache-dir --no-index --find-links /wheels {wanted}
"""
PACKAGES: Final = (
    "RUN --mount=type=bind,source=templates/context/os,target=/run/os"
    " --mount=type=bind,source=mirror/os,target=/run/mirror sh /run/os/packages.sh {packages}\n"
)
# In the order of an image on cudnn-devel: a compiler and NVIDIA's files, then all of them again beside torch.
STAND_IN: Final = """FROM {base}
RUN --mount=type=bind,source=templates/context/os,target=/run/os \\
    --mount=type=bind,source=mirror/os,target=/run/mirror sh /run/os/packages.sh g++ gcc libc6-dev make
RUN --mount=type=bind,from=wheels,target=/wheels python3 -m venv /tmp/venv \\
 && /tmp/venv/bin/pip install --quiet --no-cache-dir --no-index --no-deps --find-links /wheels \\
    --target /usr/local/cuda {nvidia} && rm -r /tmp/venv
"""


class Bench:
    """A cell, an engine for it, and a directory for what is made on the way."""

    def __init__(self, cell: str, mirror: str, env: dict[str, str], scratch: Path) -> None:
        self.cell, self.mirror, self.scratch = cell, mirror, scratch
        self.env = {**os.environ, **env, "ENVCHECK_HOME": str(scratch / "home"), "NO_COLOR": "1"}
        self.images = ROOT / "images" / cell

    def envcheck(self, *arguments: str) -> tuple[float, Any]:
        """Return the seconds of a command of envcheck, as a whole process, and its JSON."""
        began = time.perf_counter()
        text = self._run([sys.executable, "-m", "envcheck", *arguments, "--json"])
        return time.perf_counter() - began, json.loads(text)

    def build(self, *options: str) -> tuple[float, Any]:
        """Return the seconds of `envcheck build` of the cell, and its result, of several targets a list."""
        where = ("--mirror", self.mirror, "--engine", "docker", "--base", "bootstrap")
        return self.envcheck("build", self.cell, *where, *options)

    def base(self) -> str:
        """Have the base in the engine, and return its reference: no build of a target is to wait for it."""
        os.environ.update(self.env)
        spec = load_spec(load_matrix(), select(load_matrix(), [self.cell])[0])
        engine = connect("docker")
        packages = os_packages(spec.cuda)
        reference = bootstrap.reference(spec.base, spec.arch, packages)
        if not engine.inspect(reference):
            engine.import_base(spec, packages, profile(self.mirror))
        return reference

    def plan(self, target: str) -> list[str]:
        """Return the engine's own command for a target; its context stays where the plan names it."""
        argv = self.build("--target", target, "--dry-run")[1]["argv"]
        return [str(word) for word in argv]

    def docker(self, *arguments: str, stdin: str | None = None) -> str:
        """Return what docker prints."""
        return self._run(["docker", *arguments], stdin)

    def seconds(self, argv: list[str]) -> float:
        """Return how long a command takes."""
        began = time.perf_counter()
        self._run(argv)
        return time.perf_counter() - began

    def pins(self, group: str) -> list[str]:
        """Return NAME==VERSION of a lock, none where the cell has no such lock."""
        lock = self.images / f"{group}.lock"
        return ["==".join(pin) for pin in _PIN.findall(lock.read_text())] if lock.is_file() else []

    def bytes_of(self, argv: list[str], stdin: str = "") -> int:
        """Return the bytes of the files in the archive that a command writes, each hard link once."""
        with subprocess.Popen(argv, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as running:
            cast("IO[bytes]", running.stdin).write(stdin.encode())
            cast("IO[bytes]", running.stdin).close()
            with tarfile.open(fileobj=running.stdout, mode="r|") as archive:
                total = sum(member.size for member in archive if member.isfile())
        if running.returncode != 0:
            raise subprocess.CalledProcessError(running.returncode, argv)
        return total

    def _run(self, argv: list[str], stdin: str | None = None) -> str:
        done = subprocess.run(argv, env=self.env, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(argv)[:200]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout


def times(bench: Bench) -> dict[str, Any]:
    """Return the seconds of a cold build, of an unchanged one, and of the engine's own where all is cached."""
    cold, first = bench.build()
    argv = bench.plan("runtime")
    bench.seconds(argv)
    rounds = [(bench.build(), bench.seconds(argv)) for _ in range(5)]
    if any(not built["skipped"] or built["id"] != first["id"] for (_, built), _ in rounds):
        sys.exit("an unchanged build was not the image that was there")
    ours, peer = (statistics.median(each) for each in zip(*((a, b) for (a, _), b in rounds), strict=True))
    return {
        "cold_s": round(cold, 1),
        "unchanged_s": round(ours, 2),
        "docker_cached_s": round(peer, 2),
        "met": ours <= GOALS["unchanged_s"],
    }


def cached_parts(log: str) -> dict[str, bool]:
    """Return the steps of a build's log, lowest first, and whether each was built again."""
    cached = set(re.findall(r"^#(\d+) CACHED$", log, re.MULTILINE))
    # What is cached is logged in any order.
    places = {step: (_STAGES.get(step["stage"], len(_STAGES)), int(step["place"])) for step in _STEP.finditer(log)}
    steps = sorted(places, key=lambda step: places[step])
    return {step["text"]: step["number"] not in cached for step in steps}


def lock(bench: Bench) -> dict[str, Any]:
    """Return how many steps were built again above and below a lock that lacks a pin now."""
    bench.build()
    images = bench.scratch / "images"
    shutil.copytree(bench.images, images / bench.cell)
    path = images / bench.cell / "base.lock"
    pin = re.compile(rf"^{_TAKEN_OUT}==.*\n(?:    --hash=.*\n)+", re.MULTILINE)
    text, count = pin.subn("", path.read_text())
    path.write_text(text)
    seconds, built = bench.build("--images", str(images))
    steps = cached_parts(Path(built["log"]).read_text())
    first = next((at for at, step in enumerate(steps) if "install.sh base" in step), 0)
    above, below = list(steps.values())[:first], list(steps.values())[first:]
    return {
        "seconds": round(seconds, 1),
        "steps_above": len(above),
        "built_again_above": sum(above),
        "steps_below": len(below),
        "built_again_below": sum(below),
        "met": count == 1 and bool(above) and not any(above) and all(below),
    }


def targets(bench: Bench) -> dict[str, Any]:
    """Return the seconds of all targets by one build, and of a plain build of each; half of these before it."""
    base = bench.base()
    names = [name for name in RECIPES if name == "runtime" or bench.pins(name)]
    wheels, context = bench.scratch / "wheels", _context(bench)
    for group in (*SHARED_GROUPS, *names):
        _download(bench.images / f"{group}.lock", wheels)
    load = [os.getloadavg()[0]]
    peer = {name: _plain(bench, name, base, wheels, context) for name in names[::2]}
    for image in bench.docker("image", "ls", "--quiet", "--filter=label=envcheck.cell").split():
        bench.docker("image", "rm", "--force", image)
    bench.docker("buildx", "prune", "--all", "--force")
    ours, _ = bench.build(*(f"--target={name}" for name in names))
    load.append(os.getloadavg()[0])
    peer |= {name: _plain(bench, name, base, wheels, context) for name in names[1::2]}
    load.append(os.getloadavg()[0])
    ratio = ours / sum(peer.values())
    return {
        "targets_s": round(ours, 1),
        "plain_s": {name: round(value, 1) for name, value in peer.items()},
        "ratio": round(ratio, 2),
        "load": [round(each, 1) for each in load],
        "met": ratio <= GOALS["targets_ratio"],
    }


def _plain(bench: Bench, target: Target, base: str, wheels: Path, context: Path) -> float:
    """Return the seconds of a plain Dockerfile for a target, of which no step is cached; its image is removed."""
    groups = (*SHARED_GROUPS, target)
    lines = PIP.format(base=base, wanted=" ".join(pin for group in groups for pin in bench.pins(group)))
    if packages := RECIPES[target].packages:
        first, rest = lines.split("\n", 1)
        lines = f"{first}\n{PACKAGES.format(packages=' '.join(packages))}{rest}"
    build = ["docker", "buildx", "build", "--network=host", "--provenance=false", "--no-cache", "--load"]
    build += [f"--build-context=wheels={wheels}", "--file=-", "--tag=plain:1", str(context)]
    began = time.perf_counter()
    bench.docker(*build[1:], stdin=lines)
    seconds = time.perf_counter() - began
    bench.docker("image", "rm", "--force", "plain:1")
    return seconds


def size(bench: Bench) -> dict[str, Any]:
    """Return the bytes of runtime and of its peers, and what it holds beyond wheels and base."""
    _, built = bench.build()
    sizes = bench.envcheck("images", "size", built["image"], "--engine", "docker")[1]
    packages = sum(sizes["packages"].values())
    bytecode = int(bench.docker("run", "--rm", built["image"], "sh", "-c", BYTECODE))
    ours, base = (_exported(bench, image) for image in (built["image"], built["base"]))
    wheels = bench.scratch / "wheels"
    for name in ("nvidia", "torch", "base", *(["devel"] if bench.pins("nvidia") else [])):
        _download(bench.images / f"{name}.lock", wheels)
    context = _context(bench)
    pins = " ".join([*bench.pins("torch"), "numpy"])
    peers = {"pip": PIP.format(base=built["base"], wanted=pins)}
    if bench.pins("nvidia"):
        files = [pin for group in ("nvidia", "devel") for pin in bench.pins(group)]
        nvidia = [pin for pin in files if pin.startswith(("nvidia-", "cuda-"))]
        stand_in = STAND_IN.format(base=built["base"], nvidia=" ".join(nvidia))
        peers["cudnn_devel_and_pip"] = stand_in + peers["pip"].partition("\n")[2]
    build = ["docker", "buildx", "build", "--network=host", "--provenance=false", "--output=type=tar,dest=-"]
    build += [f"--build-context=wheels={wheels}", "--file=-", str(context)]
    theirs = {name: bench.bytes_of(build, text) for name, text in peers.items()}
    content = base + packages
    beyond = (ours - content - bytecode) / content
    return {
        "runtime_bytes": ours,
        "base_bytes": base,
        "packages_bytes": packages,
        "fabric_bytes": _fabric(bench, built["image"]) if bench.pins("nvidia") else 0,
        "bytecode_bytes": bytecode,
        "peer_bytes": theirs,
        "ratio": {name: round(ours / value, 3) for name, value in theirs.items()},
        "beyond": round(beyond, 4),
        "met": beyond <= GOALS["beyond"],
    }


def _exported(bench: Bench, image: str) -> int:
    """Return the bytes of an image's files."""
    container = bench.docker("create", image, "true").strip()
    total = bench.bytes_of(["docker", "export", container])
    bench.docker("rm", container)
    return total


def _fabric(bench: Bench, image: str) -> int:
    """Return the bytes of the RDMA libraries' packages, which are in the base or right above it, as dpkg counts."""
    names = (*FABRIC_PACKAGES, "libnl-3-200", "libnl-route-3-200")
    kib = bench.docker("run", "--rm", image, "dpkg-query", "--show", "--showformat=${Installed-Size}\\n", *names)
    return sum(map(int, kib.split())) * 1024


def _context(bench: Bench) -> Path:
    """Return the cell's build context, which is rendered once: `render` writes into an empty directory only."""
    context = bench.scratch / "context"
    if not context.exists():
        arguments = ["render", bench.cell, "--mirror", bench.mirror, "-o", str(context)]
        bench.seconds([sys.executable, "-m", "envcheck", *arguments])
    return context


def _download(lock_file: Path, into: Path) -> None:
    """Fetch a lock's files through this machine's own pip configuration."""
    if not lock_file.is_file():
        return
    python = re.sub(r".*-py3(\d+)$", r"3.\1", lock_file.parent.name)
    # pip takes the platforms for exactly these, and NVIDIA's wheels name nearly every one (2_27, 2_25, 2_5 ...).
    names = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(28, 4, -1))]
    platforms = [f"--platform={name}_x86_64" for name in names]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
    command += [f"--python-version={python}", "--implementation=cp", "--require-hashes", "--dest", str(into)]
    subprocess.run([*command, "--requirement", str(lock_file)], check=True)


PARTS: Final[dict[str, Callable[[Bench], dict[str, Any]]]] = {
    "times": times,
    "lock": lock,
    "targets": targets,
    "size": size,
}


def measure(cell: str, mirror: str, parts: Sequence[str]) -> dict[str, Any]:
    """Return what each part found, on one engine."""
    with tempfile.TemporaryDirectory(prefix="envcheck-bench-") as scratch, private_engine() as engine:
        bench = Bench(cell, mirror, engine.environment, Path(scratch))
        return {name: PARTS[name](bench) for name in parts}


def smoke() -> dict[str, Any]:
    """Build an image of two steps twice; the second build's log has to be read as cached."""
    with private_engine() as engine, tempfile.TemporaryDirectory(prefix="envcheck-images-") as scratch:
        (Path(scratch) / "Dockerfile").write_text(
            "FROM scratch AS os\nCOPY Dockerfile /\nFROM os AS installed\nCOPY Dockerfile /again\n"
        )
        env = {**os.environ, **engine.environment, "DOCKER_BUILDKIT": "1"}
        argv = ["docker", "build", "--progress", "plain", scratch]
        logs = [subprocess.run(argv, env=env, capture_output=True, text=True, check=True) for _ in range(2)]
    again = [cached_parts(log.stderr + log.stdout) for log in logs]
    return {"smoke": {"built_again": again, "met": list(again[1].values()) == [False, False]}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    parser.add_argument("--cell", default="torch2.13.0-cpu-py311")
    parser.add_argument("--mirror", default="host")
    parser.add_argument("--only", action="append", choices=list(PARTS), metavar="PART")
    given = parser.parse_args()
    figures = smoke() if given.smoke else measure(given.cell, given.mirror, given.only or list(PARTS))
    missed = [name for name, part in figures.items() if not part["met"]]
    if given.json:
        print(json.dumps({"benchmark": "images", "cell": given.cell, "goals": GOALS, **figures}))
    else:
        for name, part in figures.items():
            print(f"{name}: {json.dumps(part)}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
