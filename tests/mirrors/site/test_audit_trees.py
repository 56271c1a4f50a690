"""Poison in what a site serves out of its own disk: found by the version's manifest, and served no more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from envcheck.mirrors.site.audit.report import AuditFinding
from envcheck.mirrors.site.audit.trees import audit as audited
from envcheck.mirrors.store import publishing, versions
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from tests.certificates import Certificate
from tests.mirrors.site.audits import audit, spoil
from tests.mirrors.site.test_render import site
from tests.mirrors.site.test_served import ServedSite
from tests.mirrors.site.upstreams import get
from tests.mirrors.store.conftest import contents, make_wheel, model, store

__all__ = ["contents", "make_wheel", "model", "store"]


def findings_of(root: Path, **changes: object) -> dict[str, AuditFinding]:
    return {one.name: one for one in audited(site(root, **changes))}


def published(root: Path, store: Store, contents: Contents, *names: str) -> versions.Manifest:
    """Publish a version and have the site serve copies of it."""
    publishing.publish(store, contents, keep=2)
    for name in names:
        shutil.copytree(store.root / "current", root / "public/static" / name)
    return versions.read_manifest(store, 1)


@pytest.mark.tools
def test_a_poisoned_tree_serves_the_wrong_file_no_more_and_the_right_one_after_the_next_copy(
    served: ServedSite, authority: Certificate, store: Store, contents: Contents
) -> None:
    _, root, base = served
    manifest = published(root, store, contents, "main")
    wheel = next(file.path for file in manifest.files if file.path.endswith("alpha-1.0-py3-none-any.whl"))
    there = root / "public/static/main" / wheel
    there.chmod(0o644)
    right = spoil(there)
    assert get(f"{base}/static/main/{wheel}", authority.ca)[1] != right
    code, findings_of = audit(root, "trees")
    assert code == 1
    assert {name for name, one in findings_of.items() if one["verdict"] == "poisoned"} == {f"main/{wheel}"}
    assert {one["verdict"] for one in findings_of.values()} == {"poisoned", "clean"}
    assert len(findings_of) == len(manifest.files)
    assert findings_of[f"main/{wheel}"]["purged"] == [str(there)]
    assert get(f"{base}/static/main/{wheel}", authority.ca)[0] == 404
    shutil.copy2(store.root / "current" / wheel, there)
    assert get(f"{base}/static/main/{wheel}", authority.ca)[1] == right
    assert audit(root, "trees")[0] == 0


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.timeout(120)
def test_a_pipe_or_a_device_in_a_tree_ends_no_audit(
    tmp_path: Path, store: Store, contents: Contents, kind: str
) -> None:
    """A copy with its archive option brings both: an audit waited for ever for what never ends."""
    answer = published(tmp_path, store, contents, "main", "other")
    manifest, file = (
        tmp_path / "public/static/main/manifest.json",
        tmp_path / "public/static/other" / answer.files[0].path,
    )
    for path in (manifest, file):
        path.parent.chmod(0o755)
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    result = findings_of(tmp_path)
    assert result["main/manifest.json"].verdict == "unreadable"
    assert result[f"other/{answer.files[0].path}"].verdict == "unreadable"
    assert "neither a file nor a directory" in result[f"other/{answer.files[0].path}"].about


def test_each_file_is_judged_by_the_manifest_nearest_to_it_and_others_by_nobody(
    tmp_path: Path, store: Store, contents: Contents
) -> None:
    manifest = published(tmp_path, store, contents, "main", "deep/down")
    static = tmp_path / "public/static"
    (static / "main/extra.bin").write_bytes(b"x")
    (static / "loose").mkdir()
    (static / "loose/a.bin").write_bytes(b"x")
    (static / "alone.bin").write_bytes(b"x")
    (static / "gone").symlink_to(tmp_path / "nowhere")
    (static / "deep/down" / manifest.files[0].path).unlink()
    verdicts = {name: one.verdict for name, one in findings_of(tmp_path, store=str(store.root)).items()}
    odd = {name: verdict for name, verdict in verdicts.items() if verdict != "clean"}
    assert odd == {
        "main/extra.bin": "unknown",
        "loose/a.bin": "unknown",
        "alone.bin": "unknown",
        "gone": "unreadable",
        f"deep/down/{manifest.files[0].path}": "missing",
    }
    assert len(verdicts) - len(odd) == 3 * len(manifest.files) - 1
    # The version that is current holds the store's own object: both are wrong.
    wheel = contents.wheels[0]
    path = store.path(wheel.sha256)
    path.chmod(0o644)
    spoil(path)
    poisoned = [one for one in findings_of(tmp_path, store=str(store.root)).values() if one.verdict == "poisoned"]
    assert [one.name for one in poisoned] == [f"store/files/{wheel.sha256}/{wheel.name}"]
    assert "envcheck store --store " in poisoned[0].fix
    assert " verify`" in poisoned[0].fix


def test_a_manifest_that_is_none_or_cannot_be_read_calls_nothing_clean(
    tmp_path: Path, store: Store, contents: Contents
) -> None:
    published(tmp_path, store, contents, "main", "other")
    static = tmp_path / "public/static"
    (static / "main/manifest.json").write_text("{}")
    (static / "other/manifest.json").unlink()
    (static / "other/manifest.json").symlink_to(static / "other/manifest.json")
    message = findings_of(tmp_path)
    assert {one.verdict for one in message.values()} == {"unknown", "unreadable"}
    assert message["main/manifest.json"].about.startswith("not the manifest of a published tree")
    assert message["other/manifest.json"].verdict == "unreadable"
    assert findings_of(tmp_path / "absent", store=str(tmp_path / "none")) == {}
