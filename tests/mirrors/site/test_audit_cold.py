"""Poison in the object store behind the trees: a real S3 endpoint, read and mended by the distribution's rclone."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors import versions
from envcheck.mirrors.contents import Contents
from envcheck.mirrors.site.model import read
from envcheck.mirrors.site.parts import tasks
from envcheck.mirrors.store import Store
from tests.mirrors.site.conftest import envcheck
from tests.mirrors.site.test_audit import spoil
from tests.mirrors.site.test_cold import bucket
from tests.mirrors.site.upstreams import free_ports, get
from tests.mirrors.store.conftest import contents, make_wheel, model, store

pytestmark = pytest.mark.tools
__all__ = ["bucket", "contents", "make_wheel", "model", "store"]


def audit(site: Path, *options: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = envcheck("mirror", "audit", str(site), *options, "--json", **environment)
    assert done.stdout, done.stderr
    files = json.loads(done.stdout)["files"]
    return done.returncode, {one["name"]: one for one in files if one["cache"] == "object store"}


def test_a_poisoned_object_is_deleted_and_comes_again_with_the_next_copy(
    tmp_path: Path, nginx: str, bucket: dict[str, str], store: Store, contents: Contents
) -> None:
    if shutil.which("rclone") is None:
        pytest.skip("no rclone here (`make test` unpacks it where apt is)")
    assert nginx
    site, port = tmp_path / "site", free_ports(130)
    options = ("--no-hf", "--no-pytorch", "--link", "https://x.example", "--port", str(port), "--s3", "bucket")
    assert envcheck("mirror", "site", "render", str(site), *options).returncode == 0
    versions.publish(store, contents, keep=2)
    told = versions.manifest(store, 1)
    tree, objects = site / "public/static/main", tmp_path / "store/bucket/static/main"
    shutil.copytree(store.root / "current", tree)
    command = next(task for task in tasks(read(site)) if task.name == "cold").commands[0]

    def copied() -> None:
        plain = {"PATH": str(Path(shutil.which("rclone") or "").parent), "HOME": str(tmp_path), **bucket}
        done = subprocess.run(["/bin/sh", "-c", command], env=plain, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    (tree / "odd.bin").write_bytes(b"x")
    copied()
    wheel = next(file.path for file in told.files if file.path.endswith("alpha-1.0-py3-none-any.whl"))
    right = spoil(objects / wheel)
    (tree / wheel).unlink()
    base = f"http://127.0.0.1:{port}/static/main"
    try:
        done = envcheck("mirror", "site", "up", str(site), **bucket)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(get(f"{base}/{wheel}")[1]) == len(right)
        assert get(f"{base}/{wheel}")[1] != right
        assert audit(site, **bucket)[1]["bucket"]["verdict"] == "unknown", "it is large: it was not asked for"
        code, found = audit(site, "--object-store", **bucket)
        odd = {name: one["verdict"] for name, one in found.items() if one["verdict"] != "clean"}
        assert (code, odd) == (1, {f"static/main/{wheel}": "poisoned", "static/main/odd.bin": "unknown"})
        assert len(found) == len(told.files) + 1
        assert found[f"static/main/{wheel}"]["purged"] == [f"cold:bucket/static/main/{wheel}"]
        assert not (objects / wheel).exists()
        # rclone's server remembers for minutes what was there: no answer, or one that breaks off, and no wrong one.
        with contextlib.suppress(http.client.IncompleteRead):
            assert get(f"{base}/{wheel}")[0] >= 400
        shutil.copy2(store.root / "current" / wheel, tree / wheel)
        copied()
        (tree / wheel).unlink()
        assert get(f"{base}/{wheel}")[:2] == (200, right)
        assert audit(site, "--object-store", **bucket)[0] == 0
    finally:
        envcheck("mirror", "site", "down", str(site))
    # A store that cannot be reached is no healthy one.
    code, found = audit(site, "--object-store", **{**bucket, "RCLONE_CONFIG_COLD_SECRET_ACCESS_KEY": "wrong"})
    assert (code, found["bucket"]["verdict"]) == (3, "unreadable")
    assert "rclone hashsum: " in found["bucket"]["about"]
