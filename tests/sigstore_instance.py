"""A Sigstore instance for tests: a certificate authority (Fulcio), a log of entries (Rekor) and one of certificates.

The public one cannot be reached from the tests. Certificates, log entries, proofs of inclusion and promises are real
ones of keys made here; the two services are answers on the loopback. sigstore-python signs and verifies.
"""

import base64
import datetime as dt
import hashlib
import json
import struct
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from envcheck.registry import statement as statements
from envcheck.registry.envelope import BUNDLE_TYPE, authenticated
from tests.http_server import Answer, Request

IDENTITY: Final = "https://github.com/example/torch/.github/workflows/gpu.yml@refs/heads/main"
ISSUER: Final = "https://token.actions.githubusercontent.com"
HOST: Final = "log.test"
# As Rekor v1 writes it, with the number of its tree: sigstore-go takes any other origin for Rekor v2.
ORIGIN: Final = f"{HOST} - 1"
_SINCE: Final = "2020-01-01T00:00:00Z"
_NAMES: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
_USAGE: Final = {
    "content_commitment": False,
    "key_encipherment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "crl_sign": False,
    "encipher_only": False,
    "decipher_only": False,
}


class Entry(NamedTuple):
    """What the log holds of a bundle, and when it took it."""

    body: bytes
    time: int


