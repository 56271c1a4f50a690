"""Envelopes: what is signed is read back, and any other bytes are one named refusal and never an exception."""

import base64
import json
from collections.abc import Callable
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.registry import statement
from envcheck.registry import statement as statements
from envcheck.registry.envelope import EnvelopeContents, authenticated, open_envelope, sign
from envcheck.registry.statement import ProofRefusal, Rejection
from envcheck.signing import PrivateKey
from tests import proofs
from tests.tables import each

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


def test_a_bundle_has_the_form_that_sigstore_reads(key: PrivateKey) -> None:
    document = json.loads(sign(PAYLOAD, TYPE, key))
    assert document.pop("dsseEnvelope").keys() == {"payload", "payloadType", "signatures"}
    assert document == {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": key.public.id}},
    }


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


def uncanonical(content: bytes) -> bytes:
    """Set a bit of the signature's last sign that no byte is made of: 64 bytes end in one sign with two such bits."""
    document = json.loads(content)
    signature = document["dsseEnvelope"]["signatures"][0]
    head = signature["sig"].rstrip("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    bent = head[:-1] + alphabet[alphabet.index(head[-1]) + 1] + "=" * (len(signature["sig"]) - len(head))
    assert base64.b64decode(bent) == base64.b64decode(signature["sig"])
    signature["sig"] = bent
    return json.dumps(document).encode()


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
    "bits that no byte is made of": uncanonical,
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
    """Read the bytes as a proof is read; whatever they are, there is an answer."""
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
    for content in (proofs.bundle(proofs.stated(), key), statements.encode(proofs.stated())):
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
    """A flipped bit of the payload or its signature is never taken; one of the hint may leave the payload as it was."""
    whole = proofs.bundle(proofs.stated(), key)
    content = bytearray(whole)
    content[position % len(content)] ^= 1 << bit
    result = open_envelope(bytes(content), statements.PAYLOAD_TYPE, [key.public])
    assert isinstance(result, Rejection)
