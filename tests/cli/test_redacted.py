"""`--redact` in every output of a real run: canaries in host, user, home and paths, and none of them sings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envcheck
from envcheck.cli.shared import process
from envcheck.reports import formats, redact
from tests.processes import ran
from tests.tables import beside

HOST = "canaryhost7.canarydomain.example"
STUB = f"""
import os, socket
_known = os.uname()
os.uname = lambda: os.uname_result((_known.sysname, {HOST!r}, *_known[2:]))
socket.gethostname = socket.getfqdn = lambda *_: {HOST!r}
"""
CHECK = '''"""A check of this site."""
from envcheck.checks import Check, failed
CHECK = Check(promise="it holds", level="quick", ranks=1, timeout=20)
def measure(rank):
    import os, socket
    return {"at": os.getcwd(), "host": socket.gethostname(), "home": os.environ["HOME"], "user": os.environ["USER"]}
def judge(view, ranks):
    at = ranks[0]
    text = f"{at['user']} cannot read '{at['home']}/canary dir/canaryfile' or {at['at']}/canaryfile on {at['host']}"
    return failed(text, fix=f"ssh {at['user']}@{at['host']}", culprit=f"{at['home']}/canaryfile")
'''
RAISES = CHECK.replace(
    "    return {", "    raise OSError(2, 'canaryuser has no file', os.environ['HOME'] + '/canary')\n    return {"
)
REPORTS = ("canaryout/report.json", "canaryout/page.html", "canaryout/steps.md")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory in which every name is a canary."""
    for name in ("canarysite/env", "canaryhome", "canarytmp", "canarywork/canaryout", "canarystub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "canarystub/sitecustomize.py").write_text(STUB)
    (tmp_path / "canarysite/env/sick.py").write_text(CHECK)
    (tmp_path / "canarysite/env/broken.py").write_text(RAISES)
    (tmp_path / "canarywork/canary bad.json").write_text("{")
    (tmp_path / "canarywork/canary.toml").write_text("[gpu]\ncount = 'canary'\n")
    (tmp_path / "canarywork/canaryout/canary.toml").write_text("[driver]\nmin = '1.0'\n")
    return tmp_path


def start(site: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    own = {
        "HOME": str(site / "canaryhome"),
        "USER": "canaryuser",
        "LOGNAME": "canaryuser",
        "TMPDIR": str(site / "canarytmp"),
        "PYTHONPATH": f"{site / 'canarystub'}:{Path(envcheck.__file__).parents[1]}",
        "PWD": str(site / "canarywork"),
        "HOSTNAME": "canaryhost7",
    }
    command = [sys.executable, "-m", "envcheck", *argv]
    environment = {**kept, **own, **more}
    return ran(command, cwd=site / "canarywork", env=environment)


def singing(*texts: str) -> list[str]:
    """Return where a canary stands, with what is around it."""
    flat = ["".join(text.split()) for text in texts]
    return [text[max(0, at - 60) : at + 40] for text in flat if (at := text.lower().find("canary")) >= 0]


@pytest.mark.parametrize("more", [(), ("--json",), ("--quiet",)], ids=["terminal", "json", "quiet"])
def test_no_output_of_a_run_names_host_user_or_path(site: Path, more: tuple[str, ...]) -> None:
    first, remaining = (("--quiet",), ()) if more == ("--quiet",) else ((), more)
    files = [word for pair in zip(("--output", "--html", "--summary"), REPORTS, strict=True) for word in pair]
    checks = ["--checks", "../canarysite", "--only", "sick", "--only", "broken", "--only", "disk-space"]
    done = start(
        site, *first, "run", "--redact", *checks, "--requirements", "canaryout/canary.toml", *files, *remaining
    )
    assert done.returncode == 1, done.stderr
    written = [(site / "canarywork" / name).read_text() for name in REPORTS]
    forms = [start(site, "report", "convert", REPORTS[0], "--format", form).stdout for form in formats.names()]
    assert all(forms)
    assert singing(done.stdout, done.stderr, *written, *forms) == []
    report = json.loads(written[0])
    assert {outcome["status"] for outcome in report["outcomes"] if outcome["id"] in ("sick", "broken")} == {
        "fail",
        "error",
    }
    assert str(site) not in written[0]
    assert '"/root"' not in written[0]


@pytest.mark.parametrize(("argv", "status"), beside(__file__)["errors"])
def test_no_error_names_a_path(site: Path, argv: list[str], status: int) -> None:
    done = start(site, *argv)
    assert (done.returncode, singing(done.stdout, done.stderr)) == (status, []), done.stderr
    assert len(done.stderr.splitlines()) == 1
    # Without --redact the line says which path it is.
    if "--redact" in argv and "--image" not in argv and argv[-1] != "--redact":
        assert singing(start(site, *[word for word in argv if word != "--redact"]).stderr)


def test_the_variable_redacts_as_the_option_does(site: Path) -> None:
    done = start(site, "run", "--requirements", "canary.toml", ENVCHECK_RUN_REDACT="1")
    assert (done.returncode, singing(done.stderr)) == (2, [])
    done = start(site, "run", "--requirements", "canary.toml", ENVCHECK_RUN_REDACT="0")
    assert singing(done.stderr)


NAME = st.text("abcdefghijklmnopqrstuvwxyzäñ東京0123456789_-", min_size=3, max_size=12).map(
    lambda text: f"canary{text}"
)
LINES = (
    "no requirements at {given}",
    "cannot read '/{a}/{b} c/{given}': No such file or directory",
    "/data/{a}/{b}: Permission denied; chown {user}",
    "{user}@{host}: /etc/{a}/{b}.conf, /run/{a}.pid, /dev/shm/{b}, /root/{a}",
    'File "/{a}/my {b}/x.py", line 3',
    "Invalid value for '--baseline': File {given!r} does not exist.",
    "{host}:29500 refused /home/{user}/{b}",
)


@given(NAME, NAME, NAME, NAME, st.lists(NAME, min_size=1, max_size=3).map("/".join), st.sampled_from(LINES))
def test_no_name_is_left_in_any_line(a: str, b: str, user: str, host: str, typed: str, line: str) -> None:
    names = redact.Pseudonyms()
    names.of("user", user)
    names.of("host", host)
    words = process.words([typed])
    result = redact.line(line.format(a=a, b=b, user=user, host=host, given=typed), names, words)
    assert "canary" not in result
    assert "/root" not in result
