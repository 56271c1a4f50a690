"""What podman fetches: the image that `envcheck pull` chose."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envcheck.registry.documents import (
    OCI_MANIFEST,
    Descriptor,
    ImageManifest,
    StoredManifest,
    digest_of,
    encode,
)
from tests.registries import program
from tests.registry.site import Site

pytestmark = pytest.mark.tools
KIND = "application/vnd.oci.image"
Run = Callable[..., str]


def push(site: Site, tag: str) -> StoredManifest:
    """Push an image of one file, which an engine can unpack."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    files = {"type": "layers", "diff_ids": [digest_of(layer.getvalue())]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": files}).encode()
    blobs = [
        Descriptor(media_type=f"{KIND}.{kind}", digest=digest_of(content), size=len(content))
        for kind, content in (("config.v1+json", config), ("layer.v1.tar", layer.getvalue()))
    ]
    for content in (config, layer.getvalue()):
        site.repository.push_blob(content)
    manifest = ImageManifest(schema_version=2, media_type=OCI_MANIFEST, config=blobs[0], layers=blobs[1:])
    site.repository.push_manifest(encode(manifest), OCI_MANIFEST, tag)
    return site.repository.manifest(tag)


def running(environment: Mapping[str, str]) -> Run:
    def run(*argv: str) -> str:
        completed = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return run


def with_podman(at: Path, *hosts: str) -> Run:
    """Return what runs programs as podman needs it, which takes images from these hosts and keeps them below `at`."""
    settings = at / ".config/containers"
    settings.mkdir(parents=True)
    (settings / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    where = f'driver = "vfs"\ngraphroot = "{at}/images"\nrunroot = "{at}/run"\n'
    (settings / "storage.conf").write_text(f"[storage]\n{where}")
    (settings / "registries.conf").write_text(
        "".join(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n' for host in hosts)
    )
    named = {f"CONTAINERS_{name.upper()}_CONF": str(settings / f"{name}.conf") for name in ("storage", "registries")}
    return running({**os.environ, "HOME": str(at), **named})


@pytest.fixture
def podman(monkeypatch: pytest.MonkeyPatch) -> str:
    apart = os.environ.get("ENVCHECK_TEST_PODMAN", os.environ["PATH"])
    monkeypatch.setenv("PATH", apart, prepend=os.pathsep)
    return program("podman")


def test_podman_has_what_was_proven(on_disk: Site, tmp_path: Path, podman: str) -> None:
    image = push(on_disk, "2.13.0-cpu-py311-runtime")
    on_disk.attach(image)
    run = with_podman(tmp_path, on_disk.repository.reference.registry)
    words = ("--from", on_disk.name, "--policy", str(on_disk.policy), "--engine", "podman", "--json")
    pulled = json.loads(run(sys.executable, "-m", "envcheck", "pull", *words))
    assert pulled["chosen"] == f"{on_disk.name}@{image.digest}"
    inspected = json.loads(run(podman, "image", "inspect", pulled["pulled"]["name"]))
    assert inspected[0]["Digest"] == image.digest
