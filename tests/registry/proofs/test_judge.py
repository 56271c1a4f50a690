"""Which proof holds, and for which node: every refusal, both sides of every limit, what a newer failure takes back."""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import structs

from envcheck.matrix.file.load import load
from envcheck.node.snapshot import Signal, Snapshot
from envcheck.registry import envelope, publishing
from envcheck.registry import statement as statements
from envcheck.registry.attachments import RemoteImage
from envcheck.registry.judge import ListedProof, NodeFacts, Policy, concerns, node_of, uncovered
from envcheck.registry.publishing import UnprovableError, ran
from envcheck.registry.statement import ProofRefusal, Rejection, Sha256, Subject
from envcheck.reports.model import RunReport
from envcheck.runner.schema import TargetFacts
from envcheck.signing import PrivateKey
from tests import proofs
from tests.builders import machine
from tests.tables import each

MINUTE: Final = dt.timedelta(minutes=1)
ENDED: Final = proofs.NOW - 60 * MINUTE


def at(moment: dt.datetime) -> dict[str, str]:
    return {"started": statements.written(moment - MINUTE), "ended": statements.written(moment)}


def word(*lying: ListedProof, policy: Policy, **how: Any) -> str | None:
    """Return the refusal of the image, None where a proof of it holds."""
    result = proofs.judged(*lying, policy=policy, **how)
    assert (result.chosen is None) == (result.refused is not None)
    return result.refused.reason.value if result.refused else None


def subjects(*digests: str) -> list[Subject]:
    return [Subject(name="x", digest=Sha256(sha256=digest.removeprefix("sha256:"))) for digest in digests]


def unfetched(refused: ProofRefusal) -> ListedProof:
    return ListedProof("sha256:0", Rejection(refused, "the registry said so"), lambda _: b"")


# What lies beside the image, by the refusal it must end in; the policy and node are the default's otherwise.
REFUSED: Final[dict[ProofRefusal, Callable[[PrivateKey, PrivateKey], list[ListedProof]]]] = {
    ProofRefusal.NO_PROOF: lambda _k, _o: [],
    ProofRefusal.DANGLING: lambda _k, _o: [unfetched(ProofRefusal.DANGLING)],
    ProofRefusal.TAMPERED: lambda k, _o: [
        proofs.attached(proofs.exchanged(*(proofs.bundle(proofs.stated(tool=tool), k) for tool in "01")))
    ],
    ProofRefusal.UNKNOWN_FORMAT: lambda _k, _o: [proofs.attached(b"{}")],
    ProofRefusal.WRONG_KEY: lambda _k, o: [proofs.attached(proofs.stated(), o)],
    ProofRefusal.WRONG_SUBJECT: lambda k, _o: [proofs.attached(proofs.stated(subject=subjects(proofs.OTHER)), k)],
    ProofRefusal.FROM_THE_FUTURE: lambda k, _o: [
        proofs.attached(proofs.stated(**at(proofs.NOW + dt.timedelta(days=1))), k)
    ],
    ProofRefusal.FAILED: lambda k, _o: [proofs.attached(proofs.failed(proofs.stated()), k)],
    ProofRefusal.NOT_A_GPU_RUN: lambda k, _o: [proofs.attached(proofs.stated("cpu", **at(ENDED)), k)],
    ProofRefusal.WRONG_ARCH: lambda k, _o: [proofs.attached(proofs.stated(arch="aarch64"), k)],
    ProofRefusal.WRONG_GPU: lambda k, _o: [proofs.attached(proofs.stated(gpu=proofs.H100), k)],
    ProofRefusal.TOO_FEW_GPUS: lambda k, _o: [proofs.attached(proofs.stated(gpus=0), k)],
    ProofRefusal.DRIVER_TOO_OLD: lambda k, _o: [proofs.attached(proofs.stated(driver="580.65.06"), k)],
    ProofRefusal.DRIVER_UNSUPPORTED: lambda k, _o: [proofs.attached(proofs.stated(cell="torch2.8.0-cu129-py399"), k)],
    ProofRefusal.LEVEL_TOO_LOW: lambda k, _o: [proofs.attached(proofs.stated(level="quick"), k)],
    ProofRefusal.CHECK_MISSING: lambda k, _o: [
        proofs.attached(proofs.stated(passed_tests=["amp"], warned_tests=["memlock"]), k)
    ],
    ProofRefusal.EXPIRED: lambda k, _o: [proofs.attached(proofs.stated(**at(proofs.NOW - dt.timedelta(days=31))), k)],
    ProofRefusal.FAILED_SINCE: lambda k, _o: [
        proofs.attached(proofs.stated(), k),
        proofs.attached(proofs.failed(proofs.stated(), **at(ENDED + MINUTE)), k),
    ],
}


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda refusal: refusal.value)
def test_every_refusal_has_its_word(
    refusal: ProofRefusal, policy: Policy, key: PrivateKey, other_key: PrivateKey
) -> None:
    lying = REFUSED[refusal](key, other_key)
    assert word(*lying, policy=structs.replace(policy, required=("memlock",))) == refusal.value
    if lying:
        sound = proofs.attached(proofs.stated(), key)
        whole = word(sound, policy=structs.replace(policy, required=("memlock",)))
        assert whole is None


