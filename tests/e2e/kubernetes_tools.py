"""A Kubernetes API server, its scheduler and controllers, built out of the distribution's own source package.

    python -m tests.e2e.kubernetes_tools DIRECTORY     DIRECTORY/kube-apiserver and others, made once (15 to 30 minutes)

The last source package of Kubernetes that is whole, vendored libraries included, is bookworm's: Kubernetes 1.20.2.
It is built with bookworm's Go 1.19, which is used where it is unpacked. etcd is a package. Nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Final

from tests.e2e import private_engine
from tests.e2e.registry_tools import made_in_scratch, run, unpack

SUITE: Final = "bookworm"
VERSION: Final = "1.20.2"
GO: Final = "1.19"
COMPONENTS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS: Final = ("etcd", *COMPONENTS)
# make generates code with rsync; its libraries come along.
PACKAGES: Final = (f"golang-{GO}-go", f"golang-{GO}-src", "etcd-server", "rsync", "libpopt0", "libxxhash0")


def build(to: Path, scratch: Path) -> None:
    """Build what is missing there, with half of this machine's processors at the most."""
    private_engine.download(scratch / "debs", SUITE, PACKAGES)
    root = scratch / "root"
    unpack(scratch / "debs", root)
    shutil.copy2(root / "usr/bin/etcd", to / "etcd")
    tree = _unpacked(scratch)
    environment = _environment(scratch, tree, root)
    for name in COMPONENTS:
        if not (to / name).exists():
            run(["make", f"WHAT=cmd/{name}"], environment, tree)
            shutil.move(tree / "_output/bin" / name, to / name)


def _unpacked(scratch: Path) -> Path:
    """Return the source tree, at the place where its makefile expects it."""
    private_engine.download_source(scratch / "source", SUITE, "kubernetes")
    (archive,) = (scratch / "source").glob("kubernetes_*.orig.tar.*")
    with tarfile.open(archive) as source:
        source.extractall(scratch / "tree", filter="tar")
    (tree,) = (scratch / "tree").iterdir()
    (tree / ".go/src/k8s.io").mkdir(parents=True)
    (tree / ".go/src/k8s.io/kubernetes").symlink_to("../../..")
    return tree


def _environment(scratch: Path, tree: Path, root: Path) -> dict[str, str]:
    version = {
        "KUBE_GIT_COMMIT": "0" * 40,
        "KUBE_GIT_TREE_STATE": "archive",
        "KUBE_GIT_VERSION": f"v{VERSION}",
        "KUBE_GIT_MAJOR": VERSION.split(".")[0],
        "KUBE_GIT_MINOR": VERSION.split(".")[1],
    }
    version_file = scratch / "version"
    version_file.write_text("".join(f"{name}='{value}'\n" for name, value in version.items()), encoding="utf-8")
    libraries = sorted({str(found.parent) for found in root.rglob("*.so*")})
    # GOFLAGS stays unset: the makefile takes what stands there for a build tag.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "CGO", "KUBE"))}
    return {
        **kept,
        "PATH": f"{root}/usr/lib/go-{GO}/bin:{root}/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(libraries),
        "GOROOT": f"{root}/usr/lib/go-{GO}",
        "GOPATH": str(tree / ".go"),
        "GOCACHE": str(scratch / "cache"),
        "GO111MODULE": "off",
        "GOMAXPROCS": os.environ.get("GOMAXPROCS") or str(max(1, (os.cpu_count() or 2) // 2)),
        "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION_FILE": str(version_file),
    }


def main(argv: list[str]) -> int:
    """Make what is missing, and return 1 if it cannot be made here."""
    at = Path(argv[0]).absolute()
    at.mkdir(parents=True, exist_ok=True)
    if all((at / name).exists() for name in PROGRAMS):
        return 0
    return made_in_scratch(lambda scratch: build(at, scratch), at)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
