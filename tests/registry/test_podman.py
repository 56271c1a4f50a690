"""What podman fetches: the image that `envcheck pull` chose."""

import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envcheck.registry.documents import StoredManifest, digest_of
from tests.processes import program, ran
from tests.registry.oci.fakes import push_parts
from tests.registry.site import Site

pytestmark = pytest.mark.tools
Run = Callable[..., str]


def push(site: Site, tag: str) -> StoredManifest:
    """Push an image of one file, which an engine can unpack."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    files = {"type": "layers", "diff_ids": [digest_of(layer.getvalue())]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": files}).encode()
    return push_parts(site.repository, config, layer.getvalue(), tag)


def running(environment: Mapping[str, str]) -> Run:
    def run(*argv: str) -> str:
        completed = ran(argv, env=environment, timeout=120)
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
