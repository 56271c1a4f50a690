"""Where a repository is read with a mirror profile: its mirrors, its CA, and its hosts if it is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcheck.mirrors.profiles.model import Profile
from envcheck.registry.references import RefusedError, RegistryUnavailableError, parse_reference
from envcheck.registry.repository import open_repository, places, registry_hosts
from tests.certificates import signed
from tests.http_server import Answer, Servers
from tests.registry.oci.fakes import FakeRegistry, opened, push_image
from tests.tables import each

HUB, CACHE = "https://hub.mirror.example/library/torch:2", "http://127.0.0.1:5000/cache/library/torch:2"
MIRRORS = {"docker.io": ["hub.mirror.example", "http://127.0.0.1:5000/cache"], "nvcr.io": ["nv.mirror.example:5000"]}


@each(
    "name, closed, actual",
    [
        ("torch:2", False, [HUB, CACHE, "https://registry-1.docker.io/library/torch:2"]),
        ("torch:2", True, [HUB, CACHE]),
        ("nvcr.io/nvidia/cuda", False, ["https://nv.mirror.example:5000/nvidia/cuda", "https://nvcr.io/nvidia/cuda"]),
        ("quay.io/a/b", False, ["https://quay.io/a/b"]),
        ("quay.io/a/b", True, ["https://quay.io/a/b"]),
    ],
)
def test_a_name_is_read_at_the_mirrors_of_its_registry_and_then_at_itself(
    name: str,
    closed: bool,  # noqa: FBT001 (a column)
    actual: list[str],
) -> None:
    profile = Profile(name="site", registries=MIRRORS, closed=closed)
    read = places(parse_reference(name), profile)
    assert [f"{one.url}/{one.repository}{f':{one.tag}' if one.tag else ''}" for one in read] == actual


def test_the_profiles_registry_mirrors_docker_hub() -> None:
    [mirror, own] = places(parse_reference("torch"), Profile(name="site", registry="hub.mirror.example"))
    assert (mirror.name, own.name) == ("hub.mirror.example/library/torch", "docker.io/library/torch")
    assert registry_hosts(Profile(name="site", registries=MIRRORS)) == {
        "hub.mirror.example",
        "127.0.0.1",
        "nv.mirror.example",
    }


def test_a_closed_profile_refuses_a_registry_that_it_does_not_name(servers: Servers) -> None:
    registry = servers.start(FakeRegistry())
    reference = parse_reference(f"{registry.netloc}/a/b")
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:\d+ is not in the profile.*add the host"):
        open_repository(reference, Profile(name="site", registries={"a.example": ["b.example"]}, closed=True)).tags()
    assert registry.requests == []
    named = Profile(name="site", registries={"a.example": [f"http://{registry.netloc}"]}, closed=True)
    assert open_repository(reference, named).tags() == []


def test_http_and_https_taken_for_each_other_are_named(servers: Servers) -> None:
    plain = servers.start(FakeRegistry())
    with pytest.raises(RegistryUnavailableError, match=rf"write http://{plain.netloc}/"):
        opened(f"https://{plain.netloc}").manifest("latest")
    # What a server of Go's answers, such as docker-registry over TLS.
    page = Answer(400, b"Client sent an HTTP request to an HTTPS server.\n")
    other = servers.start(FakeRegistry(lambda _: page))
    with pytest.raises(RefusedError, match=rf"if it speaks TLS, write https://{other.netloc}/"):
        opened(other.netloc).manifest("latest")


def test_a_registry_is_reached_over_tls_with_the_ca_of_the_site(servers: Servers, tmp_path: Path) -> None:
    certified = signed(tmp_path, "127.0.0.1")
    registry = servers.start(FakeRegistry(tls=certified.context))
    reference = parse_reference(f"https://{registry.netloc}/team/torch")
    site = open_repository(reference, Profile(name="site", ca=str(certified.ca)))
    assert push_image(site, tag="latest") == site.manifest("latest")
    with pytest.raises(RegistryUnavailableError, match=r"TLS: .*CA certificate as `ca:`"):
        open_repository(reference).tags()
    plain = parse_reference(f"http://{registry.netloc}/team/torch")
    with pytest.raises(RegistryUnavailableError):
        open_repository(plain, sleep=lambda _: None).tags()
