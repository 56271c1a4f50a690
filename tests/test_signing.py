"""Keys and signatures: what is made is readable by openssl and its owner alone, and a bad file is one clear line."""

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
from hypothesis import given
from hypothesis import strategies as st

from envcheck import signing
from envcheck.errors import ConfigError

MESSAGE: Final = b"what is signed"
SECRET: Final = b"correct horse"


def openssl(*words: object) -> bytes:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True).stdout


def made(folder: Path, kind: str) -> tuple[Path, Path]:
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
    assert (private.public.id, private.public.pem) == (public.id, public.pem)
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


@pytest.mark.parametrize("there", ["key", "key.pub"])
def test_no_file_is_ever_replaced_and_no_half_pair_is_left(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=rf"/{there}: a file with this name is there"):
        signing.new_key(tmp_path / "key")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]
    (tmp_path / there).unlink()
    (tmp_path / there).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is there"):
        signing.new_key(tmp_path / "key")
    assert [path.name for path in tmp_path.iterdir()] == [there]


def refusal(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read(path)
    assert "\n" not in str(refused.value)
    return refused.value.message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("kind", ["RSA", "P-384", "X25519"])
def test_other_kinds_of_keys_are_refused(kind: str, tmp_path: Path) -> None:
    private, public = made(tmp_path, kind)
    assert "not an ed25519 or ECDSA P-256" in refusal(signing.load_private, private)
    assert "not an ed25519 or ECDSA P-256" in refusal(signing.load_public, public)


def test_other_files_are_one_line_that_does_not_show_their_content(tmp_path: Path) -> None:
    files = {"password": b"hunter2\n", "empty": b"", "binary": bytes(range(256)), "long": bytes(70_000)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        for read in (signing.load_private, signing.load_public):
            assert refusal(read, tmp_path / name).startswith("without a PEM block, not an ed25519 or ECDSA P-256 p")
    for label, says in (("ENCRYPTED SIGSTORE PRIVATE", "only cosign can open"), ("PRIVATE", "damaged")):
        (tmp_path / "damaged").write_text(f"-----BEGIN {label} KEY-----\nAA\n-----END {label} KEY-----\n")
        assert says in refusal(signing.load_private, tmp_path / "damaged")
        assert "do not hand it out" in refusal(signing.load_public, tmp_path / "damaged")


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
