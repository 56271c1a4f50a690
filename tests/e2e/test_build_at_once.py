"""Builds that meet: two of one key at once, and an engine that is killed under a build."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import private_engine
from tests.e2e.conftest import BUILD, CELL, ROOT, Image, Machine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
WAITS = "another build of the same image is running; waiting for it"


@contextlib.contextmanager
def building(machine: Machine, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a build that goes on."""
    argv = [sys.executable, "-m", "envcheck", *BUILD, *options]
    with subprocess.Popen(
        argv, cwd=ROOT, env=machine.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def untagged(machine: Machine, image: Image) -> None:
    """Take away the name of the key, by which a build finds that it is done; layers and tags stay."""
    completed = machine.docker("image", "rm", f"envcheck/build:{image.result['key'][:32]}")
    assert completed.returncode == 0, completed.stderr


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read the standard error up to the line with this text."""
    assert process.stderr
    lines = list(itertools.takewhile(lambda line: text not in line, process.stderr))
    assert process.poll() is None, lines


def test_of_two_builds_of_one_key_the_second_waits_says_so_and_builds_nothing(image: Image, machine: Machine) -> None:
    untagged(machine, image)
    with building(machine, "--json") as first:
        read_until(first, "[runtime 1/")
        # All its layers are cached: it would be done before the second one asks.
        first.send_signal(signal.SIGSTOP)
        with building(machine, "--json") as second:
            read_until(second, WAITS)
            first.send_signal(signal.SIGCONT)
            outputs = [process.communicate(timeout=600) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    results = [json.loads(out) for out, _ in outputs]
    assert [result["skipped"] for result in results] == [False, True]
    assert len({result["id"] for result in results}) == 1


# In an engine of its own: once the build is at its first long step, dockerd is killed as the kernel does it.
KILLED = """
"$@" > "$OUT/stdout" 2> "$OUT/stderr" & build=$!
until grep -q "\\[installed 1/" "$OUT/stderr" || ! kill -0 $build; do sleep 0.2; done
run=$(dirname "${DOCKER_HOST#unix://}")
kill -9 "$(cat "$run/pid")"
wait $build
echo "$? $run"
"""


def test_a_build_whose_engine_is_killed_says_so_and_the_engine_leaves_no_mount(
    machine: Machine, tmp_path: Path
) -> None:
    env = {**machine.env, "OUT": str(tmp_path), "ENVCHECK_HOME": str(tmp_path / "home")}
    argv = [sys.executable, private_engine.__file__, "exec", "--", "sh", "-c", KILLED, "sh"]
    argv += [sys.executable, "-m", "envcheck", *BUILD]
    completed = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    text = (tmp_path / "stderr").read_text()
    status, run = completed.stdout.split()
    assert status == "3", text
    assert text.splitlines()[-1] == (
        f"envcheck: docker stopped answering during the build (log: {tmp_path}/home/logs/{CELL}-runtime.log); "
        "start it again, then build again: finished layers are kept"
    )
    assert not Path(run).exists()
    assert run not in Path("/proc/mounts").read_text()
