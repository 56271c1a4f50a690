"""What holds for .github/: pinned actions, least permissions, and no logic: a step runs what CI here runs too."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
FILES = [*WORKFLOWS, *ACTIONS]
# CI of the project runs on a bare Debian, where git, make and Python are to be installed before there is a Makefile.
BARE = {("ci.yml", "What a bare Debian lacks to begin"), ("ci.yml", "Check out")}
OURS = re.compile(r'make(?: -C "\$GITHUB_ACTION_PATH/\.\./\.\./\.\.")? [a-z-]+|(?:\.venv/bin/)?envcheck [^|;&$`]+')
PINNED = re.compile(r"uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+$")
LOCAL = re.compile(r"uses: (\./\.github/(?:actions/[\w-]+|workflows/[\w-]+\.yml))$")
names = pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def read(path: Path) -> dict[Any, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def steps(path: Path) -> Iterator[dict[str, Any]]:
    document = read(path)
    parts = [document["runs"]] if "runs" in document else document["jobs"].values()
    for part in parts:
        yield from part.get("steps", [])


def faults(text: str, name: str = "x.yml") -> list[str]:
    document = yaml.safe_load(text)
    actual = [line.strip() for line in text.splitlines() if re.search(r"\buses:", line) and not used(line)]
    parts = [document["runs"]] if "runs" in document else [*document["jobs"].values()]
    for part in parts:
        for step in part.get("steps", []):
            actual += step_faults(step, name)
    if "jobs" in document:
        actual += [] if document.get("permissions") == {} else ["permissions of the workflow"]
        actual += [f"permissions of {key}" for key, job in document["jobs"].items() if not granted(job)]
        actual += [f"timeout of {key}" for key, job in document["jobs"].items() if not bounded(job)]
    return actual


def used(line: str) -> bool:
    words = line.strip().removeprefix("- ")
    return bool(PINNED.fullmatch(words) or LOCAL.fullmatch(words))


def step_faults(step: dict[str, Any], name: str) -> list[str]:
    run = str(step.get("run", "")).strip()
    if run and not OURS.fullmatch(run) and (name, step.get("name")) not in BARE:
        return [run]
    checkout = str(step.get("uses", "")).startswith("actions/checkout@")
    keeps = checkout and step.get("with", {}).get("persist-credentials") is not False
    return ["the checkout keeps its credentials"] if keeps else []


def granted(job: dict[str, Any]) -> bool:
    grants = job.get("permissions")
    return isinstance(grants, dict) and set(grants.values()) <= {"read", "write", "none"}


def bounded(job: dict[str, Any]) -> bool:
    return "uses" in job or isinstance(job.get("timeout-minutes"), int)


@names
def test_the_rules_hold(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8"), path.name) == []


def test_every_make_target_of_a_step_is_in_the_makefile_and_ci_knows_every_step() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE) for name in line.split()}
    runs = [str(step["run"]).split() for path in FILES for step in steps(path) if "run" in step]
    made = {words[-1] for words in runs if words[0] == "make"}
    assert made <= targets
    assert " ".join(sorted(made)) == "ci dist gate image jobs key promote publish refresh scan stage staged validate"


def test_no_expression_reaches_a_shell() -> None:
    runs = [str(step.get("run", "")) for path in FILES for step in steps(path)]
    assert [run for run in runs if "${{" in run] == []


@workflows
def test_a_pull_request_never_writes_and_never_reaches_a_machine_of_ours(path: Path) -> None:
    document = read(path)
    triggers = document[True]  # YAML 1.1 reads `on` as true
    if "pull_request_target" in triggers or "workflow_run" in triggers:
        pytest.fail("it runs with the rights of the repository on the code of a stranger")
    if "pull_request" not in triggers:
        return
    for name, job in document["jobs"].items():
        writes = "write" in job["permissions"].values()
        away = "!= 'pull_request'" in str(job.get("if", "")) or needs_one_away(document, job)
        assert not writes or away, name
        assert "self-hosted" not in str(job.get("runs-on")), name
        assert "gpu.yml" not in str(job.get("uses")) or away, name


def needs_one_away(document: dict[Any, Any], job: dict[str, Any]) -> bool:
    needed = document["jobs"].get(str(job.get("needs")), {})
    return "!= 'pull_request'" in str(needed.get("if", ""))


def test_only_what_the_gate_let_through_is_promoted() -> None:
    jobs = read(ROOT / ".github/workflows/gpu.yml")["jobs"]
    condition = " ".join(jobs["promote"]["if"].split())
    published = "needs.publish.result == 'success'"
    assert jobs["promote"]["needs"] == ["gate", "publish"]
    assert condition.startswith(f"!cancelled() && needs.gate.result == 'success' && {published} && ")
    assert "||" not in condition
    assert not any("continue-on-error" in part for job in jobs.values() for part in (job, *job["steps"]))


def test_the_secret_reaches_one_step_which_installs_and_runs_nothing() -> None:
    read_by = {(path.name, str(step.get("run"))) for path in FILES for step in steps(path) if "secrets." in str(step)}
    assert read_by == {("gpu.yml", "make key")}
    assert "\nkey:\n\t@.ci/step $@\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_no_key_and_no_token_to_sign_with_lies_where_an_image_runs() -> None:
    jobs = read(ROOT / ".github/workflows/gpu.yml")["jobs"]
    signing = [name for name, job in jobs.items() if "id-token" in job["permissions"]]
    assert signing == ["publish"]
    secret = [name for name, job in jobs.items() if "secrets." in str(job)]
    assert secret == ["publish", "promote"]
    assert not any("self-hosted" in str(jobs[name]["runs-on"]) for name in secret)
    assert [step["run"] for step in jobs["publish"]["steps"] if "run" in step] == ["make key", "make publish"]


def functions() -> dict[str, str]:
    text = (ROOT / ".ci/step").read_text(encoding="utf-8")
    return dict(re.findall(r"(?ms)^([a-z]+)\(\) \{\n(.*?)^\}", text))


@names
def test_a_step_gets_what_it_needs_and_nothing_that_it_does_not_read(path: Path) -> None:
    scripts = "".join((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("step", "setup"))
    for step in steps(path):
        name, env = str(step.get("run", "")).rpartition(" ")[2], set(step.get("env", {}))
        needed = re.search(r"^ *need ([A-Z_ ]+)$", functions().get(name, ""), re.MULTILINE)
        assert set(needed[1].split() if needed else []) <= env, step["name"]
        assert [key for key in env if not re.search(rf"\${{?{key}\b", scripts)] == [], step["name"]


def pins(name: str) -> dict[str, set[str]]:
    data: dict[str, set[str]] = {}
    for package, version in re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", (ROOT / ".ci" / name).read_text(encoding="utf-8")):
        data.setdefault(package, set()).add(version)
    return data


def test_workflows_run_envcheck_with_the_packages_that_it_is_worked_on_with() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"(?ms)^dependencies = \[\n(.*?)^\]", text)
    assert block is not None
    expected = set(re.findall(r'^ *"([A-Za-z0-9-]+)', block[1], re.MULTILINE)) | {"hatchling"}
    tool, dev = pins("tool.lock"), pins("dev.lock")
    assert expected <= set(tool)
    assert {name: versions for name, versions in tool.items() if versions != dev.get(name)} == {}
    keyless = pins("keyless.lock")
    assert set(keyless) > {"sigstore", *tool}
    assert {name: versions for name, versions in tool.items() if versions != keyless.get(name)} == {}
