"""Makes proofs for tests: recorded reports as if they were of one image, their statements, and envelopes around them.

The reports of GPUs are those of tests/data/reports: made from documentation, and no GPU took part. What differs from
them in a test is put in by hand.
"""

import datetime as dt
import functools
import json
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from envcheck.matrix.file.load import load as load_matrix
from envcheck.registry import envelope, publishing
from envcheck.registry import statement as statements
from envcheck.registry.attachments import RemoteImage
from envcheck.registry.judge import ImageProofs, ListedProof, NodeFacts, Policy, ProofTerms, judge_image
from envcheck.registry.statement import ProofRefusal, Rejection, ReportReference, Statement
from envcheck.reports.model import RunReport, load
from envcheck.runner.planning import discover
from envcheck.runner.schema import ImageFacts, TargetFacts
from envcheck.signing import PrivateKey, load_private, new_key
from tests.builders import planned, row

REPORTS: Final = Path(__file__).parent / "data/reports"
MANIFEST: Final = f"sha256:{'a' * 64}"
OTHER: Final = f"sha256:{'b' * 64}"
CONFIG: Final = f"sha256:{'c' * 64}"
IMAGE: Final = RemoteImage("registry.example/envcheck/torch", MANIFEST, CONFIG, "amd64")
# When the recorded runs ended, and an hour later.
NOW: Final = dt.datetime(2026, 11, 21, 10, 2, tzinfo=dt.timezone.utc)
H100: Final = "NVIDIA H100 80GB HBM3"
NODE: Final = NodeFacts((H100,), 8, "570.124.06", "x86_64")
# What these checks measured where nothing is installed that they look at: rows of a report, made on a CPU.
_CPYTHON: Final = {"name": "cpython", "version": [3, 11], "free_threaded": False, "machine": "x86_64"}
_EXTENSIONS: Final = {"rank": 0, "interpreter": _CPYTHON, "extensions": []}
NOTHING_INSTALLED: Final[dict[str, dict[str, Any]]] = {
    "extensions": {**_EXTENSIONS, "glibc": "2.36", "torch": "2.13.0+cpu", "installed": {}, "nvcc": None, "bytes": 0},
    "extensions-loaded": {**_EXTENSIONS, "gpu": False},
    "trainer": {"rank": 0, "world": 1, "is_cuda": False, "device": "cpu", "backend": None, "absent": "transformers"},
}
_DTYPES: Final = ("float64", "float32", "float16", "bfloat16")
# A check that came after the reports, of which none of them can be without a measurement.
KERNELS: Final[dict[str, Any]] = {
    "rank": 0,
    "world": 1,
    "is_cuda": False,
    "device": "cpu",
    "backend": None,
    "seed": 7,
    "capability": None,
    "ran": dict.fromkeys(_DTYPES, 400),
    "worst": {name: {"operator": "mm", "dtype": name, "error": 9.0, "size": 33} for name in _DTYPES},
    "moved": dict.fromkeys(_DTYPES, 0.5),
    "wrong": [],
    "absent": {},
    "lost": [],
    "subnormals": [],
    "witness": {"compared": 400},
}
H200: Final = NodeFacts(("NVIDIA H200",), 1, "570.124.06", "x86_64")


def key(folder: Path, name: str = "key") -> PrivateKey:
    new_key(folder / name)
    return load_private(folder / name)


def facts(**digests: Any) -> ImageFacts:
    return ImageFacts(**{"runs_as": "", "program": "", "history": 1, "secrets": [], **digests})


@functools.cache
def recorded(name: str) -> RunReport:
    return load(REPORTS / f"{name}.json")


def report(name: str = "h200x1", **changes: Any) -> RunReport:
    """Return a recorded report as if it were of IMAGE: "h200x1", "h100x8-slow-gpu" (which fails) or "cpu"."""
    target = TargetFacts(
        kind="image",
        name="registry.example/envcheck/torch:1",
        chosen="--image",
        image_id=MANIFEST,
        image=facts(manifest_digest=MANIFEST),
    )
    return structs.replace(recorded(name), **{"target": target, **changes})


