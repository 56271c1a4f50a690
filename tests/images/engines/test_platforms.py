"""An engine says which platforms it can build for; where it cannot, one line says what to do."""

from __future__ import annotations

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.engines import docker, subprocesses
from envcheck.images.engines.docker import Docker, platforms
from envcheck.images.engines.subprocesses import CommandResult

# As buildx 0.13 prints it, with and without QEMU registered in binfmt_misc.
NATIVE = (
    "Name:   default\nDriver: docker\n\nNodes:\nStatus:    running\nPlatforms: linux/amd64, linux/amd64/v2\nLabels:\n"
)
EMULATED = NATIVE.replace("linux/amd64,", "linux/amd64*, linux/arm64,")


def test_the_platforms_of_buildx_are_read() -> None:
    assert platforms(NATIVE) == ["linux/amd64", "linux/amd64/v2"]
    assert platforms(EMULATED) == ["linux/amd64", "linux/arm64", "linux/amd64/v2"]
    assert platforms("ERROR: no builder") == []


@pytest.mark.parametrize(("status", "listed"), [(0, NATIVE), (1, EMULATED), (None, ""), (0, "")])
def test_without_emulation_arm64_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, status: int | None, listed: str
) -> None:
    monkeypatch.setattr(docker, "_builder_name", list)
    monkeypatch.setattr(subprocesses, "stream", lambda *_, **__: CommandResult(status, listed))
    with pytest.raises(UnavailableError, match="docker runs no linux/arm64 programs here; install qemu-user-static"):
        Docker.__new__(Docker).demand_platform("linux/arm64")
