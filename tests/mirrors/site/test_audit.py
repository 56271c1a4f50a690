"""A poisoned cache: found by the lock's hashes, purged, and right again."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.mirrors.site.audit_disk import Unread
from envcheck.mirrors.site.cachefile import Slice, answers, slices
from envcheck.mirrors.site.render import render
from tests.mirrors.site.audits import audit as audited
from tests.mirrors.site.conftest import ROOT, Authority, World, envcheck
from tests.mirrors.site.test_render import site as everything
from tests.mirrors.site.test_served import Served, lock
from tests.mirrors.site.upstreams import eventually, get

pytestmark = pytest.mark.tools


def audit(world: World, where: str, authority: Authority, *names: str) -> tuple[int, dict[str, str], str]:
    """Audit a lock of these names; return the exit code, the verdicts and all that was said."""
    path = world.root / "audited.lock"
    pins = lock(world, *names).replace(" --hash", " \\\n    --hash")
    path.write_text(f"# test, layer base\n# index: pypi\n{pins}")
    code, found = audited(where, "packages", "--lock", str(path), "--ca", str(authority.ca))
    return code, {name.partition("-")[0]: one["verdict"] for name, one in found.items()}, json.dumps(found)


def url(world: World, base: str, name: str) -> str:
    there = {"farlib": f"/files/{world.far.origin.removeprefix('http://')}/packages/", "rellib": "/pypi/rel/"}
    return f"{base}{there[name]}{world.wheels[name].name}"


def test_poison_is_found_and_purged_and_the_next_client_gets_the_right_file(
    served: Served, authority: Authority
) -> None:
    world, site, base = served
    right = {name: world.wheels[name].read_bytes() for name in ("farlib", "rellib")}
    for name, content in right.items():
        # Wrong bytes of the right size, deep in the file; the index says the right hash.
        world.wheels[name].write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert get(url(world, base, name), authority.ca)[1] != content
        world.wheels[name].write_bytes(content)
        assert get(url(world, base, name), authority.ca)[1] != content, "the cache serves poison for ever"
    names = ("farlib", "rellib", "nearlib")
    told = audit(world, base, authority, *names)
    assert told[:2] == (1, {"farlib": "poisoned", "rellib": "poisoned", "nearlib": "clean"}), told
    told = audit(world, str(site), authority, *names)
    assert told[:2] == (1, {"farlib": "poisoned", "rellib": "poisoned", "nearlib": "clean"}), told
    assert json.loads((site / "state/audit.json").read_text())["poisoned"] == 2
    for name, content in right.items():
        assert get(url(world, base, name), authority.ca)[1] == content
    assert audit(world, str(site), authority, *names)[0] == 0
    assert json.loads((site / "state/audit.json").read_text()) | {"time": 0} == {
        "time": 0,
        "files": 3,
        "poisoned": 0,
        "unjudged": 0,
    }


def test_poison_is_found_under_every_spelling_of_its_url(served: Served, authority: Authority) -> None:
    world, site, base = served
    plain = url(world, base, "rellib")
    spellings = (plain, plain.replace("/rellib-", "/%72ellib-"))
    content = world.wheels["rellib"].read_bytes()
    world.wheels["rellib"].write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert all(get(spelling, authority.ca)[1] != content for spelling in spellings)
    world.wheels["rellib"].write_bytes(content)
    assert audit(world, str(site), authority, "rellib")[0] == 1
    assert [get(spelling, authority.ca)[1] for spelling in spellings] == [content, content]


def test_what_is_there_in_part_or_not_is_not_judged_and_no_upstream_is_asked(
    served: Served, authority: Authority
) -> None:
    world, site, base = served
    get(url(world, base, "farlib"), authority.ca, Range="bytes=0-9")
    before = eventually(lambda: len(world.far.sent()), wanted=1)  # the whole slice, though ten bytes were asked for
    told = audit(world, str(site), authority, "farlib", "rellib")
    assert told[:2] == (3, {"farlib": "in part", "rellib": "not cached"}), told
    assert len(world.far.sent()) == before


def spoil(path: Path, at: int = -9) -> bytes:
    """Change one byte of a file, deep in it, and nothing of its size; return what it was."""
    right = path.read_bytes()
    path.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 or len(right) :])
    return right


def piece(site: Path, name: str, start: int = 0) -> Path:
    """Return the cache file of a slice."""
    found = [one for one in slices(site / "cache/files") if isinstance(one, Slice)]
    return next(one.path for one in found if name in one.url and one.start == start)


def test_the_site_may_be_down_and_a_page_that_it_no_longer_has_is_asked_for(
    served: Served, authority: Authority
) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib")[0] == 0  # and so are page and file cached
    spoil(piece(site, "nearlib"))
    for page in answers(site / "cache/index"):
        page.path.unlink()
    path = str(world.root / "audited.lock")
    blind = envcheck("mirror", "audit", str(site), "--lock", path)  # without the site's CA
    assert (blind.returncode, "TLS" in blind.stdout, "clean" in blind.stdout) == (3, True, False)
    assert "unknown" in blind.stdout
    assert audit(world, str(site), authority, "nearlib")[:2] == (1, {"nearlib": "poisoned"})
    assert audit(world, base, authority, "nearlib")[0] == 0, "what nginx fetched anew is right"
    assert audit(world, str(site), authority, "nearlib")[0] == 0


def test_with_everything_down_the_disk_tells_enough(served: Served, authority: Authority) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib", "rellib")[0] == 0
    spoil(piece(site, "nearlib"))
    world.stop()
    pid = int((site / "run/nginx.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}/exe").exists():
        time.sleep(0.05)
    assert audit(world, str(site), authority, "nearlib", "rellib")[:2] == (
        1,
        {"nearlib": "poisoned", "rellib": "clean"},
    )


def test_a_locked_file_that_the_index_does_not_list_is_said(served: Served, authority: Authority) -> None:
    world, _, base = served
    world.wheels["rellib"].write_bytes(b"another")  # and so has the lock another hash than the page
    code, verdicts, said = audit(world, base, authority, "rellib")
    assert (code, verdicts) == (3, {"rellib": "not to be had"})
    assert "no file there has a hash of the lock" in said


def test_what_no_lock_holds_is_counted_and_never_called_clean(served: Served, authority: Authority) -> None:
    world, site, base = served
    for name in ("nearlib", "rellib"):
        assert audit(world, base, authority, name)[0] == 0
    told = audit(world, str(site), authority, "nearlib")
    assert told[:2] == (0, {"nearlib": "clean", "rellib": "unknown"})
    done = envcheck("mirror", "audit", str(site), "--lock", str(world.root / "audited.lock"), "--strict")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (3, "packages: 1 clean, 1 unknown")
    assert "no lock holds it; its index says the same" in done.stdout
    # Its own index still says what it must be: a client would refuse it, and so does the audit.
    spoil(piece(site, "rellib"))
    told = audit(world, str(site), authority, "nearlib")
    assert told[:2] == (1, {"nearlib": "clean", "rellib": "poisoned"})


def test_a_page_that_tells_a_wrong_hash_is_purged_and_the_file_stays(served: Served, authority: Authority) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib")[0] == 0
    right = hashlib.sha256(world.wheels["nearlib"].read_bytes()).hexdigest().encode()
    for page in answers(site / "cache/index"):
        page.path.write_bytes(page.path.read_bytes().replace(right, b"f" * 64))
    code, _, said = audit(world, str(site), authority, "nearlib")
    assert code == 1
    assert "the page of nearlib-1.0-py3-none-any.whl" in said
    assert piece(site, "nearlib").exists()
    assert [page for page in answers(site / "cache/index") if b"f" * 64 in page.path.read_bytes()] == []
    assert audit(world, base, authority, "nearlib")[0] == 0


def test_slices_are_judged_as_one_file(served: Served, authority: Authority) -> None:
    world, site, base = served
    name = "farlib"
    content = world.wheels[name].read_bytes()
    assert audit(world, base, authority, name)[0] == 0
    # The last slice of three is poisoned: all go, and all come again.
    last = piece(site, name, 2 * (8 << 20))
    spoil(last)
    code, verdicts, said = audit(world, str(site), authority, name)
    assert (code, verdicts) == (1, {name: "poisoned"})
    assert len(next(iter(json.loads(said).values()))["purged"]) == 3
    assert get(url(world, base, name), authority.ca)[1] == content
    # One that is shorter than its own answer was is wrong whatever it holds.
    cut = piece(site, name)
    cut.write_bytes(cut.read_bytes()[:-1])
    code, verdicts, said = audit(world, str(site), authority, name)
    assert (code, verdicts) == (1, {name: "poisoned"})
    assert get(url(world, base, name), authority.ca)[1] == content


def test_what_cannot_be_read_is_no_healthy_cache(served: Served, authority: Authority) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib", "rellib")[0] == 0
    there = piece(site, "rellib")
    there.unlink()
    there.symlink_to(there)
    done = envcheck("mirror", "audit", str(site), "--lock", str(world.root / "audited.lock"))
    assert done.returncode == 3
    assert f"unreadable: {there}: Too many levels of symbolic links" in done.stdout
    assert done.stdout.splitlines()[-1] == "packages: 1 unreadable, 1 clean, 1 not cached"
    assert not (site / "state/audit.json").exists()


def test_pages_of_others_trees_and_pages_that_are_none_are_counted(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    (tmp_path / "state").mkdir()
    folder = tmp_path / "cache/index/a/bc"
    folder.mkdir(parents=True)
    pages = {"https://apt.example/debian/dists/x/InRelease": "text/plain", "pypi|/x/|json": "application/json"}
    for number, (key, kind) in enumerate(pages.items()):
        named = f"\nKEY: {key}\n".encode()
        told = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode()
        start = 58 + len(named)
        head = struct.pack("=Q5qIHHH", 5, 0, 0, 0, 0, 0, 0, 0, start, start + len(told))
        (folder / str(number)).write_bytes(head + named + told + b"no JSON")
    code, found = audited(tmp_path, "packages", "--lock", str(ROOT / "images/torch2.13.0-cpu-py311/torch.lock"))
    said = {name: (one["verdict"], one["about"]) for name, one in found.items() if one["verdict"] != "not cached"}
    assert code == 3
    assert said == {
        "https://apt.example/debian/dists/x/InRelease": (
            "unknown",
            "no lock holds it, and it is no page of an index",
        ),
        "pypi|/x/|json": ("unknown", "its page is no PEP 691 JSON"),
    }


@pytest.mark.parametrize(
    ("where", "cache"),
    [
        ("cache/files", "packages"),
        ("cache/index", "packages"),
        ("cache/hf", "models"),
        ("cache/registry/docker.io/docker/registry/v2/blobs", "images"),
        ("cache/registry/docker.io/docker/registry/v2/repositories", "images"),
        ("public/static", "trees"),
        ("public/static/main", "trees"),
    ],
)
def test_a_cache_that_cannot_be_read_at_all_is_said_and_no_metric_tells_of_an_audit(
    tmp_path: Path, where: str, cache: str
) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    (tmp_path / "state").mkdir()
    assert audited(tmp_path, cache)[0] == 3  # there is nothing
    assert json.loads((tmp_path / "state/audit.json").read_text())["files"] == 0
    (tmp_path / "state/audit.json").unlink()
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / where).symlink_to(tmp_path / where)
    code, found = audited(tmp_path, cache)
    unread = [one["about"] for one in found.values() if one["verdict"] == "unreadable"]
    assert (code, len(unread)) == (3, 1)
    assert unread[0].endswith(f"{where}: Too many levels of symbolic links")
    assert not (tmp_path / "state/audit.json").exists()


def test_what_was_found_is_told_also_where_it_cannot_be_written_down(served: Served, authority: Authority) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib")[0] == 0
    shutil.rmtree(site / "state")
    command = ("mirror", "audit", str(site), "--lock", str(world.root / "audited.lock"))
    done = envcheck(*command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "packages: 1 clean\n", 1)
    assert "so that no metric tells of this: No such file or directory; run it as the user" in done.stderr
    spoil(piece(site, "nearlib"))
    assert envcheck(*command).returncode == 1


def test_what_is_no_cache_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a/bc").mkdir(parents=True)
    for number, content in enumerate((b"", b"x" * 58, b"\x05" + b"\0" * 57 + b"\nKEY: a|bytes=0-1\n", b"\xff" * 4000)):
        (tmp_path / f"a/bc/{number}").write_bytes(content)
    (tmp_path / "a/bc" / ("f" * 32 + ".0000000012")).write_bytes(b"being written")
    assert [(one.path.name, one.strange) for one in slices(tmp_path) if isinstance(one, Unread)] == [
        (str(number), True) for number in range(4)
    ]
    assert list(slices(tmp_path / "absent")) == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda at: at.exists(), "holds no mirror site; run `envcheck mirror site render"),
        (lambda at: at.mkdir(), "holds no mirror site; run `envcheck mirror site render"),
        (lambda at: at.write_text("x"), "no mirror site can be read there: Not a directory; name the directory"),
        (lambda at: (at / "site.json").mkdir(parents=True), "no mirror site can be read there: Is a directory"),
    ],
)
def test_a_directory_that_is_no_site_is_one_line(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    make(tmp_path / "there")
    done = envcheck("mirror", "audit", str(tmp_path / "there"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def test_on_a_terminal_it_says_how_far_it_is_and_names_steer_none(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text(render(everything(tmp_path))["site.json"])
    for name in ("state", "public/static/a\x1b[31mred"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "public/static/a\x1b[31mred/x").touch()
    terminal, told = pty.openpty()
    command = [sys.executable, "-m", "envcheck", "mirror", "audit", str(tmp_path)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=told, env={**os.environ, "TERM": "xterm"}, check=False
    )
    os.close(told)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert done.returncode == 3
    assert "reading the caches" in seen or " read, " in seen
    assert b"a?[31mred/x: unknown" in done.stdout
    assert "[31m" not in seen


def test_a_lock_that_is_none_is_one_line(tmp_path: Path) -> None:
    for content, said in ((b"{}", "no model lock"), (b"\xff", "no `# index:"), (b"", "no `# index:")):
        (tmp_path / "lock").write_bytes(content)
        done = envcheck("mirror", "audit", "https://127.0.0.1:1", "--lock", str(tmp_path / "lock"))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
