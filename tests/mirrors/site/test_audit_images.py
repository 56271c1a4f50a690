"""An audit of images: what a real pull-through registry serves is compared with the digests that name it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.site.audit.over_http import registry_of
from envcheck.mirrors.site.audit.registry_images import ImageName, image_name
from tests.mirrors.site.audits import audit, verdicts
from tests.mirrors.site.conftest import envcheck
from tests.mirrors.site.test_render import site as everything
from tests.mirrors.site.test_up import LAYER, MANIFEST, digest, up, upstream_registry

pytestmark = pytest.mark.tools
__all__ = ["up", "upstream_registry"]


def blob(root: Path, content: bytes) -> Path:
    name = digest(content).removeprefix("sha256:")
    return root / "cache/registry/test/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


def test_a_poisoned_manifest_or_layer_is_found_and_the_fix_pulls_it_anew(up: tuple[Path, int]) -> None:
    root, port = up
    names = [f"lib/image@{digest(content)}" for content in (MANIFEST, b"{}", LAYER)]
    option = ("--image", f"test/{names[0]}")
    assert audit(root, "images", *option)[0] == 0
    code, findings = audit(root, "images", *option)
    assert (code, verdicts(findings)) == (0, dict.fromkeys(names, "clean"))
    # The registry serves wrong content of the right size, and JSON that was changed, as it is.
    blob(root, LAYER).write_bytes(b"A" + LAYER[1:])
    code, findings = audit(root, "images", *option)
    assert (code, findings[names[2]]["verdict"]) == (1, "poisoned")
    assert "rm -r" in findings[names[2]]["fix"]
    blob(root, MANIFEST).write_bytes(MANIFEST.replace(b'"size": 2', b'"size": 3'))
    code, findings = audit(f"http://127.0.0.1:{port + 2}", "images", "--image", names[0])
    assert (code, verdicts(findings)) == (1, {names[0]: "poisoned"}), "what a wrong manifest lists is not read"
    assert envcheck("mirror", "site", "down", str(root)).returncode == 0
    subprocess.run(["rm", "-r", str(root / "cache/registry")], check=True)
    assert envcheck("mirror", "site", "up", str(root)).returncode == 0
    assert audit(root, "images", *option)[0] == 0


def test_a_tag_has_no_digest_and_its_blobs_have(up: tuple[Path, int]) -> None:
    root, _ = up
    code, findings = audit(root, "images", "--image", "test/lib/image:one")
    assert code == 0
    assert verdicts(findings) == {
        "lib/image:one": "unknown",
        f"lib/image@{digest(b'{}')}": "clean",
        f"lib/image@{digest(LAYER)}": "clean",
    }
    assert audit(root, "images", "--image", "test/lib/image:one", "--strict")[0] == 3
    code, findings = audit(root, "images", "--image", "test/lib/absent:one")
    assert (code, verdicts(findings)) == (3, {"lib/absent:one": "unavailable"})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("docker.io/library/debian:12", ImageName("docker.io/library/debian", "12")),
        ("debian", ImageName("debian", "latest")),
        (f"a/b:c@sha256:{'a' * 64}", ImageName("a/b", "c", f"sha256:{'a' * 64}")),
    ],
)
def test_a_name_is_read_as_docker_reads_it(text: str, name: ImageName) -> None:
    assert image_name(text) == name


@pytest.mark.parametrize("text", ["", "A/b", "a@sha256:1", "../a", "a/b?c"])
def test_what_is_no_image_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        image_name(text)


def test_an_image_is_found_in_the_registry_that_its_name_begins_with(tmp_path: Path) -> None:
    site = everything(tmp_path)
    assert [registry.name for registry in site.registries] == ["docker.io"]
    for text in ("debian:12", "library/debian:12", "docker.io/library/debian:12"):
        assert registry_of(site, image_name(text))[1].repository == "library/debian"
    with pytest.raises(ConfigError, match=r"ghcr\.example"):
        registry_of(site, image_name("ghcr.example/a/b:1"))
