"""What podman, skopeo and docker fetch: the image that `envcheck pull` chose, and what of an index that is refused."""

import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from envcheck.registry.documents import StoredManifest, digest_of
from tests.e2e.private_engine import CannotStartError, private_engine
from tests.processes import program, ran
from tests.registry.oci.fakes import push_parts, push_rows
from tests.registry.site import Site

pytestmark = pytest.mark.tools
Run = Callable[..., str]
# How an index may call an image that nobody proved, before the proven one, so that some engine takes it.
FORMS: Final[list[dict[str, Any]]] = [
    {"platform": {"os": "linux", "architecture": "amd64"}},
    {"platform": {"os": "Linux", "architecture": "x86_64"}},
    {"platform": {"os": "linux", "architecture": "amd64", "variant": "v1"}},
    {"platform": {"os": "linux", "architecture": "amd64", "variant": "v2"}},
    {},
]


def push(site: Site, tag: str, word: str = "") -> StoredManifest:
    """Push an image of one file, which an engine can unpack."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    files = {"type": "layers", "diff_ids": [digest_of(layer.getvalue())]}
    labelled = {"Labels": {"word": word}} if word else {}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": labelled, "rootfs": files}).encode()
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


def taken_through(site: Site, take: Callable[[str], str]) -> list[str]:
    """Return which image each index of FORMS leads a puller to, none of which may be promoted."""
    proven, stranger = push(site, "proven", "proven"), push(site, "stranger", "stranger")
    site.attach(proven)
    took = []
    for number, form in enumerate(FORMS):
        index = push_rows(site.repository, f"both{number}", (stranger, form), (proven, FORMS[0]))
        status, said = site.promote(index, "--to", "stable")
        assert (status, "stable" in site.repository.tags()) == (1, False), said
        took.append(take(f"{site.name}:both{number}"))
    return took


def test_podman_and_skopeo_take_from_a_refused_index_what_nobody_proved(
    site: Site, tmp_path: Path, podman: str
) -> None:
    run, skopeo = with_podman(tmp_path, site.repository.reference.registry), program("skopeo")

    def by_podman(name: str) -> str:
        run(podman, "pull", "--quiet", name)
        return str(json.loads(run(podman, "image", "inspect", name))[0]["Labels"]["word"])

    def by_skopeo(name: str) -> str:
        config = json.loads(run(skopeo, "inspect", "--config", "--tls-verify=false", f"docker://{name}"))["config"]
        return str(config["Labels"]["word"])

    for take in (by_podman, by_skopeo):
        assert "stranger" in taken_through(site, take)


@pytest.fixture(scope="module")
def docker() -> Iterator[Run]:
    try:
        with private_engine() as engine:
            yield running({**os.environ, **engine.environment})
    except CannotStartError as error:
        pytest.skip(str(error))


@pytest.mark.engine
def test_docker_takes_from_a_refused_index_what_nobody_proved(site: Site, docker: Run) -> None:
    def by_docker(name: str) -> str:
        docker("docker", "pull", "--quiet", name)
        return docker("docker", "image", "inspect", "--format={{.Config.Labels.word}}", name).strip()

    assert "stranger" in taken_through(site, by_docker)