def test_a_refusal_says_what_is_missing_and_what_the_policy_allows(policy: Policy, key: PrivateKey) -> None:
    proof = proofs.attached(proofs.stated(), key)
    mistyped = proofs.judged(proof, policy=structs.replace(policy, required=("memlockk", "site-check")))
    assert mistyped.refused is not None
    assert mistyped.refused.detail == "not among the passed checks: memlockk, site-check"
    old = proofs.attached(proofs.stated(**at(proofs.NOW - dt.timedelta(days=31))), key)
    refused = proofs.judged(old, policy=policy).refused
    assert refused is not None
    assert "the policy allows 30 days" in refused.detail
    for attached, step in (
        ([proofs.attached(proofs.stated("cpu", **at(ENDED)), key)], 'for a trial write mode = "cpu" in [proof]'),
        ([], "run it, then `envcheck publish` its report"),
    ):
        refused = proofs.judged(*attached, policy=policy).refused
        assert refused is not None
        assert refused.detail.endswith(step)


@each(
    "after, refusal",
    [
        (-5 * MINUTE, None),
        (-5 * MINUTE - dt.timedelta(seconds=1), "from-the-future"),
        (dt.timedelta(days=30), None),
        (dt.timedelta(days=30, seconds=1), "expired"),
    ],
)
def test_both_sides_of_the_clock(after: dt.timedelta, refusal: str | None, policy: Policy, key: PrivateKey) -> None:
    proof = proofs.attached(proofs.stated(), key)
    assert word(proof, policy=policy, now=ENDED + after) == refusal


def test_no_node_is_asked_about(policy: Policy, key: PrivateKey) -> None:
    proof = proofs.attached(proofs.stated(), key)
    assert word(proof, policy=policy, node=None) is None
    fail = proofs.attached(proofs.failed(proofs.stated(), **at(ENDED + MINUTE)), key)
    assert word(proof, fail, policy=policy, node=None) == "failed-since"


# Fails beside one older pass on one H200, and whether they take it back.
FAILS: Final[list[tuple[dict[str, Any], str | None]]] = [
    ({}, "failed-since"),
    ({"gpus": 8}, "failed-since"),
    ({"mode": "unknown", "gpu": None, "gpus": 0, "cc": None}, "failed-since"),
    ({"gpu": proofs.H100}, None),
    ({"driver": "580.65.06"}, None),
    ({"arch": "aarch64"}, None),
    ({"mig": True}, None),
    ({"mode": "cpu", "gpu": None, "gpus": 0}, None),
]


@each("changes, refusal", FAILS)
def test_a_newer_failure_takes_back_what_it_says_something_about(
    changes: dict[str, Any], refusal: str | None, policy: Policy, key: PrivateKey
) -> None:
    fail = proofs.failed(proofs.stated(**changes), **at(ENDED + MINUTE))
    lying = [proofs.attached(proofs.stated(), key), proofs.attached(fail, key)]
    result = proofs.judged(*lying, policy=policy)
    assert (result.chosen is None) == (refusal is not None)
    assert {each.refused.reason.value for each in result.judged if each.refused} >= ({refusal} if refusal else set())


