"""What every part of the tests may use, and: where everything is required, a skip is a failure."""

import atexit
import collections
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from envcheck.checks.support import exact_data
from envcheck.runner.planning import discover
from tests.checks.sabotage import lies
from tests.http_server import Servers
from tests.processes import program

# An example that takes long says that the machine is loaded.
settings.register_profile("search", deadline=None)
# Every run of the tests draws the same examples, so that a commit is not refused for a draw of its day. New ones are
# searched for with HYPOTHESIS_PROFILE=search.
settings.register_profile("same", parent=settings.get_profile("search"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What a check draws from its seed is the same in every run of the tests. Another seed is tried by setting the variable.
os.environ.setdefault(exact_data.SEED, "7")

# Tests install from addresses of their own: each copy of torch would stay in a person's cache of uv, unused.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["UV_CACHE_DIR"] = tempfile.mkdtemp(prefix="envcheck-tests-uv-")
    atexit.register(shutil.rmtree, os.environ["UV_CACHE_DIR"], ignore_errors=True)

# Whoever runs the tests in the background, or under nohup, ignores these, and what they start would inherit it.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# What a test of the catalogues shows, by its user properties.
FIGURES = ("fault", "quiet", "sound machine", "sound variant")
# What `make test` leaves out and `make test-all` runs: it takes long, or needs what a change seldom breaks.
THOROUGH = (
    *("tests/checks/sabotage", "tests/cli/test_slurm.py", "tests/examples", "tests/faults", "tests/simulated"),
    *("tests/images/source_builds", "tests/mirrors/fetch/test_hostile.py", "tests/mirrors/hub", "tests/mirrors/site"),
    "tests/runner/worker/test_lost_rank.py",
    *(f"tests/e2e/test_{name}" for name in ("canary", "containers", "devel", "jupyter", "plain_build", "prefetch")),
    *(f"tests/e2e/test_{name}" for name in ("sabotage", "site_compose", "workflow_steps")),
    *(f"tests/registry/test_{name}" for name in ("attacks", "hostile", "keyless", "secured")),
)
ROOT = Path(__file__).parents[1]
REQUIRE_ALL = bool(os.environ.get("ENVCHECK_REQUIRE_ALL"))


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool")


def _python(variable: str, missing: str, makes: str) -> Path:
    """Return the interpreter, or the directory of programs, that a variable names; skip without it."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"no {missing}: set {variable}, or use `make test`, which {makes}")
    return Path(python)


@pytest.fixture(scope="session")
def torch_python() -> Path:
    return _python("ENVCHECK_TEST_PYTHON", "torch environment", "builds one")


def train_python() -> Path:
    return _python("ENVCHECK_TEST_TRAIN_PYTHON", "environment of target train", "builds one")


@pytest.fixture(scope="session")
def hub_python() -> Path:
    return _python("ENVCHECK_TEST_HUB", "huggingface_hub", "installs it")


@pytest.fixture(scope="session")
def keyless_python() -> Path:
    return _python("ENVCHECK_TEST_KEYLESS", "sigstore", "installs it")


@pytest.fixture(scope="session")
def validators() -> Path:
    return _python("ENVCHECK_TEST_VALIDATORS", "kubernetes-validate", "installs it")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Return what does something dear once for all workers of pytest-xdist: the directory that `make` has filled."""
    mine = tmp_path_factory.getbasetemp()
    shared = mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine

    def get(name: str, make: Callable[[Path], None]) -> Path:
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / name).exists():
                (shared / name).mkdir()
                make(shared / name)
        return shared / name

    return get


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


# After a probe that finds peer-to-peer broken, every group of the run does without it.
# Checks of level full that take this long (seconds) run apart from the others, and only for tests that ask for them.
LONG = 10.0
AFTER_PROBES = ("all-reduce", "tells-environment")
# What needs transformers, in an environment that has them.
TRAINED = {"trainer", *(name.replace("_", "-") for name, one in lies.LIES.items() if one.check == "trainer")}


class SabotagedTorch(NamedTuple):
    """A run of the command: its report, exit code and printed text; `site` holds the checks that lie."""

    report: Path
    code: int
    printed: str
    site: Path


@pytest.fixture(scope="session")
def liars(once: Callable[..., Path]) -> Path:
    return once("liars", lies.write)


@pytest.fixture(scope="session")
def sabotaged(torch_python: Path, liars: Path, once: Callable[..., Path]) -> Callable[[str], SabotagedTorch]:
    """Return what runs a check in two ranks of a real torch, with others, honest and lying, once for all."""
    parts: dict[str, list[str]] = {"probes": [*AFTER_PROBES], "quick": [], "full": [], "long": [], "train": []}
    for actual in discover(liars):
        lying = not actual.doc.startswith("Nothing is wrong")
        part = "long" if actual.check.level == "full" and actual.check.seconds >= LONG else "full"
        part = "probes" if actual.check.probe else "quick" if actual.check.level in ("static", "quick") else part
        part = "train" if actual.id in TRAINED else part
        if actual.kind == "env" and (lying or not actual.check.probe):
            parts[part].append(actual.id)

    def run(directory: Path, mine: list[str], python: Path) -> None:
        command = [sys.executable, "-m", "envcheck", "run", "--python", str(python), "--nproc", "2"]
        command += ["--checks", str(liars), "--output", "report.json", *(w for i in mine for w in ("--only", i))]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PWD": str(directory)}
        completed = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        (directory / "printed.txt").write_text(completed.stdout)
        (directory / "code.txt").write_text(f"{completed.returncode} {completed.stderr}")

    def get(identity: str) -> SabotagedTorch:
        part = next(part for part in ("quick", "full", "long", "train", "probes") if identity in parts[part])
        python = train_python() if part == "train" else torch_python
        directory = once(f"sabotaged-{part}", lambda made: run(made, parts[part], python))
        code, _, errors = (directory / "code.txt").read_text().partition(" ")
        assert (directory / "report.json").exists(), errors
        return SabotagedTorch(directory / "report.json", int(code), (directory / "printed.txt").read_text(), liars)

    return get


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough; give tests that wait for the one run of all checks the time that it takes under load."""
    for item in items:
        if str(item.path.relative_to(ROOT)).startswith(THOROUGH):
            item.add_marker("thorough")
        if "sabotaged" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(1500))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under `.ci/run` fail what could not run for want of an engine, of torch, of promtool or of another tool."""
    report = yield
    expected = any(item.get_closest_marker(name) for name in ("engine", "torch", "promtool", "tools"))
    # A breakage that is known to be missed, or that this machine does not allow to be made, lacks no tool.
    known = hasattr(report, "wasxfail") or "this machine does not allow" in str(report.longrepr)
    if REQUIRE_ALL and expected and report.skipped and not known:
        report.outcome = "failed"
        report.longrepr = f"skipped where everything is required: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what became of the fault catalogue, where its tests were run: found, missed, false alarms."""
    result = collections.defaultdict[str, dict[tuple[str, str], str]](dict)
    kept = [one for group in terminalreporter.stats.values() for one in group]
    # Beside reports of tests there are the tests that were left out, and what could not be collected.
    for report in [one for one in kept if hasattr(one, "when") and hasattr(one, "user_properties")]:
        for what, about in report.user_properties:
            known = hasattr(report, "wasxfail")
            if what in FIGURES and (report.when == "call" or report.outcome != "passed"):
                result[what][tuple(about)] = "failed" if known else report.outcome
    if result["fault"]:
        terminalreporter.section("fault catalogue")
        terminalreporter.write_line("\n".join(_table(result)))


def _table(data: dict[str, dict[tuple[str, str], str]]) -> list[str]:
    faults, quiet, sound, variants = (data[what] for what in FIGURES)
    row = "{:<32} {:>7} {:>7} {:>7} {:>7}".format
    lines = [row("faults, by how they are put in", "put in", "found", "missed", "not run")]
    for kind in [*dict.fromkeys(kind for _, kind in faults), None]:
        mine = collections.Counter(outcome for (_, how), outcome in faults.items() if kind in (how, None))
        counts = (mine.total(), mine["passed"], mine["failed"], mine["skipped"])
        lines.append(row(kind or "all", *map(str, counts)))
    lines += [f"missed: {fault}" for (fault, _), outcome in faults.items() if outcome == "failed"]
    lines += [f"something else blamed for: {fault}" for (fault, _), outcome in quiet.items() if outcome == "failed"]
    lines += ["", "{:<58} {:<24} {}".format("sound machines", "the snapshot is", "false alarm")]
    lines += [f"{name:<58} {origin:<24} {'ALARM' if o == 'failed' else 'none'}" for (name, origin), o in sound.items()]
    lines += [f"false alarm where it is harmless: {name}" for (name, _), o in variants.items() if o == "failed"]
    alarms = collections.Counter([*quiet.values(), *sound.values(), *variants.values()])["failed"]
    looked = f"{len(sound)} sound machines, {len(variants)} harmless variants and {len(quiet)} judged faults"
    lines.append(f"{looked}: {alarms} false alarms")
    return lines
