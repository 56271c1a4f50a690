"""What a policy allows, and what was signed: read whole or refused by name; without a policy the default is strict."""

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from envcheck.errors import ConfigError
from envcheck.matrix.file.load import load
from envcheck.registry import attachments, choosing, statement
from envcheck.registry import statement as statements
from envcheck.registry.choosing import Promotion, judge_gpus, refuse_alias
from envcheck.registry.envelope import EnvelopeContents, authenticated, open_envelope, sign
from envcheck.registry.judge import DEFAULT, NamedGpus, Policy, ProofTerms, read_policy
from envcheck.registry.statement import ProofRefusal, Rejection
from envcheck.signing import PrivateKey, new_key
from tests import proofs
from tests.tables import each

WHOLE = """\
[proof]
level = "quick"
max_age = "12h"
keys = ["gate.pub", "sub/release.pub"]
required = ["all-reduce", "ddp"]        # must be among passedTests
warnings = "refuse"
rejudge = false
mode = "gpu"

[promote]
gpus = ["H100 x8", "RTX 4090 x1"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    new_key(tmp_path / "gate")
    new_key(tmp_path / "sub/release")
    return tmp_path


def written(site: Path, text: str) -> Path:
    path = site / "envcheck-policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_setting_is_read_and_keys_lie_beside_the_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    policy = read_policy(written(site, WHOLE))
    assert [Path(key.where).name for key in policy.keys] == ["gate.pub", "release.pub"]
    assert structs.astuple(structs.replace(policy, keys=())) == (
        "quick",
        dt.timedelta(hours=12),
        (),
        None,
        ("all-reduce", "ddp"),
        "refuse",
        False,
        "gpu",
        (NamedGpus("H100", 8), NamedGpus("RTX 4090", 1)),
    )


def test_the_default_is_strict_and_what_is_left_out_is_as_in_it(site: Path) -> None:
    assert (DEFAULT.level, DEFAULT.max_age, DEFAULT.mode) == ("standard", dt.timedelta(days=30), "gpu")
    assert (DEFAULT.rejudge, DEFAULT.keys) == (True, ())
    policy = read_policy(written(site, '[proof]\nkeys = ["gate.pub"]\n'))
    assert structs.replace(policy, keys=()) == DEFAULT


PROOF = "[proof]\nkeys = ['gate.pub']\n"


@each(
    "text, setting",
    [
        ('\n[proof]\nlevel = "most"\n', "proof.level: write static, quick, standard, full"),
        ("[proof]\nlevle = 'quick'\n", "unknown field `levle`"),
        ("[prof]\nlevel = 'quick'\n", "unknown field `prof`"),
        ("[proof]\nkeys = 'gate.pub'\n", "Expected `array`, got `str` - at `$.proof.keys`"),
        ("[proof]\nkeys = ['gone.pub']\n", "proof.keys: "),
        ('[proof]\nkeys = ["\\u0000"]\n', "proof.keys: embedded null byte"),
        ("[proof]\nkeys = ['gate']\n", "proof.keys: "),
        ("# none\n[proof]\nlevel = 'quick'\n", "proof.keys: no key: no proof would hold"),
        (f"{PROOF}required = ['']\n", "$.proof.required"),
        (f"{PROOF}rejudge = 'no'\n", "Expected `bool`, got `str` - at `$.proof.rejudge`"),
        *(
            (f"{PROOF}max_age = '{age}'\n", "proof.max_age: write 30d, 12h or 90m")
            for age in ("30", "0d", "-1d", "999999d", "٣d", "30d ")
        ),
        (f"{PROOF}unsigned = true\n", "unknown field `unsigned`"),
        *(
            (f"{PROOF}[promote]\ngpus = ['{gpus}']\n", 'write a GPU and how many of it, "H100 x8"')
            for gpus in ("H100", "x8", "H100 x0", " x1")
        ),
        ("proof = 1\n", "$.proof"),
    ],
)
def test_what_is_wrong_is_named(site: Path, text: str, setting: str) -> None:
    path = written(site, text)
    with pytest.raises(ConfigError) as refused:
        read_policy(path)
    assert refused.value.message.startswith(f"{path}: ")
    assert setting in refused.value.message, text
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@each(
    "content, why",
    [
        (b"[proof\n", "line 1"),
        (b"[proof]\nlevel = 'quick'\nlevel = 'full'\n", "line 3"),
        (b"\xff\xfe", "not TOML: 'utf-8'"),
        (b"a = " + b"[" * 100_000, "nested"),
        (b"a = " + b"9" * 9999, "envcheck-policy.toml: "),
        (b"#" * (2 << 20), "longer than 1 MiB"),
    ],
)
def test_what_is_no_toml_is_one_line(site: Path, content: bytes, why: str) -> None:
    path = written(site, "")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as refused:
        read_policy(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone: No such file"):
        read_policy(tmp_path / "gone")


A, B, C = (f"sha256:{sign * 64}" for sign in "abc")
ALIAS: Final = "2.8-cu128-py312"
NOW: Final = proofs.NOW


def promotion(digest: str, hours: float = -1, alias: str = ALIAS) -> Promotion:
    """Return the promotion to a digest, so many hours from now."""
    moment = statements.written(NOW + dt.timedelta(hours=hours))
    return Promotion(alias=alias, digest=digest, at=moment, proofs=[C])


@each(
    "promoted, why",
    [
        ([promotion(A)], ""),
        ([promotion(B, -2), promotion(A)], ""),
        ([promotion(A), promotion(B, -2)], ""),  # in whatever order a registry lists them
        ([promotion(A, 5 / 60)], ""),
        ([], f"nobody promoted {ALIAS}; "),
        ([promotion(A, alias="latest")], f"nobody promoted {ALIAS}; "),
        ([promotion(B)], f"was promoted to {B} at "),
        ([promotion(A, -2), promotion(B)], f"was promoted to {B} at "),  # a rollback by a writer of the registry
        ([promotion(A, 5.1 / 60)], "from the future"),
        ([promotion(A), promotion(B)], "in the same second"),
    ],
)
def test_an_alias_is_believed_where_its_newest_promotion_names_the_image(promoted: list[Promotion], why: str) -> None:
    refused = refuse_alias(promoted, ALIAS, A, NOW)
    if why:
        assert refused is not None
        assert (refused.reason.value, why in refused.detail) == ("alias-not-promoted", True), refused
    else:
        assert refused is None


def test_a_proof_is_asked_for_on_each_of_the_named_gpus(key: PrivateKey, policy: Policy) -> None:
    terms = ProofTerms(structs.replace(policy, rejudge=False), None, NOW, load())
    one = proofs.attached(proofs.stated(), key)
    eight = proofs.attached(proofs.h100x8(driver="580.65.06"), key)
    half = proofs.attached(proofs.h100x8(gpus=4), key)
    for listed, h200, h100, anywhere in (
        ([one, eight], "", "", ""),
        ([one], "", "wrong-gpu", ""),
        ([one, half], "", "too-few-gpus", ""),
        ([], "no-proof", "no-proof", "no-proof"),
    ):
        for gpus, word in ((NamedGpus("H200", 1), h200), (NamedGpus("H100", 8), h100), (NamedGpus("any", 0), anywhere)):
            refused = judge_gpus(gpus, {proofs.MANIFEST: listed}, terms).refused
            assert (refused.reason.value if refused else "") == word


OLDER: Final = msgspec.json.encode(promotion(A, alias=f"registry.example/torch:{ALIAS}"))


def moved(policy: Policy, *envelopes: bytes) -> str:
    """Return why the alias is not at A, "" where it is, if these envelopes lie beside the image."""
    repository: Any = SimpleNamespace(tags=list, reference=SimpleNamespace(name="registry.example/torch"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attachments, "attached_promotions", lambda *_: (envelopes, []))
        refused = choosing.promoted(repository, ALIAS, A, ProofTerms(policy, None, NOW, load()))
    return refused.detail if refused else ""


def test_what_was_signed_as_a_promotion_is_read_and_nothing_else(
    key: PrivateKey, other_key: PrivateKey, policy: Policy
) -> None:
    older = sign(OLDER, attachments.PROMOTION_TYPE, key)
    assert moved(policy, older) == ""
    assert "nobody promoted" in moved(policy, sign(OLDER, attachments.PROMOTION_TYPE, other_key))
    # The signature of a proof does not sign a promotion, even with the same bytes.
    assert "nobody promoted" in moved(policy, sign(OLDER, statements.PAYLOAD_TYPE, key))
    for newer in (
        OLDER.replace(b"promotion/1", b"promotion/2"),
        OLDER.replace(b"09:02:00Z", b"09:02:00+02:00"),
        OLDER.replace(b'"proofs"', b'"more":1,"proofs"'),
        OLDER.replace(A.encode(), b"latest"),
        OLDER.replace(f"registry.example/torch:{ALIAS}".encode(), b""),
    ):
        assert newer != OLDER
        # One of the signer that cannot be read may be the newest, so the older does not count; a stranger's is ignored.
        assert "a signed promotion cannot be read" in moved(policy, older, sign(newer, attachments.PROMOTION_TYPE, key))
        assert moved(policy, older, sign(newer, attachments.PROMOTION_TYPE, other_key)) == ""


@given(content=st.binary(max_size=500))
def test_any_bytes_are_a_promotion_or_a_refusal(content: bytes, key: PrivateKey) -> None:
    policy = structs.replace(DEFAULT, keys=(key.public,))
    assert "nobody promoted" in moved(policy, content)
    assert "cannot be read" in moved(policy, sign(content, attachments.PROMOTION_TYPE, key))


TYPE: Final = "application/x-test+json"
PAYLOAD: Final = b'{"a": 1}'


def opened(content: bytes, *keys: PrivateKey) -> EnvelopeContents | Rejection:
    return open_envelope(content, TYPE, [key.public for key in keys])


def word(content: bytes, *keys: PrivateKey) -> str:
    result = opened(content, *keys)
    assert isinstance(result, Rejection)
    assert result.detail
    assert "\n" not in result.detail
    return result.reason.value


def test_the_authenticated_bytes_are_those_of_dsse() -> None:
    """The example of DSSE's protocol.md."""
    assert authenticated(b"hello world", "http://example.com/HelloWorld") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_what_is_signed_is_read_back(key: PrivateKey, other_key: PrivateKey, ecdsa_key: PrivateKey) -> None:
    for one in (key, ecdsa_key):
        assert opened(sign(PAYLOAD, TYPE, one), other_key, one) == EnvelopeContents(PAYLOAD, one.public.id)
    assert sign(PAYLOAD, TYPE, key) == sign(PAYLOAD, TYPE, key)