@each("seconds, refusal", [(-1, None), (0, "failed-since"), (1, "failed-since"), (10**6, "failed-since")])
def test_the_newer_one_counts_and_at_the_same_second_the_failure(
    seconds: int, refusal: str | None, policy: Policy, key: PrivateKey
) -> None:
    fail = proofs.failed(proofs.stated(), **at(ENDED + dt.timedelta(seconds=seconds)))
    lying = [proofs.attached(fail, key), proofs.attached(proofs.stated(), key)]
    result = proofs.judged(*lying, policy=policy)
    of_pass = next(each for each in result.judged if each.statement and each.statement.passed)
    assert (of_pass.refused.reason.value if of_pass.refused else None) == refusal


def test_only_a_check_that_failed_takes_back_and_at_its_own_level(policy: Policy, key: PrivateKey) -> None:
    quick = structs.replace(policy, level="quick")
    fail = proofs.failed(proofs.stated(), **at(ENDED + MINUTE))
    undetermined = proofs.failed(proofs.stated(), **at(ENDED + MINUTE), undetermined=["memlock"])
    facts = structs.replace(undetermined.facts, exit_code=3)
    undetermined = structs.replace(undetermined, predicate=structs.replace(undetermined.predicate, envcheck=facts))
    without = [check for check in proofs.stated().predicate.passed_tests if check != "memlock"]
    for passed, level, newer, expected in (
        (None, "quick", fail, "failed-since"),  # it says that this check passed
        (without, "quick", fail, None),
        (without, "full", fail, "failed-since"),
        (None, "full", undetermined, None),
    ):
        changes: dict[str, Any] = {} if passed is None else {"passed_tests": passed}
        stated = proofs.stated(level=level, **changes)
        pair = [proofs.attached(stated, key), proofs.attached(newer, key)]
        result = proofs.judged(*pair, policy=quick)
        [older] = [one for one in result.judged if one.statement and one.statement.passed]
        assert (older.refused.reason.value if older.refused else None) == expected, (level, expected)
        if older.refused:
            assert "a run (level full, NVIDIA H200 x1) that ended at" in older.refused.detail


def test_a_failure_by_a_key_that_is_not_allowed_takes_nothing_back(
    policy: Policy, key: PrivateKey, other_key: PrivateKey
) -> None:
    passed = proofs.attached(proofs.stated(), key)
    fail = proofs.failed(proofs.stated(), **at(ENDED + MINUTE))
    assert word(passed, proofs.attached(fail, other_key), policy=policy) is None
    elsewhere = structs.replace(fail, subject=subjects(proofs.OTHER))
    assert word(passed, proofs.attached(elsewhere, key), policy=policy) is None


def later_schema(by: PrivateKey, ended: str | None, image: str = proofs.MANIFEST, kind: str = "") -> ListedProof:
    """Return a statement as an envcheck to come may write it, which this one cannot read."""
    document = msgspec.json.decode(msgspec.json.encode(proofs.stated(subject=subjects(image))))
    document["predicate"]["envcheck"] |= {"schema": "envcheck/proof/2", "ended": ended}
    document["predicateType"] = kind or document["predicateType"]
    return proofs.attached(envelope.sign(msgspec.json.encode(document), statements.PAYLOAD_TYPE, by))


def test_a_newer_statement_that_cannot_be_read_may_be_a_failure(
    policy: Policy, key: PrivateKey, other_key: PrivateKey
) -> None:
    proof, after = proofs.attached(proofs.stated(), key), statements.written(ENDED + MINUTE)
    sbom = msgspec.json.encode({"subject": [{"digest": {"sha256": proofs.MANIFEST[7:]}}], "predicate": {"name": "x"}})
    others = [proofs.attached(envelope.sign(text, statements.PAYLOAD_TYPE, key)) for text in (b"\xff", sbom)]
    at_once = later_schema(key, statements.written(ENDED))
    later = [later_schema(key, after), later_schema(key, None), later_schema(key, after, kind="later/2")]
    for unread in (at_once, *later):
        assert word(proof, unread, policy=policy) == "failed-since"
    older = later_schema(key, statements.written(ENDED - MINUTE))
    for harmless in (*others, older, later_schema(other_key, after), later_schema(key, after, proofs.OTHER)):
        assert word(proof, harmless, policy=policy) is None


