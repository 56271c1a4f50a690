"""Odd but sound surroundings of a run: they change nothing, or the one thing that they break is named."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.runner.local_python import PACKAGE
from tests.processes import ran

Site = Callable[..., Path]


def run(site: Path, where: Path, *, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the site's check `one` by the command line, after a line of shell; an empty variable is unset."""
    argv = [sys.executable, "-m", "envcheck", "run", "--python", sys.executable, "--checks", str(site)]
    argv += ["--only", "one", "--nproc", "2", "--output", str(where / "report.json")]
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment}
    return ran(
        ["sh", "-c", f'{before}\nexec "$@"', "sh", *argv],
        cwd=where,
        env={name: value for name, value in variables.items() if value},
        timeout=120,
    )


ODD = {
    "docstrings and asserts dropped": {"PYTHONOPTIMIZE": "2"},
    "no byte code": {"PYTHONDONTWRITEBYTECODE": "1"},
    "warnings are errors": {"PYTHONWARNINGS": "error"},
    "an ASCII terminal": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no home": {"HOME": ""},
    "a home that is missing": {"HOME": "/nonexistent"},
    "development mode": {"PYTHONDEVMODE": "1"},
    "a directory for temporary files that is missing": {"TMPDIR": "/nonexistent"},
    "no PATH": {"PATH": "/nonexistent:/bin"},
    "no directory of the script on sys.path": {"PYTHONSAFEPATH": "1"},
    "a fixed hash": {"PYTHONHASHSEED": "7"},
    "another thread count": {"OMP_NUM_THREADS": "1"},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_and_sound_passes(add: Site, site: Path, tmp_path: Path, odd: str) -> None:
    add("one", "return {'rank': rank.rank}")
    done = run(site, tmp_path, **ODD[odd])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_a_deleted_working_directory_changes_nothing(add: Site, site: Path, tmp_path: Path) -> None:
    add("one", "return {'rank': rank.rank}")
    (tmp_path / "gone").mkdir()
    done = run(site, tmp_path, before=f"cd {tmp_path / 'gone'} && rmdir {tmp_path / 'gone'}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("blocks", "code"), [(0, 2), (1, 2), (8, 2)])
def test_a_limit_of_the_file_size_is_named(add: Site, site: Path, tmp_path: Path, blocks: int, code: int) -> None:
    add("one", "return {'rank': rank.rank}")
    done = run(site, tmp_path, before=f"ulimit -f {blocks}")
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "ulimit -f" in " ".join(f"{done.stdout}\n{done.stderr}".split())
    assert "Traceback" not in done.stderr


def test_a_loopback_with_ipv6_alone_is_enough(add: Site, site: Path, tmp_path: Path) -> None:
    add("one", "import socket\nsocket.create_server((os.environ['MASTER_ADDR'], 0), family=socket.AF_INET6)\nreturn {}")
    setup = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo || exit 77"
    wrapped = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]
    allowed = subprocess.run([*wrapped, setup], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("this machine does not let a test make a network namespace")
    inner = f'[ "$INSIDE" ] || {{ export INSIDE=1; exec {" ".join(wrapped)} \'{setup}; exec "$@"\' sh "$@"; }}'
    done = run(site, tmp_path, before=inner)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
