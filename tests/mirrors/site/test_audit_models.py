"""A poisoned Hugging Face cache: a real olah takes wrong bytes, huggingface_hub takes them of it, audits end that."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.mirrors.hf import Entry as Locked
from envcheck.mirrors.hf import Revision, format_lock
from envcheck.mirrors.site.audit_olah import Entry, entries
from tests.mirrors.hub.conftest import COMMIT, FILES, LARGE, REPO, Hub, hubs, sha256
from tests.mirrors.site.audits import Findings, verdicts
from tests.mirrors.site.audits import audit as audited
from tests.mirrors.site.conftest import envcheck
from tests.mirrors.site.test_olah import TOKEN, Served, served
from tests.mirrors.site.upstreams import get

pytestmark = pytest.mark.tools
__all__ = ["hubs", "served"]
RIGHT = sha256(FILES[LARGE])
CHUNK = 1 << 20


def audit(served: Served, *options: str) -> tuple[int, Findings]:
    """Audit a site that goes on serving; return the exit code and the findings about models, by their files' names."""
    code, found = audited(served.site, "models", "--cell", "torch2.13.0-cpu-py311", *options)
    return code, {name.removeprefix(f"{REPO}@{COMMIT[:12]}/"): one for name, one in found.items()}


def wrong(content: bytes) -> bytes:
    """Return other bytes of the same length."""
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def locked(served: Served) -> str:
    """Return a model's lock, made by envcheck from the endpoint itself."""
    path = served.site.parent / "model.lock.json"
    options = ("--mirror", str(served.site.parent / "site.yaml"), "--trust-mirror", "--output", str(path))
    done = envcheck("lock", "--model", f"{REPO}@{COMMIT}", *options)
    assert done.returncode == 0, done.stderr
    return str(path)


def cached(served: Served, name: str) -> Entry:
    found = [one for one in entries(served.site / "cache/hf") if isinstance(one, Entry)]
    return next(one for one in found if one.path.parts[-len(Path(name).parts) :] == Path(name).parts)


def spoil(served: Served, name: str) -> None:
    """Have olah's cache hold wrong bytes that its own checksums vouch for: what it took from a wrong upstream."""
    entry = cached(served, name)
    content = wrong(entry.blocks[0].read_bytes())
    entry.blocks[0].write_bytes(content)
    sums = [zlib.crc32(content[at : at + CHUNK]) for at in range(0, len(content), CHUNK)]
    (entry.path / "chunks.crc").write_bytes(b"".join(one.to_bytes(4, "little") for one in sums))