def test_the_signature_decides_and_not_the_hint(key: PrivateKey, other_key: PrivateKey) -> None:
    content = sign(PAYLOAD, TYPE, key)
    assert word(content) == "wrong-key"
    assert word(content, other_key) == "wrong-key"
    claimed = content.replace(key.public.id.encode(), other_key.public.id.encode())
    assert word(claimed, key, other_key) == "tampered"
    nameless = content.replace(key.public.id.encode(), b"")
    assert opened(nameless, other_key, key) == EnvelopeContents(PAYLOAD, key.public.id)
    assert word(nameless, other_key) == "wrong-key"


def edited(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return edit


def put(path: str, value: Any) -> Callable[[bytes], bytes]:
    def change(document: Any) -> None:
        *where, last = path.split(".")
        for step in where:
            document = document[int(step) if step.isdigit() else step]
        document[int(last) if last.isdigit() else last] = value

    return edited(change)


MALFORMED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "nothing": lambda _: b"",
    "not UTF-8": lambda content: content.replace(b"payload", b"p\xffyload"),
    "another media type": lambda content: content.replace(b"v0.3", b"v0.2"),
    "trailing bytes": lambda content: content + b"{}",
    "an unknown key": put("more", 1),
    "a certificate": edited(lambda d: d["verificationMaterial"].update(certificate={"rawBytes": ""})),
    "no signature": put("dsseEnvelope.signatures", []),
    "two signatures": edited(lambda d: d["dsseEnvelope"]["signatures"].append(d["dsseEnvelope"]["signatures"][0])),
    "a number for the payload": put("dsseEnvelope.payload", 1),
    "no base64": put("dsseEnvelope.payload", "%%%%"),
    "base64 without padding": put("dsseEnvelope.payload", "YQ"),
    "nested deeply within": lambda c: c.replace(b'ial":{', b'ial":{"tlogEntries":' + b"[" * 9000 + b"]" * 9000 + b","),
}


