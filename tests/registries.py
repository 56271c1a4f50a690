"""Real registries for tests: docker-registry of the distribution, and one with the referrers API."""

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.certificates import Certificate
from tests.processes import program
from tests.waiting import eventually


@contextlib.contextmanager
def docker_registry(at: Path, tls: Certificate | None = None, password_file: Path | None = None) -> Iterator[str]:
    """Serve docker-registry, which has no referrers API, and yield HOST:PORT. Its files are in data/.

    With a certificate it is served over TLS, and with a password file (htpasswd, bcrypt) to those who log in.
    """
    address = _free_address()
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(at / "data")}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    if tls is not None:
        config["http"]["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    if password_file is not None:
        config["auth"] = {"htpasswd": {"realm": "site", "path": str(password_file)}}
    (at / "registry.yml").write_text(json.dumps(config))
    with _serving([program("docker-registry"), "serve", str(at / "registry.yml")], at, address):
        yield address


@contextlib.contextmanager
def referrers_registry(at: Path) -> Iterator[str]:
    """Serve a registry that has the referrers API and keeps everything in memory; yield HOST:PORT."""
    address = _free_address()
    with _serving([program("referrers-registry"), address], at, address):
        yield address


def stored_blob(at: Path, digest: str) -> Path:
    value = digest.partition(":")[2]
    return at / "data/docker/registry/v2/blobs/sha256" / value[:2] / value / "data"


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def _serving(argv: list[str], at: Path, address: str) -> Iterator[None]:
    host, _, port = address.partition(":")
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with (at / "registry.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)

    def there() -> bool:
        assert process.poll() is None, (at / "registry.log").read_text()
        with socket.socket() as tried:
            return tried.connect_ex((host, int(port))) == 0

    try:
        assert eventually(there, expected=True), (at / "registry.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


def cosign(home: Path, *words: str) -> tuple[int, str]:
    """Run cosign, which reaches nothing but this machine, and return its exit code and what it says."""
    environment = {"HOME": str(home), "HTTPS_PROXY": "127.0.0.1:9", "COSIGN_PASSWORD": ""}
    argv = [program("cosign"), *words]
    completed = subprocess.run(argv, cwd=home, env=environment, capture_output=True, text=True, check=False)
    return completed.returncode, completed.stderr