def taken(served: Served, into: Path) -> str:
    done = served.taken(into, HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def got(served: Served, name: str) -> bytes:
    """Return a file as any client gets it."""
    at = f"https://127.0.0.1:{served.port + 1}/{REPO}/resolve/{COMMIT}/{name}"
    return get(at, served.ca, Authorization=f"Bearer {TOKEN}")[1]


def test_poison_is_purged_while_the_site_serves_and_the_next_client_gets_the_right_bytes(
    served: Served, tmp_path: Path
) -> None:
    lock = locked(served)
    for name in (LARGE, "config.json"):
        served.hub.content[name] = wrong(FILES[name])
    assert taken(served, tmp_path / "one") == sha256(wrong(FILES[LARGE]))
    served.hub.content.update(FILES)
    assert taken(served, tmp_path / "two") == sha256(wrong(FILES[LARGE])), "olah serves it for ever"
    code, found = audit(served, "--lock", lock)
    assert code == 1
    assert verdicts(found) == {
        LARGE: "poisoned",
        "config.json": "poisoned",
        "vocab.txt": "clean",
        "tokenizer_config.json": "clean",
    }
    assert RIGHT in found[LARGE]["about"]
    assert all(one["by"] == "lock" for one in found.values())
    assert taken(served, tmp_path / "three") == RIGHT
    assert got(served, "config.json") == FILES["config.json"]
    code, found = audit(served, "--lock", lock)
    assert (code, set(verdicts(found).values())) == (0, {"clean"})
    # What clients take while an audit purges is right, or no answer at all; and the cache is whole afterwards.
    spoil(served, LARGE)
    seen: list[bytes] = []
    clients = [threading.Thread(target=lambda: seen.append(got(served, LARGE))) for _ in range(8)]
    for client in clients[:4]:
        client.start()
    assert audit(served, "--lock", lock)[0] == 1
    for client in clients[4:]:
        client.start()
    for client in clients:
        client.join()
    assert {one for one in seen if len(one) == len(FILES[LARGE])} <= {FILES[LARGE], wrong(FILES[LARGE])}
    assert got(served, LARGE) == FILES[LARGE]
    assert audit(served, "--lock", lock)[0] == 0
    # An audit that is killed once the header is gone leaves nothing that would be served.
    spoil(served, LARGE)
    (cached(served, LARGE).path / "meta.bin").unlink()
    assert got(served, LARGE) == FILES[LARGE]
    # What the cache says of a file is poison too, where it contradicts the lock.
    bodies = list((served.site / "cache/hf/api").rglob(f"{LARGE}/paths-info_*.json.body"))
    assert len(bodies) == 1
    bodies[0].write_bytes(bodies[0].read_bytes().replace(RIGHT.encode(), b"e" * 64))
    code, found = audit(served, "--lock", lock)
    assert code == 1
    assert [name.rpartition("/")[2] for name, one in found.items() if one["verdict"] == "poisoned"] == [
        bodies[0].name.removesuffix(".body")
    ]
    assert not bodies[0].exists()
    assert got(served, LARGE) == FILES[LARGE]
    assert audit(served, "--lock", lock)[0] == 0


def test_without_a_lock_the_hubs_own_hashes_judge_and_what_has_none_is_never_clean(
    served: Served,
) -> None:
    for name, content in FILES.items():
        assert got(served, name) == content
    code, found = audit(served)
    assert (code, {(one["verdict"], one["by"]) for one in found.values()}) == (0, {("clean", "upstream")})
    spoil(served, LARGE)
    spoil(served, "vocab.txt")
    assert got(served, LARGE) != FILES[LARGE]
    code, found = audit(served)
    assert (code, found[LARGE]["verdict"], found["vocab.txt"]["verdict"]) == (1, "poisoned", "poisoned")
    assert (got(served, LARGE), got(served, "vocab.txt")) == (FILES[LARGE], FILES["vocab.txt"])
    cached(served, LARGE).blocks[0].unlink()
    for listing in (served.site / "cache/hf/api").rglob("paths-info/*/config.json/*"):
        listing.unlink()
    (cached(served, "vocab.txt").path / "meta.bin").write_bytes(b"OLAH")
    code, found = audit(served)
    assert code == 0
    assert verdicts(found) == {
        LARGE: "in part",
        "config.json": "unknown",
        f"files/models/{REPO}/resolve/{COMMIT}/vocab.txt/meta.bin": "unknown",
        "tokenizer_config.json": "clean",
    }
    assert audit(served, "--strict")[0] == 3


def test_an_endpoint_is_judged_from_outside_too(hubs: Callable[[], Hub], tmp_path: Path) -> None:
    hub = hubs()
    files = [Locked(path=path, size=len(content), sha256=sha256(content)) for path, content in FILES.items()]
    (tmp_path / "lock").write_bytes(format_lock(Revision(repo=REPO, revision=COMMIT, files=files)))
    command = ("mirror", "audit", hub.url, "--lock", str(tmp_path / "lock"))
    done = envcheck(*command)
    assert (done.returncode, done.stdout) == (0, "models: 4 clean\n")
    hub.content[LARGE] = wrong(FILES[LARGE])
    del hub.content["vocab.txt"]
    done = envcheck(*command)
    assert done.returncode == 1
    assert f"{REPO}@{COMMIT[:12]}/{LARGE}: poisoned: " in done.stdout
    assert "run this on the mirror itself, with its directory, to remove it" in done.stdout
    assert done.stdout.splitlines()[-1] == "models: 2 clean, 1 poisoned, 1 not to be had"
