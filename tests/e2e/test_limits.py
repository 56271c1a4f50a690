"""An image under the limits that containers are given: each check that a limit takes names it."""

import json

import pytest

from tests.e2e.conftest import Image, Machine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
# The options of `docker run`, what runs, and what the summary of each check that is lost names.
LIMITS = {
    "memory": (["--memory=150m"], "--only kernels --only shm", "for lack of memory"),
    "file size": (["--ulimit=fsize=1000000"], "--only dataloader", "1000000 bytes in a file, see `ulimit -f`"),
    "a full disk": (["--tmpfs=/tmp:size=96k"], "--level quick", "No space left on device"),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_check_that_a_limit_takes_names_it(image: Image, machine: Machine, kind: str) -> None:
    options, what, names = LIMITS[kind]
    argv = ["envcheck", "run", "--level", "standard", *what.split(), "--json"]
    completed = machine.docker("run", "--rm", "--shm-size=8g", *options, image.reference, *argv)
    assert "Traceback" not in completed.stderr
    lost = [o for o in json.loads(completed.stdout)["outcomes"] if o["status"] in ("fail", "error")]
    assert lost, completed.stdout
    assert completed.returncode in (1, 3)
    for outcome in lost:
        assert names in outcome["summary"]


def test_a_root_that_is_read_only_without_a_place_for_temporary_files_is_one_clear_line(
    image: Image, machine: Machine
) -> None:
    argv = [image.reference, "envcheck", "run", "--only", "kernels", "--level", "quick"]
    completed = machine.docker("run", "--rm", "--read-only", *argv)
    assert completed.returncode == 2
    assert completed.stderr.splitlines()[-1].startswith("envcheck: no writable directory for temporary files: ")
    assert machine.docker("run", "--rm", "--read-only", "--tmpfs=/tmp", *argv).returncode == 0
