"""What a report states of an image: as in-toto writes results, without names, and never more than was run."""

import gzip
import hashlib
import json
from typing import Any

import msgspec
import pytest
from msgspec import structs

from envcheck.checks import limits
from envcheck.registry import judge, publishing
from envcheck.registry import statement as statements
from envcheck.registry.publishing import UnprovableError
from envcheck.registry.statement import MalformedError, Statement
from envcheck.reports.model import RunReport
from envcheck.runner.judging import verdict
from envcheck.runner.schema import Spread
from tests import proofs
from tests.tables import each


def state(report: RunReport, levels: dict[str, str] | None = None) -> Statement:
    publishing.refuse_unpublishable(report)
    return publishing.state(publishing.pack(report), proofs.IMAGE, levels or {})


def refusal(report: RunReport, levels: dict[str, str] | None = None) -> str:
    with pytest.raises(UnprovableError) as refused:
        state(report, levels)
    assert refused.value.exit_code == 1
    return refused.value.message


def ending(report: RunReport, status: Any) -> RunReport:
    outcomes = [structs.replace(one, status=status) if one.id == "memlock" else one for one in report.outcomes]
    return structs.replace(report, outcomes=outcomes, verdict=verdict(outcomes, report.mode))


def test_a_run_on_a_gpu_is_stated_as_the_contract_shows() -> None:
    packed = proofs.packed()
    document = json.loads(msgspec.json.encode(proofs.stated()))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["subject"] == [{"name": "registry.example/envcheck/torch", "digest": {"sha256": "a" * 64}}]
    assert document["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    predicate = document["predicate"]
    assert (predicate["result"], predicate["warnedTests"], predicate["failedTests"]) == (
        "WARNED",
        ["driver-branch"],
        [],
    )
    assert "memlock" in predicate["passedTests"]
    assert predicate["passedTests"] == sorted(predicate["passedTests"])
    digest = hashlib.sha256(limits.FILE.read_bytes()).hexdigest()
    assert predicate["configuration"] == [{"name": "limits", "digest": {"sha256": digest}}]
    gpu = {"gpu": "NVIDIA H200", "cc": "9.0", "gpus": 1, "mig": False}
    assert predicate["envcheck"] == {
        "schema": "envcheck/proof/1",
        "tool": "0.1.0",
        "cell": "torch2.8.0-cu128-py312",
        "target": "",
        "level": "full",
        "mode": "gpu",
        "exit_code": 0,
        "started": "2026-11-21T09:00:00Z",
        "ended": "2026-11-21T09:02:00Z",
        "image": {"manifest": proofs.MANIFEST, "config": proofs.CONFIG},
        "covers": {**gpu, "driver": "570.124.06", "arch": "x86_64"},
        "report": {"digest": packed.reference.digest, "size": len(packed.content)},
        "undetermined": [],
    }


def test_a_run_on_a_cpu_says_so_and_names_the_lock() -> None:
    statement = proofs.stated("cpu")
    covers = statement.facts.covers
    assert (statement.facts.mode, statement.facts.cell) == ("cpu", "torch2.13.0-cpu-py311")
    assert (covers.gpu, covers.gpus, covers.driver) == (None, 0, None)
    lock = proofs.recorded("cpu").promises["lock"]
    assert statement.predicate.configuration[1].name == "lock"
    assert statement.predicate.configuration[1].digest.sha256 == lock


def test_names_are_pseudonyms() -> None:
    report = proofs.report()
    host = structs.replace(report.host, name="gpu-host-17.secret.example")
    outcomes = [
        structs.replace(o, summary="gpu-host-17.secret.example has no port") if o.id == "nvlink" else o
        for o in report.outcomes
    ]
    packed = publishing.pack(structs.replace(report, host=host, outcomes=outcomes))
    assert b"gpu-host-17" not in msgspec.json.encode(publishing.state(packed, proofs.IMAGE, {}))
    assert b"gpu-host-17" not in gzip.decompress(packed.content)
    assert judge.unpack(packed.content) == packed.report


def test_what_is_not_over_is_refused() -> None:
    report = proofs.report()
    assert "unfinished" in refusal(structs.replace(report, ended=""))
    assert "1 checks were not run" in refusal(structs.replace(report, outcomes=report.outcomes[1:]))


def test_a_repeated_run_that_was_cut_short_is_refused() -> None:
    report = proofs.report()
    plan = structs.replace(report.plan, repeat=2)
    twice = [structs.replace(o, spread=Spread(rounds=2, statuses={}, told_in=1)) for o in report.outcomes]
    assert state(structs.replace(report, plan=plan, outcomes=twice)).passed
    partly = [*twice[:-1], report.outcomes[-1]]
    assert "not every check was run 2 times" in refusal(structs.replace(report, plan=plan, outcomes=partly))
    assert "repeat is unfinished" in refusal(structs.replace(report, plan=plan))


def test_a_run_on_a_cpu_is_not_called_one_on_gpus() -> None:
    cpu, gpu = proofs.report("cpu"), proofs.report()
    assert "torch saw none: the node failed" in refusal(
        structs.replace(cpu, plan=structs.replace(cpu.plan, require_gpu=True))
    )
    assert "which GPU and driver" in refusal(structs.replace(cpu, mode="gpu"))
    blind = [structs.replace(o, ranks=[]) for o in gpu.outcomes]
    assert "measured on 0 of them" in refusal(structs.replace(gpu, outcomes=blind))


def test_a_pass_says_of_what() -> None:
    report = proofs.report()
    nameless = structs.replace(report, promises={}, environment={**report.environment, "torch": "2.8.0a0+git"})
    assert "which cell" in refusal(nameless)
    unlabelled = structs.replace(report, promises={})
    assert state(unlabelled).facts.cell == "torch2.8.0-cu128-py312"
    unread = {k: v for k, v in report.snapshot.signals.items() if k != "driver.version"}
    undriven = structs.replace(report, snapshot=type(report.snapshot)("", unread, report.snapshot.gpus))
    assert "which GPU and driver" in refusal(undriven)
    assert "no check ran torch" in refusal(structs.replace(report, mode="unknown"))
    for forged in (5, "x", {"name": 5}, [5]):
        odd = structs.replace(report, environment={**report.environment, "devices": forged})
        assert "on 1 of them" in refusal(odd) or "which GPU" in refusal(odd), forged
    mixed = [*report.environment["devices"], {"name": proofs.H100}]
    assert "several models" in refusal(structs.replace(report, environment={**report.environment, "devices": mixed}))
    eight = report.environment["devices"] * 8
    counted = structs.replace(report, environment={**report.environment, "devices": eight, "device_count": 8})
    assert refusal(counted) == "the report names 8 GPUs, and a check of all GPUs measured on 1 of them"


@each("missing, level", [({}, "full"), ({"new": "full"}, "standard"), ({"new": "standard"}, "quick")])
def test_a_level_is_proven_when_all_its_checks_were_run(missing: dict[str, str], level: str) -> None:
    assert state(proofs.report(), missing).facts.level == level


def test_a_check_that_was_left_out_lowers_the_level() -> None:
    report = proofs.report()
    outcomes = [
        structs.replace(o, status="skip", left_out=True) if o.id == "fingerprint" else o for o in report.outcomes
    ]
    assert state(structs.replace(report, outcomes=outcomes)).facts.level == "standard"
    assert "without checks of level static (new), so it proves no level" in refusal(report, {"new": "static"})


@each(
    "cell, torch, fits",
    [
        ("torch2.8.0-cu128-py312", "2.8.0+cu128", True),
        ("torch2.8.0-cu128-py312", "2.8.0a0+git", True),
        ("torch2.9.1-cu128-py312", "2.8.0+cu128", False),
        ("torch2.8.0-cu129-py312", "2.8.0+cu128", False),
    ],
)
def test_a_label_does_not_make_another_torch_of_an_image(cell: str, torch: str, fits: bool) -> None:  # noqa: FBT001 (a table)
    report = proofs.report()
    labelled = structs.replace(report, promises={"cell": cell}, environment={**report.environment, "torch": torch})
    if fits:
        assert state(labelled).facts.cell == cell
    else:
        assert refusal(labelled) == f"the image's labels name {cell}, and it has torch {torch}"
    assert state(ending(labelled, "fail")).predicate.result == "FAILED"


def test_what_is_undetermined_is_refused_or_attached_as_such() -> None:
    cut = ending(proofs.report(), "error")
    assert "neither proves nor revokes" in refusal(cut)
    stated = publishing.state(publishing.pack(cut), proofs.IMAGE, {})
    assert (stated.word, stated.failed, stated.facts.undetermined) == ("UNDETERMINED", [], ["memlock"])
    assert state(ending(proofs.report(), "fail")).word == "FAILED"


def test_a_verdict_that_its_outcomes_contradict_is_refused() -> None:
    report = proofs.report()
    for status in ("fail", "error"):
        assert "its outcomes make it" in refusal(structs.replace(ending(report, status), verdict=report.verdict))
        assert "make it pass" in refusal(structs.replace(report, verdict=ending(report, status).verdict))


def test_the_checks_of_today_make_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "remote_images", lambda *_: [proofs.IMAGE])
    repository: Any = None
    with pytest.raises(UnprovableError, match="proves no level"):
        publishing.prepare(repository, "latest", proofs.report())
    report = proofs.whole(proofs.report())
    assert len(report.outcomes) > len(proofs.report().outcomes)
    assert publishing.prepare(repository, "latest", report).statement.facts.level == "full"


