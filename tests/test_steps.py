"""The steps of the workflows, run as GitHub runs them: by make, with values in the environment."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from envcheck import __version__
from tests.http_server import Answer, Server, Servers
from tests.processes import ran

ROOT = Path(__file__).parents[1]
DIGEST = f"registry.example/staging@sha256:{'a' * 64}"
SAYS = "#!/bin/sh\nprintf '%s\\n' \"$*\" >> {log}\n{script}\n"


class Step:
    """What runs a step with an environment of its own, and reads what it leaves."""

    def __init__(self, tmp_path: Path) -> None:
        self.at = tmp_path
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "ENVCHECK_"))},
            "STATE": str(tmp_path / "state"),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_WORKSPACE": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }

    def __call__(self, name: str, **env: str) -> tuple[int, str]:
        """Return the exit status of make and standard error."""
        # The environment of these tests is not made anew below them.
        command = ["make", "--silent", "--old-file=tool", "--old-file=tool-keyless", "-C", str(ROOT), name]
        completed = ran(command, env={**self.env, **env}, timeout=240, cwd=self.at)
        return completed.returncode, completed.stderr

    def outputs(self) -> dict[str, str]:
        text = (self.at / "output").read_text() if (self.at / "output").exists() else ""
        return dict(line.split("=", 1) for line in text.splitlines())

    def fake(self, program: str, script: str = "") -> Callable[[], list[str]]:
        """Put a program that notes its arguments before all others, and return what reads the notes."""
        home, log = self.at / "fakes", self.at / f"{program}.log"
        home.mkdir(exist_ok=True)
        (home / program).write_text(SAYS.format(log=log, script=script))
        (home / program).chmod(0o755)
        self.env["PATH"] = f"{home}:{os.environ['PATH']}"
        if program == "envcheck":
            self.env["ENVCHECK"] = str(home / program)
        return lambda: log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_jobs_are_the_cells_that_were_asked_for(step: Step) -> None:
    assert step("jobs", CELLS="torch2.13.0-cpu-py311 torch2.15.0-cu132-py31[12]") == (0, "")
    include = json.loads(step.outputs()["matrix"])["include"]
    assert {job["cell"] for job in include} > {"torch2.13.0-cpu-py311", "torch2.15.0-cu132-py312"}
    assert all({"cell", "target", "platform", "runner"} <= job.keys() for job in include)


def test_jobs_of_a_change_are_the_cells_that_it_touches(step: Step) -> None:
    calls = step.fake("envcheck", "echo '{\"include\":[]}'")
    cpu, cuda = "torch2.13.0-cpu-py311", "torch2.13.0-cu130-py311"
    for changed, asked in (
        (f"images/{cpu}/Dockerfile\nimages/{cpu}/torch.lock\nimages/README", [f"images {cpu} --format github"]),
        (f"images/{cuda}/base.lock", []),  # not among CELLS
        ("images/torch0.1-cpu-py36/Dockerfile", []),  # its directory is gone
        ("templates/Dockerfile.j2", ["images torch2.13.0-cpu* --format github"]),
        ("", []),
    ):
        diff = step.fake("git", f"printf '{changed}\n'")
        before = len(calls())
        assert step("jobs", SINCE="main", CELLS="torch2.13.0-cpu*")[0] == 0
        assert calls()[before:] == asked
        assert ":!templates/site" in diff()[-1]
    assert step.outputs() == {"matrix": '{"include":[]}'}


def test_jobs_that_cannot_be_listed_are_no_empty_list(step: Step) -> None:
    for env, who in (({"CELLS": "torch9"}, "envcheck: "), ({"SINCE": "no-such-revision"}, "fatal: ")):
        status, err = step("jobs", **env)
        assert status != 0
        assert err.startswith(who)
        assert step.outputs() == {}


def test_an_image_is_built_by_the_command_that_people_use(step: Step) -> None:
    calls = step.fake("envcheck", 'echo \'{"image": "envcheck/torch:x", "tags": []}\'')
    assert step("image", CELL="torch2.13.0-cpu-py311", TARGET="devel", MIRROR="")[0] == 0
    assert calls() == [
        "build torch2.13.0-cpu-py311 --target devel --engine docker --mirror host --base auto --json",
    ]
    assert step.outputs() == {"image": "envcheck/torch:x"}


STAGE = {
    "IMAGE": "envcheck/torch:x",
    "STAGING": "registry.example/Owner/Staging",
    "CELL": "torch2.13.0-cpu-py311",
    "TARGET": "devel",
    "PLATFORM": "linux/amd64",
    "GITHUB_SHA": "c0ffee",
}
REPOSITORY = "registry.example/owner/staging"
INSPECTED = f'[ "$1 $2" != "image inspect" ] || printf "other/name@sha256:%064d\\n{REPOSITORY}@sha256:%064d\\n" 1 2'


def test_an_image_is_staged_under_a_tag_of_its_commit_and_known_by_its_digest(step: Step) -> None:
    calls = step.fake("docker", INSPECTED)
    assert step("stage", **STAGE) == (0, "")
    tag, digest = f"{REPOSITORY}:2.13.0-cpu-py311-devel-amd64-c0ffee", f"sha256:{2:064d}"
    words = [line for line in calls() if not line.startswith("image inspect")]
    assert words == [f"tag envcheck/torch:x {tag}", f"push --quiet {tag}", f"pull --quiet {REPOSITORY}@{digest}"]
    assert step.outputs() == {"name": REPOSITORY, "digest": digest}
    assert json.loads((step.at / "state/staged.json").read_text()) == {
        "cell": STAGE["CELL"],
        "target": "devel",
        "platform": "linux/amd64",
        "arch": "X64",
        "image": f"{REPOSITORY}@{digest}",
    }


@pytest.mark.parametrize("script", ["", '[ "$1" != push ]', f'[ "$1" != pull ] || exit 1; {INSPECTED}'])
def test_an_image_that_the_registry_does_not_have_is_not_staged(step: Step, script: str) -> None:
    step.fake("docker", script)
    assert step("stage", **STAGE)[0] != 0
    assert step.outputs() == {}
    assert not (step.at / "state/staged.json").exists()


def test_what_was_staged_is_one_matrix(step: Step) -> None:
    for name in ("b", "a"):
        (step.at / "staged" / name).mkdir(parents=True)
        (step.at / "staged" / name / "staged.json").write_text(json.dumps({"cell": name, "image": DIGEST}))
    assert step("staged", STAGED=str(step.at / "staged"))[0] == 0
    assert [job["cell"] for job in json.loads(step.outputs()["matrix"])["include"]] == ["a", "b"]


def test_the_gate_pulls_by_digest_and_requires_a_gpu(step: Step) -> None:
    docker, envcheck = step.fake("docker"), step.fake("envcheck")
    summary = step.at / "summary.md"
    env = {"IMAGE": DIGEST, "LEVEL": "full", "REQUIREMENTS": "hgx-h100", "GITHUB_STEP_SUMMARY": str(summary)}
    assert step("gate", **env)[0] == 0
    assert docker()[0] == f"pull --quiet {DIGEST}"
    state = step.at / "state"
    files = f"--output {state}/report.json --html {state}/report.html"
    node = f"--requirements hgx-h100 --require-gpu --summary {summary}"
    assert envcheck() == [f"run --level full {files} --image {DIGEST} {node}"]


@pytest.mark.parametrize("image", ["", "envcheck/torch:latest", "a@sha256:123", f"a b@sha256:{'a' * 64}", "a;id"])
def test_the_gate_takes_nothing_but_a_digest(step: Step, image: str) -> None:
    docker = step.fake("docker")
    status, err = step("gate", IMAGE=image)
    assert (status, docker()) == (2, [])
    assert "names no image by digest" in err or "IMAGE is not set" in err


def test_the_gate_signs_nothing_and_leaves_no_report_of_an_earlier_run(step: Step) -> None:
    step.fake("docker")
    envcheck = step.fake("envcheck", "exit 3")
    (step.at / "state").mkdir()
    (step.at / "state/report.json").touch()
    status, err = step("gate", IMAGE=DIGEST, KEY=f"{step.at}/key")
    assert (status, "Error 3" in err, len(envcheck())) == (2, True, 1)
    assert not (step.at / "state/report.json").exists()


def test_the_key_is_in_a_file_of_this_user_alone_and_in_nothing_that_is_said(step: Step) -> None:
    secret = "-----BEGIN X-----\n%s $(id) `id`\n-----END X-----"  # noqa: S105 (no key)
    file = step.at / "envcheck-signing-key"
    file.write_text("of an earlier job")
    file.chmod(0o644)
    status, err = step("key", RUNNER_TEMP=str(step.at), SIGNING_KEY=secret)
    assert (status, err, step.outputs()) == (0, "", {"key": str(file)})
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{secret}\n", 0o600)
    assert step("key", RUNNER_TEMP=str(step.at), SIGNING_KEY="")[0] == 0
    assert (step.outputs()["key"], file.exists()) == ("", False)


PROMOTE = {"IMAGE": DIGEST, "TAGS": "stable 2.8", "POLICY": "policy.toml", "KEY": "key"}


def test_an_image_is_promoted_by_the_command_that_people_use(step: Step) -> None:
    calls, copies, there = step.fake("envcheck"), step.fake("oras"), "registry.example/owner/torch"
    assert step("promote", **PROMOTE) == (0, "")
    assert copies() == []
    assert step("promote", **PROMOTE, TO="registry.example/Owner/Torch") == (0, "")
    assert copies() == [f"cp --recursive {DIGEST} {there}"]
    options = "--to stable --to 2.8 --policy policy.toml --key key"
    assert calls() == [f"promote {image} {options}" for image in (DIGEST, f"{there}@{DIGEST.partition('@')[2]}")]


@pytest.mark.parametrize("wrong", [*({name: ""} for name in PROMOTE), {"IMAGE": "registry.example/staging:latest"}])
def test_a_promotion_that_lacks_something_promotes_nothing(step: Step, wrong: dict[str, str]) -> None:
    calls = step.fake("envcheck")
    assert (step("promote", **{**PROMOTE, **wrong})[0], calls()) == (2, [])


def test_a_report_is_published_by_the_key_as_this_job_or_both(step: Step) -> None:
    calls, key, report = step.fake("envcheck"), step.at / "key", {"IMAGE": DIGEST, "REPORT": "gated/report.json"}
    status, err = step("publish", **report, KEY=str(key))
    assert (status, "KEY names no file" in err) == (2, True)
    key.touch()
    assert step("publish", **report) == (0, "")
    assert calls() == []
    assert step("publish", **report, KEY=str(key), KEYLESS="true") == (0, "")
    assert calls() == [f"publish {DIGEST} --report gated/report.json {by}" for by in (f"--key {key}", "--keyless")]
    assert step("publish", IMAGE="registry.example/x:latest", REPORT="gated/report.json", KEYLESS="true")[0] == 2
    assert step("publish", IMAGE=DIGEST, KEYLESS="true")[0] == 2
    assert len(calls()) == 2


def test_validate_takes_an_image_or_an_interpreter(step: Step) -> None:
    envcheck, docker = step.fake("envcheck"), step.fake("docker")
    assert step("validate", PYTHON_PATH="/opt/venv", LEVEL="quick")[0] == 0
    assert envcheck()[-1].endswith("report.html --python /opt/venv")
    assert docker() == []
    status, err = step("validate", PYTHON_PATH="/opt/venv", IMAGE="x")
    assert (status, err.splitlines()[0]) == (2, "step: IMAGE and PYTHON_PATH exclude each other; set one")


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 0), (3, 2)])
def test_known_vulnerabilities_are_summed_up_and_only_no_answer_fails(step: Step, code: int, status: int) -> None:
    grype = step.fake("grype", "echo CVE-1")
    step.env["PATH"] = os.environ["PATH"]
    envcheck = step.fake("envcheck", f"grype; exit {code}")
    step.env["PATH"] = os.environ["PATH"]
    summary = step.at / "summary.md"
    env = {"SCANNER": str(step.at / "fakes/grype"), "GITHUB_STEP_SUMMARY": str(summary)}
    assert step("scan", IMAGE="envcheck/torch:x", **env)[0] == status
    assert envcheck() == ["images scan envcheck/torch:x --severity critical"]
    assert (len(grype()), summary.read_text()) == (1, "    CVE-1\n")


def test_the_action_hands_its_inputs_to_the_step_from_wherever_it_lies(step: Step) -> None:
    action = yaml.safe_load((ROOT / ".github/actions/validate/action.yml").read_text(encoding="utf-8"))
    [only] = action["runs"]["steps"]
    inputs = {name: str(given["default"]) for name, given in action["inputs"].items()}
    inputs |= {"python": "/opt/ven v", "level": "static", "requirements": "$(touch pwned)", "require-gpu": "true"}
    env = {name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda m: inputs[m[1]], v) for name, v in only["env"].items()}
    envcheck, run = step.fake("envcheck"), only["run"].replace("make ", "make --old-file=tool ")
    env |= {**step.env, "GITHUB_ACTION_PATH": str(ROOT / ".github/actions/validate")}
    completed = ran(["bash", "-c", run], env=env, cwd=step.at)
    assert completed.returncode == 0, completed.stderr
    assert envcheck()[0].startswith("run --level static ")
    assert envcheck()[0].endswith("--python /opt/ven v --requirements $(touch pwned) --require-gpu")
    assert set(step.outputs()) == set(action["outputs"])
    assert not list(step.at.rglob("pwned"))


def test_refresh_writes_the_text_of_a_pull_request(step: Step, servers: Servers) -> None:
    wheel = "torch-2.15.0%2Bcpu-cp310-cp310-manylinux_2_28_x86_64.whl"
    pages = {"/simple/torch/": b"<a href='x.whl'>x</a>", "/whl/cpu/torch/": f"<a href='{wheel}'>w</a>".encode()}
    html = {"Content-Type": "text/html"}
    index = servers.start(Server(lambda r: Answer(200, pages[r.route], html) if r.route in pages else Answer(404)))
    profile = step.at / "site.yaml"
    profile.write_text(
        f"name: site\npypi: [{{url: '{index.url}/simple'}}]\npytorch: [{{url: '{index.url}/whl/{{variant}}'}}]\n"
    )
    mine = shutil.copy(ROOT / "matrix.yaml", step.at / "matrix.yaml")
    status, err = step("refresh", MIRROR=str(profile), MATRIX=str(mine))
    assert status == 0, err
    assert "torch 2.15.0+cpu x86_64 | 3.10 | 1 |" in Path(step.outputs()["body"]).read_text()
    assert Path(mine).read_bytes() != (ROOT / "matrix.yaml").read_bytes()
    pages.clear()
    (step.at / "output").unlink()
    assert step("refresh", MIRROR=str(profile), MATRIX=str(mine))[0] != 0
    assert step.outputs() == {}


def test_the_wheel_of_a_tag_runs_alone_and_is_of_its_version(step: Step) -> None:
    env = {"DIST": str(step.at / "dist"), "SOURCE_DATE_EPOCH": "1700000000"}
    status, err = step("dist", TAG=f"v{__version__}", **env)
    assert status == 0, err
    wheel = Path(step.outputs()["wheel"])
    assert [wheel] == list((step.at / "dist").iterdir())
    first = wheel.read_bytes()
    assert step("dist", **env)[0] == 0
    assert wheel.read_bytes() == first
    status, err = step("dist", TAG="v9.9.9", **env)
    assert status == 2
    assert f"the tag v9.9.9 is not v{__version__}" in err
