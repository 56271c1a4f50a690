"""What the tests of registries need and a release does not have yet: a registry with the referrers API, oras, cosign.

    python -m tests.e2e.registry_tools DIRECTORY     DIRECTORY/referrers-registry, oras and cosign, each made once

The registry is the one in the distribution's Go package of go-containerregistry, which only tests use upstream: it
keeps everything in memory, and is built here. oras and cosign are the newest release's, as they are.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.e2e import private_engine
from tests.e2e.private_engine import CannotStartError

# Releases whose own packages are too old, and the one to take them from. Go programs need nothing but glibc.
NEWER: Final = {"bookworm": "trixie"}
NEWEST: Final = {"bookworm": "sid", "trixie": "sid"}
REGISTRY: Final = "referrers-registry"
PROGRAMS: Final = ("oras", "cosign")
LIBRARIES: Final = tuple(
    f"golang-github-{name}-dev"
    for name in (
        "google-go-containerregistry",
        "opencontainers-go-digest",
        "opencontainers-image-spec",
        "docker-distribution",
    )
)
GO: Final = "1.24"
SOURCE: Final = """package main

import (
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	panic(http.ListenAndServe(os.Args[1], registry.New(registry.WithReferrersSupport(true))))
}
"""


def build_registry(to: Path, scratch: Path) -> None:
    """Build the registry with the referrers API out of a release's packages."""
    suite = NEWER.get(private_engine.release(), private_engine.release())
    private_engine.download(scratch / "debs", suite, (*LIBRARIES, f"golang-{GO}-go", f"golang-{GO}-src"))
    root = scratch / "root"
    unpack(scratch / "debs", root)
    (scratch / "main.go").write_text(SOURCE, encoding="utf-8")
    go = root / f"usr/lib/go-{GO}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GO", "CGO"))},
        "GOROOT": str(go),
        "GOPATH": str(root / "usr/share/gocode"),
        "GOCACHE": str(scratch / "cache"),
        "GO111MODULE": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }
    made = scratch / REGISTRY
    quickly = ("-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")  # without optimization: two thirds of the time
    run([str(go / "bin/go"), "build", *quickly, "-o", str(made), str(scratch / "main.go")], environment)
    made.rename(to)


def fetch_programs(names: list[str], at: Path, scratch: Path) -> None:
    """Put programs of the newest release there, if they start."""
    suite = NEWEST.get(private_engine.release(), private_engine.release())
    private_engine.download(scratch / "debs", suite, tuple(names), expired=True)
    unpack(scratch / "debs", scratch / "root")
    for name in names:
        program = scratch / "root/usr/bin" / name
        run([str(program), "version"], {**os.environ, "HOME": str(scratch)})
        program.rename(at / name)


def unpack(debs: Path, root: Path) -> None:
    for deb in sorted(debs.glob("*.deb")):
        run(["dpkg-deb", "-x", str(deb), str(root)])


def run(argv: list[str], environment: dict[str, str] | None = None, directory: Path | None = None) -> None:
    completed = subprocess.run(argv, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    if completed.returncode:
        message = f"{argv[0]} {argv[1]} failed: {(completed.stdout + completed.stderr).strip()[-1500:]}"
        raise CannotStartError(message)


def main(argv: list[str]) -> int:
    at = Path(argv[0]).absolute()
    at.mkdir(parents=True, exist_ok=True)
    missing = [name for name in (REGISTRY, *PROGRAMS) if not shutil.which(name) and not (at / name).exists()]
    programs = [name for name in missing if name != REGISTRY]
    makers: list[Callable[[Path], None]] = []
    makers += [lambda scratch: build_registry(at / REGISTRY, scratch)] if REGISTRY in missing else []
    makers += [lambda scratch: fetch_programs(programs, at, scratch)] if programs else []
    with ThreadPoolExecutor() as pool:
        return max(pool.map(lambda make: made_in_scratch(make, at), makers), default=0)


def made_in_scratch(make: Callable[[Path], None], at: Path) -> int:
    """Call a maker with a directory of its own, and return 1 with a line if it cannot make its part."""
    try:
        with tempfile.TemporaryDirectory(prefix="making-", dir=at) as scratch:
            make(Path(scratch))
    except (CannotStartError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
