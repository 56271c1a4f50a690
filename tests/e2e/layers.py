"""Search every byte of an image: the layers' files and names, and what is said about them."""

import gzip
import json
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

CHUNK = 1 << 20


def search(image: str, needles: Iterable[str], env: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return each needle that is in the image, and where: a layer, the configuration or the history."""
    expected = [needle.encode() for needle in needles]
    archive = scratch / "image.tar"
    subprocess.run(["docker", "save", "--output", archive, image], env=env, check=True)
    data: dict[str, str] = {}
    with tarfile.open(archive) as outer:
        for member in outer:
            stream = outer.extractfile(member) if member.isfile() else None
            if stream is not None:
                data |= {n.decode(): member.name for n in _in(_plain(stream), expected)}
    archive.unlink()
    for about in (["history", "--no-trunc", "--format={{json .}}", image], ["inspect", image]):
        output = subprocess.run(["docker", *about], env=env, check=True, capture_output=True).stdout
        data |= {needle.decode(): f"docker {about[0]}" for needle in expected if needle in output}
    return data


def labels(image: str, env: Mapping[str, str]) -> dict[str, str]:
    output = subprocess.run(["docker", "inspect", image], env=env, check=True, capture_output=True).stdout
    return dict(json.loads(output)[0]["Config"]["Labels"] or {})


def _plain(stream: IO[bytes]) -> IO[bytes]:
    magic = stream.read(2)
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if magic == b"\x1f\x8b" else stream  # type: ignore[return-value]  # reads alike


def _in(stream: IO[bytes], contents: list[bytes]) -> set[bytes]:
    actual: set[bytes] = set()
    keep = max(map(len, contents)) - 1
    remaining = b""
    while chunk := stream.read(CHUNK):
        text = remaining + chunk
        actual |= {needle for needle in contents if needle in text}
        remaining = text[-keep:]
    return actual