def test_the_newest_that_holds_is_chosen_and_the_others_are_listed(policy: Policy, key: PrivateKey) -> None:
    old, new = proofs.stated(tool="old"), proofs.stated(tool="new", **at(ENDED + MINUTE))
    newer_and_less = proofs.stated(tool="less", level="quick", **at(ENDED + 2 * MINUTE))
    lying = [proofs.attached(each, key) for each in (old, newer_and_less, new)]
    result = proofs.judged(*lying, unfetched(ProofRefusal.DANGLING), policy=policy)
    assert result.chosen is not None
    assert result.chosen.statement is not None
    assert (result.chosen.statement.facts.tool, result.chosen.signer) == ("new", key.public.id)
    words = [(each.statement.facts.tool if each.statement else "", each.refused) for each in result.judged]
    assert [tool for tool, _ in words] == ["less", "new", "old", ""]
    assert [refused.reason.value if refused else "" for _, refused in words] == ["level-too-low", "", "", "dangling"]


def evidence_of(change: Callable[[Any], Any], key: PrivateKey, *, edit: bool = False) -> ListedProof:
    """Return a proof whose report was changed: before it was signed, or with `edit` after."""
    report = change(proofs.report())
    packed = publishing.pack(report)
    honest = publishing.pack(proofs.report())
    statement = publishing.state(honest, proofs.IMAGE, {})
    if not edit:
        facts = structs.replace(statement.facts, report=packed.reference)
        statement = structs.replace(statement, predicate=structs.replace(statement.predicate, envcheck=facts))
    return ListedProof("sha256:1", proofs.bundle(statement, key), lambda _: packed.content)


def test_todays_limits_are_held_against_the_evidence(policy: Policy, key: PrivateKey) -> None:
    def worn(report: Any) -> Any:
        gpu = report.snapshot.gpus[0]
        rows = Signal({"correctable": 0, "uncorrectable": 9, "pending": 0, "failed": 1})
        gpus = [dataclasses.replace(gpu, signals={**gpu.signals, "remapped_rows": rows})]
        return structs.replace(report, snapshot=dataclasses.replace(report.snapshot, gpus=gpus))

    stale = evidence_of(worn, key)
    result = proofs.judged(stale, policy=policy)
    assert result.refused is not None
    assert result.refused.reason is ProofRefusal.STALE_LIMITS
    assert "row-remap pass then, fail now" in result.refused.detail
    assert word(stale, policy=structs.replace(policy, rejudge=False)) is None


def test_warnings_are_those_of_today_whatever_the_report_was_edited_to(policy: Policy, key: PrivateKey) -> None:
    report = proofs.report()
    outcomes = [structs.replace(one, status="pass") if one.status == "warn" else one for one in report.outcomes]
    packed = publishing.pack(structs.replace(report, outcomes=outcomes))
    statement = publishing.state(packed, proofs.IMAGE, {})
    assert statement.predicate.result == "PASSED"
    lying = ListedProof("sha256:1", proofs.bundle(statement, key), lambda _: packed.content)
    strict = structs.replace(policy, warnings="refuse")
    assert word(lying, policy=strict) == "stale-limits"
    assert word(lying, policy=policy) is None


def test_what_the_policy_requires_must_pass_today_too(policy: Policy, key: PrivateKey) -> None:
    statement = proofs.stated()
    passed = [*statement.predicate.passed_tests, "driver-branch"]
    claimed = proofs.attached(proofs.stated(result="PASSED", passed_tests=passed, warned_tests=[]), key)
    assert word(claimed, policy=structs.replace(policy, required=("memlock",))) is None
    assert word(claimed, policy=structs.replace(policy, required=("driver-branch",))) == "stale-limits"


def test_a_report_that_was_edited_after_signing_is_tampered(policy: Policy, key: PrivateKey) -> None:
    edited = evidence_of(lambda report: structs.replace(report, boot="x"), key, edit=True)
    assert word(edited, policy=policy) == "tampered"
    assert word(evidence_of(lambda report: report, key, edit=True), policy=policy) is None


