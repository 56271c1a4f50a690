"""Certificates of servers in tests: by a private CA, or by nobody."""

import ssl
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_NEW = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Certificate(NamedTuple):
    """A certificate that a server has, its key, the certificate that it is to be trusted by, and a context of both."""

    ca: Path
    certificate: Path
    key: Path
    context: ssl.SSLContext


def signed(at: Path, *hosts: str, name: str = "ca.pem") -> Certificate:
    """Make a private CA, in a file of that name, and a server's certificate by it for addresses and names."""
    root = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl(at, *_NEW, "-x509", "-days", "2", "-subj", "/CN=Test CA", *root, "-keyout", "ca.key", "-out", name)
    return resigned(at / name, at, *hosts)


def resigned(ca: Path, at: Path, *hosts: str, extension: str = "", days: int = 2) -> Certificate:
    """Make another server's certificate by a CA of `signed`; `extension` is one more line for openssl."""
    (at / "names").write_text(f"{_names(hosts)}\nbasicConstraints=critical,CA:FALSE\n{extension}\n")
    openssl(at, *_NEW, "-subj", "/CN=mirror", "-keyout", "key.pem", "-out", "request.pem")
    by = ("-CA", ca, "-CAkey", ca.with_name("ca.key"), "-CAcreateserial", "-days", str(days))
    openssl(at, "x509", "-req", "-in", "request.pem", *by, "-extfile", "names", "-out", "cert.pem")
    return _certified(at, ca)


def self_signed(at: Path, *hosts: str) -> Certificate:
    own = ("-x509", "-days", "2", "-subj", "/CN=mirror", "-addext", _names(hosts))
    leaf = ("-addext", "basicConstraints=critical,CA:FALSE")
    openssl(at, *_NEW, *own, *leaf, "-keyout", "key.pem", "-out", "cert.pem")
    return _certified(at, at / "cert.pem")


def _names(hosts: Iterable[str]) -> str:
    return "subjectAltName=" + ",".join(f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts)


def _certified(at: Path, ca: Path) -> Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(at / "cert.pem", at / "key.pem")
    context.set_alpn_protocols(["http/1.1"])
    return Certificate(ca, at / "cert.pem", at / "key.pem", context)


def openssl(at: Path, *arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], cwd=at, check=True, capture_output=True)