class SigstoreInstance:
    """The keys of an instance, and what it makes with them."""

    def __init__(self) -> None:
        self._ca, self._log, self._ct = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        self.root = self._root()
        self.identity, self.issuer = IDENTITY, ISSUER

    def trusted_root(self, **changes: Any) -> bytes:
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_instance(self._log, "https://log.test")],
            "ctlogs": [_instance(self._ct, "https://ct.test")],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "test", "commonName": "Test CA"},
                    "uri": "https://ca.test",
                    "certChain": {"certificates": [{"rawBytes": _text(self.root.public_bytes(Encoding.DER))}]},
                    "validFor": {"start": _SINCE},
                }
            ],
            "timestampAuthorities": [],
        }
        return json.dumps({**document, **changes}).encode()

    def trust_config(self, url: str) -> bytes:
        """Return what signers are given: the trusted root, and where the services are."""
        service = {"url": url, "majorApiVersion": 1, "validFor": {"start": _SINCE}, "operator": "test"}
        signing = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service],
            "oidcUrls": [service],
            "rekorTlogUrls": [service],
            "tsaUrls": [],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaConfig": {"selector": "ANY"},
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": json.loads(self.trusted_root()),
            "signingConfig": signing,
        }
        return json.dumps(document).encode()

    def certificate(self, key: ec.EllipticCurvePublicKey, at: dt.datetime) -> x509.Certificate:
        plain = self._leaf(key, at)
        precertificate = plain.sign(self._ca, SHA256()).tbs_certificate_bytes
        moment = int(at.timestamp() * 1000)
        issuer = hashlib.sha256(_spki(self._ca)).digest()
        size = len(precertificate).to_bytes(3, "big")
        signed = struct.pack("!BBQH", 0, 0, moment, 1) + issuer + size + precertificate + b"\0\0"
        signature = self._ct.sign(signed, ec.ECDSA(SHA256()))
        stamp = (
            b"\0" + hashlib.sha256(_spki(self._ct)).digest() + struct.pack("!QHBBH", moment, 0, 4, 3, len(signature))
        )
        one = struct.pack("!H", len(stamp + signature)) + stamp + signature
        listed = struct.pack("!H", len(one)) + one
        octets = b"\x04" + (bytes([len(listed)]) if len(listed) < 128 else bytes([0x81, len(listed)])) + listed
        promise = x509.UnrecognizedExtension(ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2"), octets)
        return plain.add_extension(promise, critical=False).sign(self._ca, SHA256())

    def bundle(self, payload: bytes, *, at: dt.datetime, delay: int = 0) -> dict[str, Any]:
        """Return the bundle of a payload whose certificate is of `at`; the log takes it `delay` seconds later."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.certificate(key.public_key(), at)
        signature = key.sign(authenticated(payload, statements.PAYLOAD_TYPE), ec.ECDSA(SHA256()))
        entry = self.entry(payload, signature, certificate, int(at.timestamp()) + delay)
        envelope = {
            "payload": _text(payload),
            "payloadType": statements.PAYLOAD_TYPE,
            "signatures": [{"sig": _text(signature)}],
        }
        return {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {
                "certificate": {"rawBytes": _text(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._stated(entry)],
            },
            "dsseEnvelope": envelope,
        }

    def entry(self, payload: bytes, signature: bytes, certificate: x509.Certificate, at: int) -> Entry:
        body = {
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(signature).hexdigest()},
                "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
                "signatures": [
                    {"signature": _text(signature), "verifier": _text(certificate.public_bytes(Encoding.PEM))}
                ],
            },
        }
        return Entry(json.dumps(body).encode(), at)

    def answer(self, request: Request) -> Answer:
        """Answer as the CI that gives a token, as Fulcio and as Rekor."""
        if request.route == "/token":
            return _json({"value": token(self.issuer)})
        document = json.loads(request.body)
        if request.route == "/api/v2/signingCert":
            csr = x509.load_pem_x509_csr(base64.b64decode(document["certificateSigningRequest"]))
            key = csr.public_key()
            assert isinstance(key, ec.EllipticCurvePublicKey)
            chain = [self.certificate(key, dt.datetime.now(dt.timezone.utc).replace(microsecond=0)), self.root]
            texts = [each.public_bytes(Encoding.PEM).decode() for each in chain]
            return _json({"signedCertificateEmbeddedSct": {"chain": {"certificates": texts}}})
        assert request.route == "/api/v1/log/entries"
        content = document["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        certificate = x509.load_pem_x509_certificate(base64.b64decode(content["verifiers"][0]))
        payload, signature = (
            base64.b64decode(text) for text in (envelope["payload"], envelope["signatures"][0]["sig"])
        )
        now = int(dt.datetime.now(dt.timezone.utc).timestamp())
        return _json({"1": self._answered(self.entry(payload, signature, certificate, now))}, 201)

    def _stated(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as bundles have it."""
        answered = self._answered(entry)
        proof = answered["verification"]["inclusionProof"]
        root, sibling = (_text(bytes.fromhex(digest)) for digest in (proof["rootHash"], *proof["hashes"]))
        stated = {"rootHash": root, "hashes": [sibling], "checkpoint": {"envelope": proof["checkpoint"]}}
        return {
            "logIndex": "1",
            "logId": {"keyId": _text(self._log_id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(entry.time),
            "inclusionPromise": {"signedEntryTimestamp": answered["verification"]["signedEntryTimestamp"]},
            "inclusionProof": {"logIndex": "1", "treeSize": "2", **stated},
            "canonicalizedBody": answered["body"],
        }

    def _answered(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as Rekor answers with it, with the proof that the log, whose other entry is empty, has it.

        RFC 6962, section 2.1.
        """
        sibling, leaf = (hashlib.sha256(b"\0" + body).digest() for body in (b"", entry.body))
        root = hashlib.sha256(b"\1" + sibling + leaf).digest()
        note = f"{ORIGIN}\n2\n{_text(root)}\n"
        by = _text(self._log_id[:4] + self._log.sign(note.encode(), ec.ECDSA(SHA256())))
        proof = {"logIndex": 1, "rootHash": root.hex(), "treeSize": 2, "hashes": [sibling.hex()]}
        proof["checkpoint"] = f"{note}\n\N{EM DASH} {HOST} {by}\n"
        known = {"body": _text(entry.body), "integratedTime": entry.time, "logID": self._log_id.hex(), "logIndex": 1}
        promise = self._log.sign(json.dumps(known, separators=(",", ":")).encode(), ec.ECDSA(SHA256()))
        return {**known, "verification": {"inclusionProof": proof, "signedEntryTimestamp": _text(promise)}}

    @property
    def _log_id(self) -> bytes:
        return hashlib.sha256(_spki(self._log)).digest()

    def _leaf(self, key: ec.EllipticCurvePublicKey, at: dt.datetime) -> x509.CertificateBuilder:
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=False, **_USAGE)
        signer = x509.SubjectKeyIdentifier.from_public_key(self._ca.public_key())
        return (
            x509.CertificateBuilder(_NAMES, x509.Name([]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(at)
            .not_valid_after(at + dt.timedelta(minutes=10))
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(self.identity)]), critical=True)
            .add_extension(
                x509.UnrecognizedExtension(ObjectIdentifier("1.3.6.1.4.1.57264.1.1"), self.issuer.encode()),
                critical=False,
            )
        )

    def _root(self) -> x509.Certificate:
        key = self._ca.public_key()
        usage = x509.KeyUsage(digital_signature=False, key_cert_sign=True, **_USAGE)
        return (
            x509.CertificateBuilder(_NAMES, _NAMES)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc))
            .not_valid_after(dt.datetime(2045, 1, 1, tzinfo=dt.timezone.utc))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .sign(self._ca, SHA256())
        )


def token(issuer: str) -> str:
    """Return a CI's token (JWT) for Sigstore; its signature, which only Fulcio looks at, is empty."""
    now = int(dt.datetime.now(dt.timezone.utc).timestamp())
    claims = {"iss": issuer, "aud": "sigstore", "sub": "repo:example/torch", "iat": now, "exp": now + 600}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "RS256"}, claims)
    ]
    return ".".join([*parts, "c2VjcmV0LWNhbmFyeQ"])


def _instance(key: ec.EllipticCurvePrivateKey, url: str) -> dict[str, Any]:
    details = {
        "rawBytes": _text(_spki(key)),
        "keyDetails": "PKIX_ECDSA_P256_SHA_256",
        "validFor": {"start": _SINCE},
    }
    log_id = {"keyId": _text(hashlib.sha256(_spki(key)).digest())}
    return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": details, "logId": log_id}


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _json(document: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
