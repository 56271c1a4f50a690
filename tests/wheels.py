"""Wheels that tests make: small, pure, and whole, as installers want them."""

import base64
import functools
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path


@functools.lru_cache(2)
def _noise(name: str, size: int) -> bytes:
    return hashlib.shake_256(name.encode()).digest(size)


def wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Iterable[str] = (),
    files: Mapping[str, str | bytes] | None = None,
    metadata: str = "",
    ballast: int = 0,
) -> Path:
    """Write a wheel of a module that says its version, or of other files, with bytes that do not compress."""
    module = name.replace("-", "_")
    stem, info = f"{module}-{version}", f"{module}-{version}.dist-info"
    result = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
    texts = dict(files or {f"{module}.py": f"VERSION = {version!r}\n"})
    texts[f"{info}/METADATA"] = result + "".join(f"Requires-Dist: {line}\n" for line in requires)
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = {path: text if isinstance(text, bytes) else text.encode() for path, text in texts.items()}
    content |= {f"{module}.bin": _noise(name, ballast)} if ballast else {}
    rows = [f"{path},{_digest(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]).encode() + b"\n"
    path = directory / f"{stem}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in content.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o755 if "/bin/" in file else 0o644) << 16
            archive.writestr(entry, data)
    return path


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