_OTHERS: Final = ("kernels", "rails")  # the one is never skipped, the other needs GPUs and measured nothing


def whole(report_: RunReport) -> RunReport:
    """Return the report as if the run had also looked at the checks that came after it was recorded."""
    known = {outcome.id for outcome in report_.outcomes}
    new = [module.id for module in discover() if module.id not in known]
    rows = [row(check, "skip", ranks=[NOTHING_INSTALLED.get(check, {})]) for check in new if check not in _OTHERS]
    rows += [row(check, "skip") for check in new if check == "rails"]
    rows += [row(check, "pass", ranks=[KERNELS]) for check in new if check == "kernels"]
    plan = structs.replace(report_.plan, checks=[*report_.plan.checks, *map(planned, new)])
    return structs.replace(report_, plan=plan, outcomes=[*report_.outcomes, *rows])


@functools.cache
def packed(name: str = "h200x1") -> publishing.PackedReport:
    return publishing.pack(report(name))


def stated(name: str = "h200x1", **changes: Any) -> Statement:
    """Return the statement of a recorded report; `changes` are fields of its facts, covers or predicate."""
    statement = publishing.state(packed(name), IMAGE, {})
    facts_, predicate = statement.facts, statement.predicate
    for where, value in changes.items():
        if where in statements.Covers.__struct_fields__:
            facts_ = structs.replace(facts_, covers=structs.replace(facts_.covers, **{where: value}))
        elif where in statements.ProofFacts.__struct_fields__:
            facts_ = structs.replace(facts_, **{where: value})
        elif where in statements.TestResult.__struct_fields__:
            predicate = structs.replace(predicate, **{where: value})
        else:
            statement = structs.replace(statement, **{where: value})
    return structs.replace(statement, predicate=structs.replace(predicate, envcheck=facts_))


def h100x8(**changes: Any) -> Statement:
    """Return a pass on eight H100, made of the pass on one H200."""
    return stated(**{"gpu": H100, "gpus": 8, **changes})


def failed(statement: Statement, **changes: Any) -> Statement:
    """Return the same run as one whose check memlock failed."""
    predicate = statement.predicate
    passed = [check for check in predicate.passed_tests if check != "memlock"]
    facts_ = structs.replace(predicate.envcheck, exit_code=1, **changes)
    predicate = structs.replace(
        predicate, result="FAILED", passed_tests=passed, failed_tests=["memlock"], envcheck=facts_
    )
    return structs.replace(statement, predicate=predicate)


def bundle(statement: Statement, by: PrivateKey) -> bytes:
    return envelope.sign(msgspec.json.encode(statement), statements.PAYLOAD_TYPE, by)


def exchanged(envelope_: bytes, other: bytes) -> bytes:
    """Return an envelope with the payload of another, as if it had been changed after signing."""
    payloads = [json.loads(one)["dsseEnvelope"]["payload"].encode() for one in (envelope_, other)]
    return envelope_.replace(*payloads)


def attached(content: bytes | Statement, by: PrivateKey | None = None, *, name: str = "h200x1") -> ListedProof:
    """Return what a registry lists: these bytes, or the statement signed, with the evidence of a recorded report."""
    shown = content if isinstance(content, bytes) else b""
    if isinstance(content, Statement):
        assert by is not None
        shown = bundle(content, by)

    def fetch(report: ReportReference) -> bytes | Rejection:
        known = packed(name)
        rejection = Rejection(ProofRefusal.DANGLING, "the report is gone")
        return known.content if report.digest == known.reference.digest else rejection

    return ListedProof(f"sha256:{len(shown):064x}", shown, fetch)


def judged(
    *lying: ListedProof, policy: Policy, node: NodeFacts | None = H200, now: dt.datetime = NOW, image: str = MANIFEST
) -> ImageProofs:
    return judge_image(lying, image, ProofTerms(policy, node, now, load_matrix()))