@each("name", MALFORMED)
def test_other_forms_are_refused_by_name(name: str, key: PrivateKey) -> None:
    content = sign(PAYLOAD, TYPE, key)
    broken = MALFORMED[name](content)
    assert broken != content
    assert word(broken, key) == "unknown-format"


def test_a_bundle_has_at_most_4_mb(key: PrivateKey) -> None:
    content = sign(PAYLOAD, TYPE, key)
    full = content + b" " * (statement.MOST_JSON - len(content))
    assert opened(full, key) == EnvelopeContents(PAYLOAD, key.public.id)
    assert opened(full + b" ", key) == Rejection(ProofRefusal.UNKNOWN_FORMAT, "larger than 4194304 bytes")
    assert word(bytes(100_000_000), key) == "unknown-format"


def read_as_proof(content: bytes, key: PrivateKey) -> None:
    result = open_envelope(content, statements.PAYLOAD_TYPE, [key.public])
    assert isinstance(result, (EnvelopeContents, Rejection))
    if isinstance(result, EnvelopeContents):
        try:
            statements.decode(result.payload)
        except statement.MalformedError as error:
            assert str(error)  # noqa: PT017 (a statement is right, too)


@given(content=st.binary(max_size=2000))
def test_any_bytes_are_a_proof_or_a_refusal(content: bytes, key: PrivateKey) -> None:
    read_as_proof(content, key)
    read_as_proof(sign(content, statements.PAYLOAD_TYPE, key), key)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60)
