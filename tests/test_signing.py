"""Keys and signatures: what is made is readable by openssl and its owner alone, and a bad file is one clear line."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from envcheck import signing
from envcheck.errors import ConfigError

MESSAGE: Final = b"what is signed"
SECRET: Final = b"correct horse"


def openssl(*words: object) -> bytes:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True).stdout


def made(folder: Path, kind: str) -> tuple[Path, Path]:
    """Return a private and a public key that openssl made."""
    private, public = folder / "key", folder / "key.pub"
    kinds = {
        "ed25519": ("-algorithm", "ed25519"),
        "P-256": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
        "P-384": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"),
        "RSA": ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"),
        "X25519": ("-algorithm", "X25519"),
    }
    openssl("genpkey", *kinds[kind], "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public)
    return private, public


def test_a_new_key_is_its_owners_alone_and_signs(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        public = signing.new_key(tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    der = openssl("pkey", "-pubin", "-in", tmp_path / "key.pub", "-outform", "DER")
    assert public.id == base64.b64encode(hashlib.sha256(der).digest()).decode()
    private = signing.load_private(tmp_path / "key")
    assert (private.public.kind, private.public.id, private.public.pem) == ("ed25519", public.id, public.pem)
    signed = private.sign(MESSAGE)
    assert signing.load_public(tmp_path / "key.pub").verifies(MESSAGE, signed)
    assert not public.verifies(MESSAGE + b".", signed)
    assert str(private).count("object at") == 0


@pytest.mark.parametrize("kind", ["ed25519", "P-256"])
def test_keys_of_openssl_sign_and_another_key_does_not_verify(kind: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    private, public = made(tmp_path, kind)
    signed = signing.load_private(private).sign(MESSAGE)
    assert signing.load_public(public).verifies(MESSAGE, signed)
    assert not signing.load_public(made(tmp_path / "other", kind)[1]).verifies(MESSAGE, signed)
    for wrong in (b"", signed[:-1], signed + b"0", bytes(64), signed[:-1] + bytes([signed[-1] ^ 1])):
        assert not signing.load_public(public).verifies(MESSAGE, wrong)


def test_a_signature_of_openssl_verifies(tmp_path: Path) -> None:
    private, public = made(tmp_path, "P-256")
    (tmp_path / "message").write_bytes(MESSAGE)
    signed = openssl("dgst", "-sha256", "-sign", private, tmp_path / "message")
    assert signing.load_public(public).verifies(MESSAGE, signed)


def test_a_password_locks_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    signing.new_key(key, SECRET)
    assert b"ENCRYPTED" in key.read_bytes()
    assert signing.load_private(key, SECRET).sign(MESSAGE)
    with pytest.raises(ConfigError, match=r"/key: the key has a password, and none was given; set ENVCHECK_KEY_PASS"):
        signing.load_private(key)
    with pytest.raises(ConfigError, match=r"/key: the password does not open this key"):
        signing.load_private(key, b"wrong")
    assert signing.password() is None
    monkeypatch.setenv(signing.PASSWORD, SECRET.decode())
    assert signing.password() == SECRET


def test_an_ed25519_key_in_any_pem_is_read_as_cryptography_reads_it(tmp_path: Path) -> None:
    private, public = made(tmp_path, "ed25519")
    pem = public.read_bytes()
    text = openssl("pkey", "-pubin", "-in", public, "-text")  # words after the block
    for content in (pem, pem.replace(b"\n", b"\r\n"), b"a comment\n" + pem, text, b"\n" + pem + b"\n", pem.rstrip()):
        public.write_bytes(content)
        key = signing.load_public(public)
        expected = serialization.load_pem_public_key(content)
        der, again = (
            expected.public_bytes(form, serialization.PublicFormat.SubjectPublicKeyInfo)
            for form in (serialization.Encoding.DER, serialization.Encoding.PEM)
        )
        assert (key.pem, key.id) == (again, base64.b64encode(hashlib.sha256(der).digest()).decode())
        assert key.verifies(MESSAGE, signing.load_private(private).sign(MESSAGE))


@pytest.mark.parametrize("damage", [(b"MC", b"MD"), (b"MCow", b"MCowMCow"), (b"=", b""), (b"-----END", b"----END")])
def test_a_damaged_ed25519_key_is_refused(damage: tuple[bytes, bytes], tmp_path: Path) -> None:
    _, public = made(tmp_path, "ed25519")
    public.write_bytes(public.read_bytes().replace(*damage))
    with pytest.raises(ConfigError, match="damaged"):
        signing.load_public(public)


@pytest.mark.parametrize("there", ["key", "key.pub"])
def test_no_file_is_ever_replaced_and_no_half_pair_is_left(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=rf"/{there}: a file with this name is there"):
        signing.new_key(tmp_path / "key")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is there"):
        signing.new_key(tmp_path / "key")
    assert not (tmp_path / "elsewhere").exists()


def refusal(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read(path)
    assert "\n" not in str(refused.value)
    return refused.value.message.removeprefix(f"{path}: ")


PRIVATE: Final = "not an ed25519 or ECDSA P-256 private key"
PUBLIC: Final = "not an ed25519 or ECDSA P-256 public key"


@pytest.mark.parametrize("kind", ["RSA", "P-384", "X25519"])
def test_other_kinds_of_keys_are_named(kind: str, tmp_path: Path) -> None:
    private, public = made(tmp_path, kind)
    name = {"RSA": "RSA", "P-384": "ECDSA secp384r1", "X25519": "unknown"}[kind]
    assert refusal(signing.load_private, private) == f"its kind is {name}, {PRIVATE}"
    assert refusal(signing.load_public, public) == f"its kind is {name}, {PUBLIC}"


def test_other_files_are_one_line_that_does_not_show_their_content(tmp_path: Path) -> None:
    files = {
        "password": (b"hunter2\n", "the file has no PEM block: {} in PEM"),
        "empty": (b"", "the file is empty: {} in PEM"),
        "blank": (b" \n", "the file is empty: {} in PEM"),
        "binary": (bytes(range(256)), "the file has no PEM block: {} in PEM"),
        "long": (bytes(70_000), "longer than any key"),
    }
    for name, (content, message) in files.items():
        (tmp_path / name).write_bytes(content)
        assert refusal(signing.load_private, tmp_path / name) == message.format(PRIVATE)
        assert refusal(signing.load_public, tmp_path / name) == message.format(PUBLIC)
    (tmp_path / "cosign").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAA\n-----END")
    assert "only cosign can open" in refusal(signing.load_private, tmp_path / "cosign")
    (tmp_path / "damaged").write_text("-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----\n")
    assert "damaged" in refusal(signing.load_private, tmp_path / "damaged")
    (tmp_path / "damaged.pub").write_text("-----BEGIN PUBLIC KEY-----\nAA\n-----END PUBLIC KEY-----\n")
    assert "damaged" in refusal(signing.load_public, tmp_path / "damaged.pub")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "Is a directory"),
        (tmp_path / "gone", "No such file or directory"),
        (tmp_path / "pipe", "not a regular file"),
    ):
        assert message in refusal(signing.load_private, path)
        assert message in refusal(signing.load_public, path)


@given(content=st.binary(max_size=200), begin=st.sampled_from(["PRIVATE KEY", "PUBLIC KEY", "ENCRYPTED PRIVATE KEY"]))
def test_any_content_is_a_key_or_a_refusal(
    content: bytes, begin: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-key"
    body = base64.encodebytes(content).decode()
    path.write_text(f"-----BEGIN {begin}-----\n{body}-----END {begin}-----\n")
    for read in (signing.load_private, signing.load_public):
        with contextlib.suppress(ConfigError):
            read(path)