@each("ended", ["2026-11-21T09:02:00", "yesterday", "9999-12-31T23:59:59-14:00"])
def test_a_time_without_a_zone_is_refused(ended: str) -> None:
    assert "not a time with a zone" in refusal(proofs.report(ended=ended))


def changed(**changes: Any) -> bytes:
    document = json.loads(msgspec.json.encode(proofs.stated()))
    for path, value in changes.items():
        *where, last = path.split("__")
        inner = document
        for step in where:
            inner = inner[step]
        inner[last] = value
    return json.dumps(document).encode()


@each(
    "content",
    [
        changed(predicate__envcheck__ended="2026-11-21T09:02:00+00:00"),
        changed(predicate__envcheck__ended="2026-11-21T08:02:00Z"),
        changed(predicate__envcheck__covers__driver="570.٣"),
        changed(predicate__envcheck__covers__gpus=True),
        changed(predicate__envcheck__schema="envcheck/proof/2"),
        changed(predicate__failedTests=["memlock"]),
        changed(predicate__passedTests=[]),
        changed(predicate__warnedTests=[]),
        changed(predicate__envcheck__exit_code=1),
        changed(_type="https://in-toto.io/Statement/v0.1"),
    ],
)
def test_a_statement_that_is_malformed_or_contradicts_itself_is_refused(content: bytes) -> None:
    with pytest.raises(MalformedError):
        statements.decode(content)


def test_evidence_is_bounded_and_a_report() -> None:
    bomb = gzip.compress(bytes(65 << 20), mtime=0)
    assert len(bomb) < 100_000
    for content, why in (
        (bomb, "larger than 67108864 bytes"),
        (b"", "cannot be read"),
        (b"{}", "not gzip"),
        (gzip.compress(b"{}"), "cannot be read"),
        (proofs.packed().content[:-9], "not gzip"),
        (gzip.compress(b"[" * 100_000), "cannot be read"),
    ):
        with pytest.raises(MalformedError, match=why):
            judge.unpack(content)


def test_what_no_reader_would_take_is_not_published() -> None:
    report = proofs.report("h100x8-slow-gpu")
    backwards = structs.replace(report, started=report.ended, ended=report.started)
    twice = structs.replace(report, outcomes=[*report.outcomes, report.outcomes[0]])
    for wrong, why in ((backwards, "before it started"), (twice, "two results")):
        with pytest.raises(UnprovableError, match=why):
            publishing.state(publishing.pack(wrong), proofs.IMAGE, {})