@given(data=st.data())
def test_a_proof_of_which_any_value_is_another_is_a_proof_or_a_refusal(data: st.DataObject, key: PrivateKey) -> None:
    """Values of the bundle and of the statement, at any depth."""
    for content in (proofs.bundle(proofs.stated(), key), msgspec.json.encode(proofs.stated())):
        document = json.loads(content)
        inner = document
        while isinstance(inner, (dict, list)) and inner:
            places = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            place = data.draw(st.sampled_from(places))
            if not isinstance(inner[place], (dict, list)) or not inner[place] or data.draw(st.booleans()):
                inner[place] = data.draw(JSON)
                break
            inner = inner[place]
        changed = json.dumps(document).encode()
        read_as_proof(changed, key)
        read_as_proof(sign(changed, statements.PAYLOAD_TYPE, key), key)


@settings(max_examples=200)
@given(position=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
def test_no_flipped_bit_leaves_a_proof(position: int, bit: int, key: PrivateKey) -> None:
    """A flipped bit is refused, or it is one of base64's last sign that no byte is made of: the proof is the same."""
    whole = proofs.bundle(proofs.stated(), key)
    content = bytearray(whole)
    content[position % len(content)] ^= 1 << bit
    result, same = (open_envelope(bytes(one), statements.PAYLOAD_TYPE, [key.public]) for one in (content, whole))
    assert isinstance(result, Rejection) or result == same
