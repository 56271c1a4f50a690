"""What `fleet render` writes: valid for bash, shellcheck and Kubernetes' schemas, and safe whatever is filled in."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.fleet.group.membership import membership
from envcheck.fleet.kubernetes_node import TAINT
from envcheck.fleet.launch_files import LaunchValues, launch_files
from tests.tables import each

IMAGE = "registry.example:5000/torch@sha256:" + "a" * 64
HOSTILE = """a"b'c$HOME`id`;#: {{x}} \\ %s"""
VALUES = LaunchValues(
    image=IMAGE,
    python=None,
    nodes=16,
    gpus=8,
    level="quick",
    max_age=900.0,
    budget=60.0,
    on_error="refuse",
    program="/opt/envcheck/bin/envcheck",
    scripts="/etc/slurm/envcheck",
    reports="/shared/reports",
    state="/var/lib/envcheck",
    namespace="ml",
    variables=("NCCL_SOCKET_IFNAME=eth0", f"FI_PROVIDER={HOSTILE}"),
)
SETTINGS = {
    "gpus": VALUES,
    "cpu": VALUES._replace(gpus=0, variables=(), on_error="admit", level="standard", drain=True),
    "hostile": VALUES._replace(image=None, python=f"/opt/{HOSTILE}", program=f"/{HOSTILE}", reports=f"/{HOSTILE}"),
}


def texts(system: str, values: LaunchValues = VALUES) -> dict[str, str]:
    return {file.name: file.text for file in launch_files(system, values)}


def gang_job(text: str) -> dict[str, Any]:
    """Return the Job that a JobSet's controller makes of its template."""
    jobset = next(one for one in yaml.safe_load_all(text) if one["kind"] == "JobSet")
    (job,) = jobset["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "envcheck-group-node-0"}, **job["template"]}


@pytest.fixture(scope="session")
def validators() -> Path:
    at = os.environ.get("ENVCHECK_TEST_VALIDATORS")
    if not at:
        pytest.skip("no kubernetes-validate: set ENVCHECK_TEST_VALIDATORS, or use `make test`, which installs it")
    return Path(at)


@each("values", SETTINGS.values())
def test_scripts_are_sound_shell(tmp_path: Path, values: LaunchValues) -> None:
    for name, text in texts("slurm", values).items():
        if name.endswith((".sh", ".sbatch")):
            (tmp_path / name).write_text(text)
            subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)


@pytest.mark.tools
@each("values", SETTINGS.values())
def test_shellcheck_finds_nothing(tmp_path: Path, validators: Path, values: LaunchValues) -> None:
    files = {tmp_path / n: text for n, text in texts("slurm", values).items() if n.endswith((".sh", ".sbatch"))}
    for path, text in files.items():
        path.write_text(text)
    completed = subprocess.run([validators / "shellcheck", *files], capture_output=True, text=True, check=False)
    # SC2016: what a site calls its directories may hold a dollar sign, in single quotes.
    assert [line for line in completed.stdout.splitlines() if "SC" in line and "SC2016" not in line] == []


@each("script", ["prolog.sh", "epilog.sh", "health.sh"])
def test_a_script_calls_the_program_with_exactly_the_words_that_were_given(tmp_path: Path, script: str) -> None:
    program = tmp_path / "it's a $HOME"
    program.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    program.chmod(0o755)
    values = SETTINGS["hostile"]._replace(program=str(program))
    completed = subprocess.run(["sh", "-c", texts("slurm", values)[script]], capture_output=True, text=True, check=True)
    words = completed.stdout.splitlines()
    assert words[:5] == ["--quiet", "fleet", "gate", "--python", f"/opt/{HOSTILE}"]
    assert {"--drain", "--require-gpu"} <= set(words)


@each(
    "script, codes",
    [
        ("prolog.sh", {0: 0, 1: 1, 2: 2, 3: 3, 124: 3, 127: 3}),
        ("epilog.sh", {0: 0, 1: 1, 2: 0, 3: 0, 124: 0, 127: 0}),
        ("health.sh", {0: 0, 1: 1, 2: 2, 3: 3}),
    ],
)
def test_what_slurm_sees_of_each_exit_code(tmp_path: Path, script: str, codes: dict[int, int]) -> None:
    program = tmp_path / "envcheck"
    seen = {}
    for code in codes:
        program.write_text(f"#!/bin/sh\nexit {code}\n")
        program.chmod(0o755)
        text = texts("slurm", VALUES._replace(program=str(program)))[script]
        seen[code] = subprocess.run(["sh", "-c", text], check=False).returncode
    assert seen == codes