def test_the_words_are_stable_listed_and_tested() -> None:
    page = (Path(__file__).parents[3] / "docs/json-schemas.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^\| `([a-z-]+)` \|", page.partition("## Refusals of proofs")[2])
    assert listed == [refusal.value for refusal in ProofRefusal]
    # The two others: an alias is asked about in refuse_alias, and today's limits above.
    assert {*REFUSED, ProofRefusal.ALIAS_NOT_PROMOTED, ProofRefusal.STALE_LIMITS} == set(ProofRefusal)


INDEX = f"sha256:{'d' * 64}"
AMD = structs.replace(proofs.IMAGE, index_digest=INDEX)
ARM = RemoteImage(AMD.repository, proofs.OTHER, f"sha256:{'e' * 64}", "arm64", INDEX)


def of(image_id: str | None = "sha256:0", arch: str = "x86_64", **digests: Any) -> RunReport:
    target = TargetFacts(kind="image", name="x", chosen="--image", image_id=image_id, image=proofs.facts(**digests))
    report = proofs.report(target=target)
    return structs.replace(report, host=structs.replace(report.host, arch=arch))


@each(
    "report",
    [
        of(manifest_digest=proofs.MANIFEST),
        of(config_digest=proofs.CONFIG),
        of(index_digest=INDEX),
        *(of(repository_digests=[f"other.example/x@{digest}"]) for digest in (proofs.MANIFEST, INDEX)),
        *(of(image_id=digest) for digest in (proofs.MANIFEST, proofs.CONFIG, INDEX)),
    ],
)
def test_each_digest_leads_to_the_manifest_that_ran(report: RunReport) -> None:
    assert ran(report, [ARM, AMD]) == AMD


def test_an_index_is_read_by_the_architecture_that_ran() -> None:
    assert ran(of(index_digest=INDEX, arch="aarch64"), [AMD, ARM]) == ARM


@each(
    "report",
    [
        of(),
        of(image_id=None),
        of(manifest_digest=proofs.OTHER),
        of(config_digest=proofs.OTHER),
        of(manifest_digest=proofs.MANIFEST, arch="aarch64"),
        of(repository_digests=[f"other.example/x@{proofs.CONFIG}"]),
    ],
)
def test_a_report_of_another_image_is_refused(report: RunReport) -> None:
    with pytest.raises(UnprovableError, match="the report is about another image"):
        ran(report, [ARM, AMD])


def test_what_fits_two_images_is_open() -> None:
    twin = structs.replace(AMD, manifest=f"sha256:{'f' * 64}", config=f"sha256:{'9' * 64}")
    with pytest.raises(UnprovableError, match="fits 2 images"):
        ran(of(index_digest=INDEX), [AMD, twin])
    assert ran(of(index_digest=INDEX, config_digest=AMD.config), [AMD, twin]) == AMD


def word_of(node: NodeFacts, **changes: Any) -> str | None:
    refused = uncovered(proofs.h100x8(**changes).facts, node, load())
    return refused.reason.value if refused else None


@each(
    "changes, refusal",
    [
        ({}, None),
        # One model of the matrix; others, an unknown one, and a slice of one.
        *(({"models": (model,)}, None) for model in ("H100", "NVIDIA H100 PCIe")),
        *(({"models": (model,)}, "wrong-gpu") for model in ("NVIDIA H200", "?", "NVIDIA H100-1-10C")),
        ({"models": (proofs.H100, "NVIDIA A100-SXM4-80GB")}, "wrong-gpu"),
        ({"models": (), "gpus": 0}, "wrong-gpu"),
        ({"mig": True}, "wrong-gpu"),
        ({"gpus": 1}, None),
        ({"gpus": 9}, "too-few-gpus"),
        # Per field: 26 < 124.
        *(({"driver": driver}, "driver-too-old") for driver in ("570.124.05", "570.26")),
        *(({"driver": driver}, None) for driver in ("570.124.07", "580.65.06", None)),
        *(({"driver": driver}, "driver-unsupported") for driver in ("", "new")),
        *(({"arch": arch}, "wrong-arch") for arch in ("aarch64", "")),
        ({"arch": None}, None),
    ],
)
def test_each_axis_is_held_against_the_node(changes: dict[str, Any], refusal: str | None) -> None:
    assert word_of(structs.replace(proofs.NODE, **changes)) == refusal


