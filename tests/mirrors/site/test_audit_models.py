"""An audit of models: an endpoint's files are compared with a lock, of a URL and of a site with a real olah."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.mirrors.hub.revision import HubFile, Revision, format_lock
from tests.mirrors.hub.conftest import COMMIT, FILES, LARGE, REPO, Hub, hubs, sha256
from tests.mirrors.site.audits import audit, verdicts
from tests.mirrors.site.conftest import envcheck
from tests.mirrors.site.test_olah import TOKEN, ServedSite, served

pytestmark = pytest.mark.tools
__all__ = ["hubs", "served"]
PREFIX = f"{REPO}@{COMMIT[:12]}"


def wrong(content: bytes) -> bytes:
    """Return other bytes of the same length."""
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def lock(folder: Path) -> str:
    files = [HubFile(path=path, size=len(content), sha256=sha256(content)) for path, content in FILES.items()]
    (folder / "model.lock").write_bytes(format_lock(Revision(repo=REPO, revision=COMMIT, files=files)))
    return str(folder / "model.lock")


def test_an_endpoint_is_compared_with_a_lock(hubs: Callable[[], Hub], tmp_path: Path) -> None:
    hub = hubs()
    command = ("mirror", "audit", hub.url, "--lock", lock(tmp_path))
    done = envcheck(*command)
    assert (done.returncode, done.stdout) == (0, "models: 4 clean\n")
    hub.content[LARGE] = wrong(FILES[LARGE])
    del hub.content["vocab.txt"]
    code, findings = audit(hub.url, "models", "--lock", lock(tmp_path))
    assert code == 1
    assert verdicts(findings) == {
        f"{PREFIX}/{LARGE}": "poisoned",
        f"{PREFIX}/vocab.txt": "unavailable",
        f"{PREFIX}/config.json": "clean",
        f"{PREFIX}/tokenizer_config.json": "clean",
    }


def test_a_poisoned_cache_of_a_site_is_found_with_its_token(
    served: ServedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock(tmp_path)
    options = ("--lock", path, "--ca", str(served.ca))
    code, findings = audit(served.site, "models", *options)
    assert (code, set(verdicts(findings).values())) == (3, {"unavailable"}), "the site wants a token"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    served.hub.content[LARGE] = wrong(FILES[LARGE])
    assert served.taken(tmp_path / "one", HF_TOKEN=TOKEN).returncode == 0
    served.hub.content.update(FILES)
    code, findings = audit(served.site, "models", *options)
    assert (code, findings[f"{PREFIX}/{LARGE}"]["verdict"]) == (1, "poisoned")
    assert f"rm -r {served.site}/cache/hf" in findings[f"{PREFIX}/{LARGE}"]["fix"]
