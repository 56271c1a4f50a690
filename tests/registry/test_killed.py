"""Publish and promote, cut off after each request that writes: nothing half-made counts, and the next completes it.

What is read in between changes nothing in the registry, so that these are all the states that a kill can leave.
"""

from pathlib import Path

import pytest

from tests.http_server import Answer, Request, Servers
from tests.registry.oci.fakes import FakeRegistry
from tests.registry.site import Site


@pytest.mark.parametrize("command", ["publish", "promote"])
def test_a_command_that_is_cut_off_anywhere_proves_nothing_and_the_next_completes_it(
    command: str, servers: Servers, tmp_path: Path
) -> None:
    registry = servers.start(FakeRegistry())
    writes, status = 0, 3
    while status:
        site, left = Site(registry.netloc, tmp_path), [writes]
        registry.fault = lambda _: None
        image = site.image(f"cut off after {writes} of {command}")
        name, policy = f"{site.name}@{image.digest}", site.write_policy("rejudge = false\n")
        words: tuple[object, ...] = ("publish", name, "--report", site.report(image), "--key", site.folder / "release")
        if command == "promote":
            site.attach(image)
            words = ("promote", name, "--to", "stable", "--policy", policy, "--key", site.folder / "release")
            name = f"{site.name}:stable"

        def cut(request: Request, left: list[int] = left) -> Answer | None:
            left[0] -= request.method not in ("GET", "HEAD")
            return Answer(403) if left[0] < 0 else None

        registry.fault = cut
        status, _ = site.run(*words)
        registry.fault = lambda _: None
        if status:
            assert site.run("pull", name, "--policy", site.policy, "--dry-run")[0] == 1
            assert site.run(*words)[0] == 0
        assert site.run("pull", name, "--policy", site.policy, "--dry-run")[0] == 0
        writes += 1
        registry.tags.clear()
    assert writes >= 4
