"""The audit's unit, as systemd would start it: nothing of this shell, only what the unit says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from envcheck.mirrors.site.services import tasks
from tests.certificates import Certificate
from tests.mirrors.site.audits import spoil
from tests.mirrors.site.conftest import World
from tests.mirrors.site.test_audit import audit, url
from tests.mirrors.site.test_render import site as everything
from tests.mirrors.site.upstreams import answers, get

pytestmark = pytest.mark.tools
# systemd's own for services.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


def started(site: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run what the rendered unit starts, where it starts it, with the variables that its EnvironmentFile would hold."""
    unit = (site / "systemd/envcheck-mirror-audit.service").read_text()
    result = dict(re.findall(r"^([A-Z]\w+)=(.*)$", unit, re.MULTILINE))
    assert result["EnvironmentFile"] == "-/etc/envcheck-mirror/audit.env"
    command = shlex.split(result["ExecStart"])
    assert Path(command[0]).is_absolute()
    return subprocess.run(
        command,
        cwd=result["WorkingDirectory"],
        env={"PATH": PATH, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_what_the_timer_starts_works_by_itself(world: World, nginx: str, authority: Certificate) -> None:
    more = ("--tls", str(authority.certificate), str(authority.key), "--ca", str(authority.ca), "--no-hf")
    site, port = world.render(*more)
    log, conf = str(site / "logs/error.log"), str(site / "nginx/nginx.conf")
    command = [nginx, "-p", str(site), "-e", log, "-c", conf, "-g", "daemon off; user root;"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        answers(f"https://127.0.0.1:{port}/", process)
        try:
            assert audit(world, f"https://127.0.0.1:{port}", authority, "rellib")[0] == 0
            # The unit audits the locks that lie below the site.
            (site / "locks").mkdir()
            (world.root / "audited.lock").rename(site / "locks/own.lock")
            done = started(site)
            assert (done.returncode, done.stdout, done.stderr) == (0, "packages: 1 clean\n", "")
            # A wrong file in the cache: it was fetched while the upstream had it.
            subprocess.run(["find", str(site / "cache/files"), "-type", "f", "-delete"], check=True)
            right = spoil(world.wheels["rellib"])
            assert get(url(world, f"https://127.0.0.1:{port}", "rellib"), authority.ca)[1] != right
            world.wheels["rellib"].write_bytes(right)
            done = started(site)
            assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "packages: 1 poisoned")
            assert json.loads((site / "state/audit.json").read_text())["poisoned"] == 1
        finally:
            process.terminate()
    # The file that the unit names may hold any option.
    done = started(site, ENVCHECK_MIRROR_AUDIT_LOCK=str(site / "absent.lock"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "absent.lock" in done.stderr
    timer = (site / "systemd/envcheck-mirror-audit.timer").read_text()
    assert "OnCalendar=daily" in timer
    assert "Persistent=true" in timer


def test_a_path_that_systemd_would_read_as_something_else_is_written_as_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/opt/a b/50%/$x/python")
    task = next(task for task in tasks(everything(tmp_path)) if task.name == "audit")
    assert task.commands == (f'"/opt/a b/50%%/$$x/python" -m envcheck mirror audit {tmp_path}',)
