"""Walk this machine's files and print who owns how many bytes, as one JSON line. Runs inside the image, Python >= 3.9.

Bytes are those of the files (st_size), each hard link once. A file belongs to the Python distribution whose RECORD
lists it, else to the distribution package whose list names it, else to nobody.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import sys
from typing import Iterator  # noqa: UP035 (the oldest Python of the matrix)

# ruff: noqa: PTH118, PTH119, PTH120, PTH123, PTH207 (a script of an image: os.path is fast over 50,000 files)


SKIPPED = ("/proc", "/sys", "/dev", "/run/secrets")
BIG_LIBRARY = 1 << 20
MARK = "envcheck-size:"
# What runs without: path part -> what it is.
UNNEEDED = {
    "/usr/share/doc/": "documentation",
    "/usr/share/man/": "documentation",
    "/usr/share/info/": "documentation",
    "/usr/share/locale/": "translations",
    "/var/lib/apt/lists/": "package lists",
    "/var/cache/": "caches",
    "/root/.cache/": "caches",
}


def files(root: str) -> Iterator[tuple[str, int]]:
    """Yield each file's path below the root and its bytes, each inode once."""
    seen = set()
    for top, directories, names in os.walk(root + "/"):
        where = top[len(root) :]
        directories[:] = sorted(d for d in directories if os.path.join(where, d) not in SKIPPED)
        for name in sorted(names):
            path = os.path.join(where, name)
            try:
                status = os.lstat(root + path)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield path, status.st_size


def python_owners(root: str) -> dict[str, str]:
    """Return path -> "venv/name==version" of what the RECORD files of virtual environments list."""
    owners: dict[str, str] = {}
    for record in glob.glob(root + "/opt/*/lib/python3*/site-packages/*.dist-info/RECORD"):
        site = os.path.dirname(os.path.dirname(record))
        name, _, version = os.path.basename(os.path.dirname(record))[: -len(".dist-info")].partition("-")
        with open(record, encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if row:
                    path = os.path.normpath(os.path.join(site, row[0]))[len(root) :]
                    owners[path] = "{}=={}".format(name.lower().replace("_", "-"), version)
    return owners


def system_owned(root: str) -> set[str]:
    """Return the paths that the distribution's packages list."""
    owned: set[str] = set()
    for names in glob.glob(root + "/var/lib/dpkg/info/*.list"):
        with open(names, encoding="utf-8", errors="replace") as file:
            owned.update(line.rstrip("\n") for line in file)
    return owned


def kind_of(path: str, owned: set[str]) -> str:
    """Return whose a file is that no Python distribution lists."""
    # Lists of packages that are older than the merge of /bin, /lib and /sbin into /usr name the old paths.
    if path in owned or (path.startswith("/usr/") and path[len("/usr") :] in owned):
        return "system"
    if path.startswith("/opt/envcheck/"):
        return "envcheck"
    return "other"


def measured(root: str = "") -> dict[str, object]:
    """Return bytes by Python package, by kind, of what is not needed, and of big shared libraries."""
    owners, owned = python_owners(root), system_owned(root)
    packages: dict[str, int] = {}
    kinds: dict[str, int] = {}
    unneeded: dict[str, int] = {}
    libraries: list[tuple[str, int]] = []
    for path, size in files(root):
        bytecode = path.endswith(".pyc")
        owner = owners.get(path)
        if path.startswith("/opt/envcheck/"):
            kind = "envcheck"
        elif bytecode and path.startswith("/opt/"):
            kind = "bytecode"
        elif owner:
            kind = "packages"
            packages[owner] = packages.get(owner, 0) + size
        else:
            kind = kind_of(path, owned)
        kinds[kind] = kinds.get(kind, 0) + size
        reason = next((UNNEEDED[part] for part in UNNEEDED if path.startswith(part)), None)
        if path.endswith(".a"):
            reason = "static libraries"
        if reason:
            unneeded[reason] = unneeded.get(reason, 0) + size
        if size >= BIG_LIBRARY and ".so" in os.path.basename(path):
            libraries.append((path, size))
    return {"packages": packages, "kinds": kinds, "unneeded": unneeded, "libraries": libraries}


if __name__ == "__main__":
    sys.stdout.write(f"{MARK} {json.dumps(measured())}\n")
