"""The verdict of an audit: clean is said only of a recent database that could all be read and compared."""

from __future__ import annotations

import datetime as dt
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.audit.judge import ImageAudit, audit
from envcheck.images.audit.osv import OsvDatabase, load
from envcheck.images.sbom.components import Component

NOW = dt.datetime(2026, 11, 23, tzinfo=dt.timezone.utc)
MONTH = dt.timedelta(30)


def component(name: str, version: str) -> Component:
    return Component(f"venv-{name}", name, version, ("0" * 64,), f"pkg:pypi/{name}@{version}", None, None, "/opt/venv")


TORCH = component("torch", "2.5.1+cu124")


def record(name: str = "torch", identity: str = "PYSEC-1", **given: Any) -> dict[str, Any]:
    fixed = given.pop("fixed", "2.6.0")
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]
    affected = [{"package": {"ecosystem": "PyPI", "name": name}, "ranges": given.pop("ranges", ranges)}]
    return {"id": identity, "modified": "2026-11-20T10:00:00Z", "affected": affected, **given}


def database(tmp_path: Path, *records: dict[str, Any] | str) -> OsvDatabase:
    for number, one in enumerate(records):
        (tmp_path / f"{number}.json").write_text(one if isinstance(one, str) else json.dumps(one))
    return load(tmp_path)


def judged(tmp_path: Path, *records: dict[str, Any] | str, listed: tuple[Component, ...] = (TORCH,)) -> ImageAudit:
    return audit(("cell", "runtime"), listed, database(tmp_path, *records), NOW, MONTH)


def test_a_record_of_a_locked_version_is_found(tmp_path: Path) -> None:
    result = judged(tmp_path, record(aliases=["CVE-2025-32434"], summary="torch.load\n runs  code"))
    assert result.verdict == "found"
    (finding,) = result.findings
    assert (finding.package, finding.version, finding.environment) == ("torch", "2.5.1+cu124", "/opt/venv")
    assert (finding.ids, finding.fixed) == (["CVE-2025-32434", "PYSEC-1"], ["2.6.0"])
    assert finding.summary == "torch.load runs code"


@pytest.mark.parametrize(
    "other",
    [
        record(fixed="2.5.1"),
        record(name="torchvision"),
        record(withdrawn="2026-01-01T00:00:00Z"),
        {**record(), "affected": [{"package": {"ecosystem": "npm", "name": "torch"}, "versions": ["2.5.1"]}]},
    ],
)
def test_what_affects_nothing_is_clean(tmp_path: Path, other: dict[str, Any]) -> None:
    result = judged(tmp_path, other, record(name="something-else"))
    assert (result.verdict, result.findings, result.undetermined) == ("clean", [], [])


def test_names_are_compared_as_the_index_does(tmp_path: Path) -> None:
    listed = (component("typing-extensions", "4.0"),)
    assert judged(tmp_path, record(name="Typing_Extensions", fixed="5"), listed=listed).verdict == "found"


def test_records_of_one_vulnerability_are_one_finding(tmp_path: Path) -> None:
    result = judged(
        tmp_path,
        record(identity="PYSEC-1", aliases=["CVE-1"], fixed="2.6.0"),
        record(identity="GHSA-x", aliases=["CVE-2"], fixed="2.6.1"),
        record(identity="GHSA-y", aliases=["CVE-1", "CVE-2"]),
        record(identity="GHSA-z"),
    )
    assert [one.ids for one in result.findings] == [["CVE-1", "CVE-2", "GHSA-x", "GHSA-y", "PYSEC-1"], ["GHSA-z"]]
    assert result.findings[0].fixed == ["2.6.0", "2.6.1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not read"),
        ("[]", "not read"),
        ('{"id": "X"}', "not read"),
        (json.dumps({**record(name="other"), "modified": "yesterday"}), "not read"),
        (json.dumps(record(ranges=[{"type": "GIT", "events": [{"introduced": "0"}]}])), "torch 2.5.1+cu124: PYSEC-1:"),
        (json.dumps(record(fixed="two")), "'two' in its ranges is not a version"),
    ],
)
def test_a_record_that_cannot_be_read_or_compared_is_never_clean(tmp_path: Path, content: str, said: str) -> None:
    result = judged(tmp_path, record(name="other"), content)
    assert result.verdict == "undetermined"
    assert said in " ".join(result.undetermined)
    assert judged(tmp_path, record(), content).verdict == "found"


@pytest.mark.parametrize(
    ("modified", "verdict"),
    [
        ("2026-10-24T00:00:00Z", "clean"),
        ("2026-10-22T23:59:59Z", "undetermined"),
        ("2026-11-23T20:00:00.123456789Z", "clean"),
        ("2099-01-01T00:00:00Z", "undetermined"),
    ],
)
def test_an_old_database_is_undetermined_and_a_date_to_come_does_not_renew_it(
    tmp_path: Path, modified: str, verdict: str
) -> None:
    assert judged(tmp_path, record(name="other", modified=modified)).verdict == verdict


def test_no_package_is_not_clean(tmp_path: Path) -> None:
    assert judged(tmp_path, record(), listed=()).verdict == "undetermined"


def test_an_export_is_read_as_osv_dev_gives_it(tmp_path: Path) -> None:
    (tmp_path / "PyPI").mkdir()
    with zipfile.ZipFile(tmp_path / "PyPI/all.zip", "w") as archive:
        archive.writestr("PYSEC-1.json", json.dumps(record()))
        archive.writestr("README", "no record")
    for path in (tmp_path, tmp_path / "PyPI", tmp_path / "PyPI/all.zip"):
        assert [one.id for one in load(path).records] == ["PYSEC-1"]


def test_a_damaged_export_is_not_read_as_less(tmp_path: Path) -> None:
    whole = tmp_path / "all.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.json", json.dumps(record(name="other")))
        archive.writestr("b.json", json.dumps(record()))
    content = whole.read_bytes()
    whole.write_bytes(content.replace(b"torch", b"tosch", 1))
    assert any("b.json" in line for line in load(tmp_path).unreadable)
    whole.write_bytes(content[:-40])
    assert load(tmp_path).unreadable
    assert judged(tmp_path).verdict == "undetermined"


@pytest.mark.parametrize("make", ["nothing", "empty", "npm"])
def test_no_database_is_an_error_of_its_own(tmp_path: Path, make: str) -> None:
    path = tmp_path / "osv"
    if make != "nothing":
        path.mkdir()
    if make == "npm":
        other = [{"package": {"ecosystem": "npm", "name": "x"}, "versions": ["1"]}]
        (path / "x.json").write_text(json.dumps({**record(), "affected": other}))
    with pytest.raises(UnavailableError, match="with --osv"):
        load(path)