@each("values", [SETTINGS["gpus"], SETTINGS["cpu"]])
def test_values_arrive_in_the_manifests_as_they_were_given(values: LaunchValues) -> None:
    text = "\n---\n".join(texts("kubernetes", values).values())
    documents = {one["kind"]: one for one in yaml.safe_load_all(text)}
    account = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} if values.drain else set()
    assert set(documents) == {"Job", "Pod", "DaemonSet", "JobSet"} | account
    gang = gang_job(text)["spec"]
    assert (gang["completions"], gang["backoffLimitPerIndex"], gang["maxFailedIndexes"]) == (16, 0, 16)
    job = documents["Job"]["spec"]
    assert (job["completions"], job["completionMode"], job["backoffLimitPerIndex"]) == (16, "Indexed", 0)
    container = job["template"]["spec"]["containers"][0]
    assert container["image"] == IMAGE
    assert ("resources" in container) == bool(values.gpus)
    given = dict(variable.split("=", 1) for variable in values.variables)
    (ranks,) = gang["template"]["spec"]["containers"]
    environ = {entry["name"]: entry["value"] for entry in ranks["env"] if "value" in entry}
    assert membership({"JOB_COMPLETION_INDEX": "1", **environ}).nodes == values.nodes
    for pod in (documents["Pod"]["spec"], job["template"]["spec"], gang["template"]["spec"]):
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            assert given.items() <= {entry["name"]: entry.get("value") for entry in one["env"]}.items()
    assert "nvidia.com/gpu" not in texts("kubernetes", values)["watch-daemonset.yaml"]


@pytest.mark.tools
@each("values", [SETTINGS["gpus"], SETTINGS["cpu"]])
def test_kubernetes_schemas_hold(tmp_path: Path, validators: Path, values: LaunchValues) -> None:
    files = texts("kubernetes", values)
    # The schemas have no JobSet, which is a resource of its own: what it makes is a Job.
    files["gang-jobset.yaml"] = yaml.safe_dump(gang_job(files["gang-jobset.yaml"]))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [str(validators / "kubernetes-validate"), "--strict", *(str(tmp_path / name) for name in files)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    output = completed.stdout + completed.stderr
    documents = sum(len([*yaml.safe_load_all(text)]) for text in files.values())
    assert (completed.returncode, output.count(" passed for ")) == (0, documents), output


REFUSED: dict[str, list[Any]] = {
    "image": ["torch:1", IMAGE + "\n      privileged: true", "$(id)@sha256:" + "a" * 64, None],
    "python": ["/opt/venv"],
    "program": ["envcheck", "/opt/x\nrm -rf /"],
    "scripts": ["/etc/slurm/a b", "/etc\nProlog=/tmp/x"],
    "state": ["/var/lib/x; reboot"],
    "reports": ["relative"],
    "namespace": ["a: b", "-a"],
    "variables": [
        (text,) for text in ("NCCL_A=b\nc: d", "NCCL_A B=c", "NCCL_A", "NCCL_A\n=b", "NOPE=1", "NODE_NAME=n1")
    ],
    "max_age": [5.0],
    "budget": [1.0, 64_801.0],
}


@each("name, value", [(name, value) for name, values in REFUSED.items() for value in values])
def test_what_cannot_stand_in_a_file_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        launch_files("kubernetes" if value is None else "slurm", VALUES._replace(**{name: value}))
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="twice"):
        launch_files("kubernetes", VALUES._replace(variables=("NCCL_A=1", "NCCL_A=2")))


def test_the_command_prints_the_files_and_refuses_what_they_do_not_hold() -> None:
    words = ["fleet", "render", "slurm", "--image", IMAGE]
    assert CliRunner().invoke(cli, words).stdout.startswith("# sweep.sbatch\n#!/bin/bash\n")
    refused = CliRunner().invoke(cli, [*words, "--env", "NCCL_DEBUG=INFO"])
    assert "--env has no place in the files for Slurm" in str(refused.exception)


def test_only_with_drain_may_the_daemonset_change_nodes() -> None:
    watch = "watch-daemonset.yaml"
    plain, draining = texts("kubernetes"), texts("kubernetes", VALUES._replace(drain=True))
    assert set(draining) - set(plain) == {"rbac.yaml"}
    assert {name for name in plain if plain[name] != draining[name]} == {watch}
    assert yaml.safe_load(plain[watch])["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    pod = yaml.safe_load(draining[watch])["spec"]["template"]["spec"]
    account, role, binding = yaml.safe_load_all(draining["rbac.yaml"])
    assert pod["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    assert pod["tolerations"] == [{"key": TAINT, "operator": "Exists"}]
    assert pod["initContainers"][0]["command"][-1] == "--drain"
    assert " --drain " in pod["containers"][0]["command"][2]


def test_the_health_program_ends_before_slurm_ends_it_and_renews_before_the_prolog_asks() -> None:
    health = shlex.split(texts("slurm")["health.sh"], comments=True)
    assert health[health.index("--budget") + 1] == "45s"
    assert health[health.index("timeout") + 3] == "60"
    assert health[health.index("--max-age") + 1] == "300s"
    assert "SchedulerParameters=nohold_on_prolog_fail" in texts("slurm")["slurm.conf.part"]
