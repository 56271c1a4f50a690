"""An audit of packages: a wrong file is found by the lock's hash, and its fix makes the mirror serve the right one."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.mirrors.site.render import render
from tests.certificates import Certificate
from tests.mirrors.site.audits import audit as audited
from tests.mirrors.site.audits import spoil
from tests.mirrors.site.conftest import World, envcheck
from tests.mirrors.site.test_render import site as everything
from tests.mirrors.site.test_served import ServedSite, lock
from tests.mirrors.site.upstreams import get

pytestmark = pytest.mark.tools


def audit(world: World, where: str, authority: Certificate, *names: str) -> tuple[int, dict[str, str], str]:
    """Audit a lock of these names; return the exit code, the verdicts and the findings as text."""
    path = world.root / "audited.lock"
    pins = lock(world, *names).replace(" --hash", " \\\n    --hash")
    path.write_text(f"# test, layer base\n# index: pypi\n{pins}")
    code, findings = audited(where, "packages", "--lock", str(path), "--ca", str(authority.ca))
    return code, {name.partition("-")[0]: one["verdict"] for name, one in findings.items()}, json.dumps(findings)


def url(world: World, base: str, name: str) -> str:
    there = {"farlib": f"/files/{world.far.origin.removeprefix('http://')}/packages/", "rellib": "/pypi/rel/"}
    return f"{base}{there[name]}{world.wheels[name].name}"


def test_a_poisoned_cache_is_found_and_its_fix_makes_the_site_serve_the_right_file(
    served: ServedSite, authority: Certificate
) -> None:
    world, site, base = served
    content = {name: world.wheels[name].read_bytes() for name in ("farlib", "rellib")}
    for name, right in content.items():
        # Wrong bytes of the right size, deep in the file; the index has the right hash.
        spoil(world.wheels[name])
        assert get(url(world, base, name), authority.ca)[1] != right
        world.wheels[name].write_bytes(right)
        assert get(url(world, base, name), authority.ca)[1] != right, "the cache serves the wrong file for ever"
    names = ("farlib", "rellib", "nearlib")
    expected = (1, {"farlib": "poisoned", "rellib": "poisoned", "nearlib": "clean"})
    assert audit(world, base, authority, *names)[:2] == expected
    code, verdicts, findings = audit(world, str(site), authority, *names)
    assert (code, verdicts) == expected
    assert json.loads((site / "state/audit.json").read_text())["poisoned"] == 2
    (fix,) = {one["fix"] for one in json.loads(findings).values() if one["fix"]}
    subprocess.run(fix.split(), check=True)
    for name, right in content.items():
        assert get(url(world, base, name), authority.ca)[1] == right
    assert audit(world, str(site), authority, *names)[0] == 0
    record = json.loads((site / "state/audit.json").read_text())
    assert record | {"time": 0} == {"time": 0, "files": 3, "poisoned": 0, "unjudged": 0}


def test_a_site_that_is_down_is_unavailable_and_leaves_no_record(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    for name in ("state", "locks"):
        (tmp_path / name).mkdir()
    (tmp_path / "locks/own.lock").write_text(
        f"# test, layer base\n# index: pypi\nrellib==1.0 \\\n    --hash=sha256:{'a' * 64}\n"
    )
    code, findings = audited(tmp_path, "packages")
    assert (code, [one["verdict"] for one in findings.values()]) == (3, ["unavailable"])
    assert "envcheck mirror site status" in next(iter(findings.values()))["fix"]
    assert not (tmp_path / "state/audit.json").exists()


def test_nothing_to_audit_is_no_pass_and_leaves_no_record(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    (tmp_path / "state").mkdir()
    done = envcheck("mirror", "audit", str(tmp_path))
    assert (done.returncode, done.stdout.partition(":")[0]) == (3, "nothing to audit")
    assert not (tmp_path / "state/audit.json").exists()


def test_a_locked_file_that_the_index_does_not_list_is_unavailable(served: ServedSite, authority: Certificate) -> None:
    world, site, base = served
    world.wheels["rellib"].write_bytes(b"another")  # the lock has another hash than the page
    code, verdicts, _ = audit(world, base, authority, "rellib")
    assert (code, verdicts) == (3, {"rellib": "unavailable"})
    code, verdicts, _ = audit(world, str(site), authority, "rellib", "nearlib")
    assert (code, verdicts) == (0, {"rellib": "unavailable", "nearlib": "clean"})
    assert not (site / "state/audit.json").exists(), "an audit that missed a file is none"
    options = ("--lock", str(world.root / "audited.lock"), "--ca", str(authority.ca), "--strict")
    assert envcheck("mirror", "audit", str(site), *options).returncode == 3


@pytest.mark.parametrize("where", ["public/static", "public/static/main"])
def test_trees_that_cannot_be_read_are_no_pass_and_leave_no_record(tmp_path: Path, where: str) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    (tmp_path / "state").mkdir()
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / where).symlink_to(tmp_path / where)
    code, findings = audited(tmp_path, "trees")
    unread = [one["about"] for one in findings.values() if one["verdict"] == "unreadable"]
    assert (code, len(unread)) == (3, 1)
    assert unread[0].endswith(f"{where}: Too many levels of symbolic links")
    assert not (tmp_path / "state/audit.json").exists()


def test_findings_are_printed_even_if_the_record_cannot_be_written(served: ServedSite, authority: Certificate) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib")[0] == 0
    shutil.rmtree(site / "state")
    options = ("--lock", str(world.root / "audited.lock"), "--ca", str(authority.ca))
    done = envcheck("mirror", "audit", str(site), *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "packages: 1 clean\n", 1)
    assert "state/audit.json" in done.stderr


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda at: at.exists(), "envcheck mirror site render"),
        (lambda at: at.mkdir(), "envcheck mirror site render"),
        (lambda at: at.write_text("x"), "Not a directory"),
        (lambda at: (at / "site.json").mkdir(parents=True), "Is a directory"),
    ],
)
def test_a_directory_that_is_no_site_is_one_line(tmp_path: Path, make: Callable[[Path], object], text: str) -> None:
    make(tmp_path / "there")
    done = envcheck("mirror", "audit", str(tmp_path / "there"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert text in done.stderr


def test_on_a_terminal_it_shows_progress_and_prints_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    for name in ("state", "public/static/a\x1b[31mred"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "public/static/a\x1b[31mred/x").touch()
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "envcheck", "mirror", "audit", str(tmp_path)]
    completed = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "TERM": "xterm"}, check=False
    )
    os.close(stderr)
    progress = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert completed.returncode == 3
    assert "audit" in progress
    assert b"a?[31mred/x: unknown" in completed.stdout
    assert "\x1b[31m" not in progress


def test_a_file_that_is_no_lock_is_one_line(tmp_path: Path) -> None:
    for content in (b"{}", b"\xff", b""):
        (tmp_path / "lock").write_bytes(content)
        done = envcheck("mirror", "audit", "https://127.0.0.1:1", "--lock", str(tmp_path / "lock"))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert str(tmp_path / "lock") in done.stderr


def test_requirements_with_hashes_are_read_as_fetch_reads_them(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"demo==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8-sig")
    done = envcheck("mirror", "audit", "https://127.0.0.1:1", "--lock", str(tmp_path / "lock"))
    assert (done.returncode, "127.0.0.1:1" in done.stderr) == (3, True), done.stderr
