"""What a run proved of an image, as an in-toto statement, and the stable words of why a proof does not hold."""

import datetime as dt
import enum
import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from envcheck.errors import UnavailableError
from envcheck.struct_types import LightRecord, know_types


class ProofRefusal(enum.Enum):
    """The words of `--json`, in the order in which they are looked for; the texts beside them may change."""

    NO_PROOF = "no-proof"
    DANGLING = "dangling"
    TAMPERED = "tampered"
    UNKNOWN_FORMAT = "unknown-format"
    WRONG_KEY = "wrong-key"
    WRONG_SUBJECT = "wrong-subject"
    FROM_THE_FUTURE = "from-the-future"
    FAILED = "failed"
    NOT_A_GPU_RUN = "not-a-gpu-run"
    WRONG_ARCH = "wrong-arch"
    WRONG_GPU = "wrong-gpu"
    TOO_FEW_GPUS = "too-few-gpus"
    DRIVER_TOO_OLD = "driver-too-old"
    DRIVER_UNSUPPORTED = "driver-unsupported"
    LEVEL_TOO_LOW = "level-too-low"
    CHECK_MISSING = "check-missing"
    EXPIRED = "expired"
    FAILED_SINCE = "failed-since"
    STALE_LIMITS = "stale-limits"
    ALIAS_NOT_PROMOTED = "alias-not-promoted"


class Rejection(LightRecord, frozen=True):
    """A refusal, and what it is about in a sentence for people."""

    reason: ProofRefusal
    detail: str


# A bundle, a statement or a promotion, of which ours have some 20 kB; no known registry takes a larger manifest.
MOST_JSON: Final = 4 << 20
_Type = TypeVar("_Type")


class MalformedError(ValueError):
    """What is not in the expected form; the text says where and why."""


def decode_json(content: bytes, kind: type[_Type], most: int = MOST_JSON) -> _Type:
    """Return the document as this type. Raises MalformedError, and nothing else, for whatever else the bytes are."""
    try:
        if len(content) <= most:
            return msgspec.json.decode(content, type=kind)
        why = f"larger than {most} bytes"
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:  # msgspec's own, and text that is not UTF-8
        why = " ".join(str(error).split())[:200]
    raise MalformedError(why)


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 (a condition)
    """Raise MalformedError with a text unless a condition holds."""
    if not holds:
        raise MalformedError(otherwise)


PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
PREDICATE_TYPE: Final = "https://in-toto.io/attestation/test-result/v0.1"
_STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
_NEVER: Final = dt.datetime.max.replace(tzinfo=dt.timezone.utc)
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_TIME_FORM: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)

Hex = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
Dotted = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,6}(\.[0-9]{1,6}){1,3}\Z")]
# Bytes of the evidence, packed or unpacked; a repeated run of a whole day on eight GPUs has some 10 MB.
MOST_REPORT: Final = 64 << 20
Level = Literal["static", "quick", "standard", "full"]
RanOn = Literal["gpu", "cpu", "unknown"]
Result = Literal["PASSED", "WARNED", "FAILED"]


class Sha256(msgspec.Struct, frozen=True, kw_only=True):
    """A digest as in-toto writes it."""

    sha256: Hex


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A name with a digest: an image's repository and platform manifest, or the limits or lock of a run."""

    name: str
    digest: Sha256


class ProvenImage(msgspec.Struct, frozen=True, kw_only=True):
    """The image that ran: its platform manifest and its config."""

    manifest: Digest
    config: Digest


class Covers(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware that the run was on. A run on a CPU has no GPU; a failed one may not have seen its GPUs."""

    gpu: str | None
    cc: Dotted | None
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    driver: Dotted | None
    arch: str
    mig: bool


class ReportReference(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report, compressed: the blob beside the statement that it is judged again from."""

    digest: Digest
    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_REPORT)]


class ProofFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Envcheck's own fields. `exit_code` is that of `envcheck run`: 1 a check failed, 3 undetermined.

    `undetermined` are those of the failed tests that did not fail.
    """

    schema: Literal["envcheck/proof/1"] = "envcheck/proof/1"
    tool: str
    cell: str | None
    target: str
    level: Level
    mode: RanOn
    exit_code: int
    started: str
    ended: str
    image: ProvenImage
    covers: Covers
    report: ReportReference
    undetermined: list[str] = []


class TestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The predicate: in-toto's fields, and ours beside them. `failedTests` holds what was undetermined, too."""

    result: Result
    configuration: list[Subject]
    passed_tests: list[str] = msgspec.field(name="passedTests")
    warned_tests: list[str] = msgspec.field(name="warnedTests")
    failed_tests: list[str] = msgspec.field(name="failedTests")
    envcheck: ProofFacts


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it."""

    type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type", default=_STATEMENT_TYPE)
    subject: list[Subject]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = msgspec.field(
        name="predicateType", default=PREDICATE_TYPE
    )
    predicate: TestResult

    @property
    def facts(self) -> ProofFacts:
        """Return envcheck's own fields."""
        return self.predicate.envcheck

    @property
    def ended(self) -> dt.datetime:
        """Return when the run ended, which is how old the proof is."""
        return instant(self.facts.ended)

    @property
    def passed(self) -> bool:
        """Tell whether the run proved the image, with warnings or without."""
        return self.predicate.result != "FAILED"

    @property
    def failed(self) -> list[str]:
        """Return the checks that failed; what was undetermined is not among them."""
        return [check for check in self.predicate.failed_tests if check not in self.facts.undetermined]

    @property
    def word(self) -> str:
        """Return PASSED, WARNED, FAILED or, where no check failed and it could not be told, UNDETERMINED."""
        undetermined = self.facts.exit_code == UnavailableError.exit_code and not self.failed
        return "UNDETERMINED" if undetermined else self.predicate.result


class _AnySubject(msgspec.Struct):
    digest: dict[str, str] = {}


class _AnyStatement(msgspec.Struct):
    subject: list[_AnySubject]
    predicate: dict[str, Any] = {}


know_types(Statement, _AnyStatement)


def decode(payload: bytes) -> Statement:
    """Return a statement that does not contradict itself. Raises MalformedError for anything else."""
    statement = decode_json(payload, Statement)
    predicate, facts = statement.predicate, statement.facts
    expect(instant(facts.started) <= statement.ended, f"it ended at {facts.ended}, before it started")
    lists = [*predicate.passed_tests, *predicate.warned_tests, *predicate.failed_tests]
    expect(len(set(lists)) == len(lists), "a check has two results")
    failed = bool(predicate.failed_tests) or facts.exit_code != 0
    contradicts = failed or not predicate.passed_tests or facts.mode == "unknown"
    contradicts = contradicts or (predicate.result == "WARNED") != bool(predicate.warned_tests)
    expect(not (statement.passed and contradicts), f"it says {predicate.result}, and its checks do not")
    return statement


def unread_end(payload: bytes, image: str) -> dt.datetime | None:
    """Return when a run ended whose statement `decode` refuses: newer than all if it does not say.

    None where it is not envcheck's, or about another image: another program's statement takes nothing back.
    """
    try:
        document = decode_json(payload, _AnyStatement)
    except MalformedError:
        return None
    facts = document.predicate.get("envcheck")
    named = {f"sha256:{subject.digest.get('sha256')}" for subject in document.subject}
    if not isinstance(facts, dict) or image not in named:
        return None
    try:
        return instant(str(facts.get("ended")))
    except MalformedError:
        return _NEVER


def instant(text: str) -> dt.datetime:
    """Return a time as statements write it, 2026-11-22T08:00:00Z. Raises MalformedError for any other form."""
    try:
        if _TIME_FORM.fullmatch(text) is None:
            raise ValueError  # noqa: TRY301 (one message for both)
        return dt.datetime.fromisoformat(f"{text[:-1]}+00:00")
    except ValueError as error:
        message = f"{text[:40]!r} is not a time; it has the form 2026-11-22T08:00:00Z"
        raise MalformedError(message) from error


def written(moment: dt.datetime) -> str:
    """Return a time as statements write it."""
    return moment.astimezone(dt.timezone.utc).strftime(_TIME)
