"""A poisoned cache: found by the lock's hashes, purged, and right again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envcheck.mirrors.site.cachefile import slices
from tests.mirrors.site.conftest import Authority, World, envcheck
from tests.mirrors.site.test_served import Served, lock
from tests.mirrors.site.upstreams import get

pytestmark = pytest.mark.tools


def audit(world: World, where: str, authority: Authority, *names: str) -> tuple[int, dict[str, str], str]:
    """Audit a lock of these names; return the exit code, the verdicts and all that was said."""
    path = world.root / "audited.lock"
    pins = lock(world, *names).replace(" --hash", " \\\n    --hash")
    path.write_text(f"# test, layer base\n# index: pypi\n{pins}")
    done = envcheck("mirror", "audit", where, "--lock", str(path), "--ca", str(authority.ca), "--json")
    files = json.loads(done.stdout)["files"] if done.stdout else []
    return done.returncode, {one["name"].partition("-")[0]: one["verdict"] for one in files}, done.stdout + done.stderr


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
    assert json.loads((site / "state/audit.json").read_text()) | {"time": 0} == {"time": 0, "files": 3, "poisoned": 0}


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
    before = len(world.far.sent())
    told = audit(world, str(site), authority, "farlib", "rellib")
    assert told[:2] == (3, {"farlib": "in part", "rellib": "not cached"}), told
    assert len(world.far.sent()) == before


def test_an_audit_that_could_ask_nobody_is_not_told_as_one(served: Served, authority: Authority) -> None:
    world, site, base = served
    assert audit(world, base, authority, "nearlib")[0] == 0
    done = envcheck("mirror", "audit", str(site), "--lock", str(world.root / "audited.lock"))  # without its CA
    assert done.returncode == 3
    assert "TLS" in done.stdout
    assert not (site / "state/audit.json").exists()


def test_a_locked_file_that_the_index_does_not_list_is_said(served: Served, authority: Authority) -> None:
    world, site, _ = served
    world.wheels["rellib"].write_bytes(b"another")  # and so has the lock another hash than the page
    code, verdicts, said = audit(world, str(site), authority, "rellib")
    assert (code, verdicts) == (3, {"rellib": "not to be had"})
    assert "no file there has a hash of the lock" in said


def test_what_is_no_cache_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a/bc").mkdir(parents=True)
    for number, content in enumerate((b"", b"x" * 58, b"\x05" + b"\0" * 57 + b"\nKEY: a|bytes=0-1\n", b"\xff" * 4000)):
        (tmp_path / f"a/bc/{number}").write_bytes(content)
    assert list(slices(tmp_path)) == []
