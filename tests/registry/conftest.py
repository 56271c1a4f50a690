"""What tests of several rooms of the registry share: keys that are made anew for each run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from envcheck.signing import PrivateKey, load_private
from tests import proofs


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return a key that policies allow."""
    return proofs.key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return a key that only some policies allow."""
    return proofs.key(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="session")
def ecdsa_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return an ECDSA P-256 key that openssl made."""
    path: Path = tmp_path_factory.mktemp("ecdsa") / "key"
    words = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(path)]
    subprocess.run(words, check=True, capture_output=True)
    return load_private(path)
