"""The verdict of an audit: clean is said only of a recent database that could all be read and compared."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from envcheck.images.audit.judge import FLOOR, AuditTerms, ImageAudit, audit
from envcheck.images.audit.osv import OsvDatabase, load
from envcheck.images.sbom.components import Component

NOW = dt.datetime(2026, 11, 23, tzinfo=dt.timezone.utc)
MONTH = dt.timedelta(30)
SELECTION = AuditTerms(NOW, MONTH, partial=True)


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


def judged(
    tmp_path: Path,
    *records: dict[str, Any] | str,
    listed: tuple[Component, ...] = (TORCH,),
    terms: AuditTerms = SELECTION,
) -> ImageAudit:
    return audit(("cell", "runtime"), listed, database(tmp_path, *records), terms)


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
    ("content", "message"),
    [
        ("{", "not read"),
        ("[]", "not read"),
        ('{"id": "X"}', "not read"),
        (json.dumps({**record(name="other"), "modified": "yesterday"}), "not read"),
        (json.dumps(record(ranges=[{"type": "GIT", "events": [{"introduced": "0"}]}])), "torch 2.5.1+cu124: PYSEC-1:"),
        (json.dumps(record(fixed="two")), "'two' in its ranges is not a version"),
        (json.dumps(record(ranges=[{"type": "ECOSYSTEM", "events": []}])), "does not say where it begins"),
        ('{"id": "A", "x":' + "[" * 200_000, "not read"),
    ],
)
def test_a_record_that_cannot_be_read_or_compared_is_never_clean(tmp_path: Path, content: str, message: str) -> None:
    result = judged(tmp_path, record(name="other"), content)
    assert result.verdict == "undetermined"
    assert message in " ".join(result.undetermined)
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


def test_what_is_withdrawn_in_the_future_stands(tmp_path: Path) -> None:
    assert judged(tmp_path, record(withdrawn="2026-11-23T00:00:01Z")).verdict == "found"
    assert judged(tmp_path, record(withdrawn="2026-11-23T00:00:00Z")).verdict == "clean"


@pytest.mark.parametrize("ecosystem", ["pypi", "PyPI ", "PYPI:https://packages.example", " pypi : here"])
def test_an_ecosystem_is_known_in_any_spelling(tmp_path: Path, ecosystem: str) -> None:
    affected = [{"package": {"ecosystem": ecosystem, "name": " Torch"}, "versions": ["2.5.1"]}]
    assert judged(tmp_path, {**record(), "affected": affected}).verdict == "found"


def test_the_versions_that_fix_are_in_order(tmp_path: Path) -> None:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": at}]} for at in ("9.10", "9.9", "10")]
    (finding,) = judged(tmp_path, record(ranges=ranges)).findings
    assert finding.fixed == ["9.9", "9.10", "10"]


def test_a_database_of_few_records_is_no_whole_one(tmp_path: Path) -> None:
    whole = AuditTerms(NOW, MONTH)
    few = judged(tmp_path, *[record(name="other")] * FLOOR, terms=whole)
    assert few.verdict == "undetermined"
    assert [line for line in few.undetermined if line.startswith("1 record of PyPI") and "--partial" in line]
    many = judged(tmp_path, *[record(name="other", identity=f"X-{n}") for n in range(FLOOR)], terms=whole)
    assert (many.verdict, many.partial) == ("clean", False)
    assert judged(tmp_path, record(name="other")).partial


def test_no_package_is_not_clean(tmp_path: Path) -> None:
    assert judged(tmp_path, record(), listed=()).verdict == "undetermined"