def test_a_model_that_the_matrix_lacks_is_compared_by_the_letter() -> None:
    node = structs.replace(proofs.NODE, models=("NVIDIA Made-Up 9000",))
    assert word_of(node, gpu="NVIDIA Made-Up 9000") is None
    assert word_of(node, gpu="NVIDIA Made-Up 9001") == "wrong-gpu"
    assert word_of(proofs.NODE, gpu="NVIDIA H100-1-10C") == "wrong-gpu"


def test_the_resolver_of_today_must_still_say_yes() -> None:
    """R590 no longer drives Volta, whatever was proven on an older driver."""
    v100 = structs.replace(proofs.NODE, models=("Tesla V100-SXM2-32GB",), gpus=1)
    old = {"gpu": "Tesla V100-SXM2-32GB", "cc": "7.0", "cell": "torch2.8.0-cu126-py312", "driver": "570.124.06"}
    assert word_of(v100, **old) is None
    assert word_of(structs.replace(v100, driver="590.44.01"), **old) == "driver-unsupported"
    assert word_of(proofs.NODE, cell="torch2.8.0-cu999-py312") == "driver-unsupported"
    assert word_of(proofs.NODE, cell=None) == "driver-unsupported"
    assert word_of(proofs.NODE, cell="torch0.1.0-cu128-py312") == "driver-unsupported"


def test_forward_compatibility_is_proven_for_its_branch_alone() -> None:
    """CUDA 13 on R570 needs cuda-compat; on R580 it needs none."""
    forward = {"cell": "torch2.14.1-cu130-py312", "driver": "570.124.06"}
    assert word_of(proofs.NODE, **forward) is None
    assert word_of(structs.replace(proofs.NODE, driver="570.172.08"), **forward) is None
    assert word_of(structs.replace(proofs.NODE, driver="580.65.06"), **forward) == "driver-unsupported"
    unlisted = {**forward, "driver": "555.42.02"}  # cuda-compat does not work on R555
    assert word_of(structs.replace(proofs.NODE, driver="555.42.02"), **unlisted) == "driver-unsupported"
    assert word_of(proofs.NODE, **unlisted) == "driver-unsupported"
    native = {**forward, "driver": "580.65.06"}
    assert word_of(structs.replace(proofs.NODE, driver="580.65.06"), **native) is None
    assert word_of(structs.replace(proofs.NODE, driver="570.124.06"), **native) == "driver-too-old"


def test_a_run_on_a_cpu_covers_its_architecture() -> None:
    facts = proofs.stated("cpu").facts
    assert uncovered(facts, NodeFacts(arch="x86_64"), load()) is None
    assert uncovered(facts, proofs.NODE, load()) is None
    refused = uncovered(facts, NodeFacts(arch="aarch64"), load())
    assert refused is not None
    assert refused.reason.value == "wrong-arch"


def test_the_node_is_read_off_its_snapshot() -> None:
    assert node_of(machine("h100x8")) == structs.replace(
        proofs.NODE, driver=machine("h100x8").signal("driver.version").value
    )
    assert node_of(machine("mig")).mig
    assert len(node_of(machine("mixed")).models) == 2
    assert node_of(machine("cpu")).gpus == 0
    assert node_of(Snapshot()) == NodeFacts((), 0, "", "", mig=False)
    assert node_of(proofs.recorded("h200x1").snapshot) == proofs.H200


@each(
    "node, changes, does",
    [
        *(({}, changes, True) for changes in ({}, {"gpus": 1}, {"driver": None}, {"gpu": None})),
        ({}, {"mode": "unknown", "gpu": None, "gpus": 0}, True),
        *(({"driver": driver}, {}, True) for driver in ("580.65.06", None, "new")),
        ({"gpus": 1}, {}, True),
        ({"driver": "570.124.05"}, {}, False),
        ({"models": ("NVIDIA H200",)}, {}, False),
        ({"mig": True}, {}, False),
        ({"arch": "aarch64"}, {}, False),
    ],
)
def test_a_failed_run_concerns_the_same_gpus_on_its_driver_or_a_newer_one(
    node: dict[str, Any], changes: dict[str, Any], does: object
) -> None:
    facts = proofs.h100x8(**changes).facts
    assert concerns(facts, structs.replace(proofs.NODE, **node), load()) is does
