"""Where a repository is read with a mirror profile: its mirrors, its CA, and its hosts if it is closed."""

from pathlib import Path

import pytest

from envcheck.mirrors.profiles.model import Profile
from envcheck.registry.documents import RefusedError, RegistryUnavailableError, parse_reference
from envcheck.registry.repository import open_repository
from tests.certificates import signed
from tests.http_server import Answer, Servers
from tests.registry.oci.fakes import FakeRegistry, opened, push_image


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
    with pytest.raises(RefusedError, match="or write https:// before it"):
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
