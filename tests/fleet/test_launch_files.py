"""What `fleet render` writes: valid for bash, shellcheck and Kubernetes' schemas, and safe whatever is filled in."""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.fleet.group.membership import membership
from envcheck.fleet.kubernetes_node import TAINT
from envcheck.fleet.kubernetes_pods import PodOptions
from envcheck.fleet.launch_files import LaunchValues, launch_files
from tests.tables import each, one_line

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
    return launch_files(system, values)


def gang_job(text: str) -> dict[str, Any]:
    """Return the Job that a JobSet's controller makes of its template."""
    jobset = next(one for one in yaml.safe_load_all(text) if one["kind"] == "JobSet")
    (job,) = jobset["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "envcheck-group-node-0"}, **job["template"]}


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
    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    account = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} | policy if values.drain else set()
    assert set(documents) == {"Job", "Pod", "DaemonSet", "JobSet"} | account
    gang = gang_job(text)["spec"]
    assert (gang["completions"], gang["backoffLimitPerIndex"], gang["maxFailedIndexes"]) == (16, 0, 16)
    job = documents["Job"]["spec"]
    assert (job["completions"], job["completionMode"], job["backoffLimitPerIndex"]) == (16, "Indexed", 0)
    container = job["template"]["spec"]["containers"][0]
    assert container["image"] == IMAGE
    assert ("limits" in container["resources"]) == bool(values.gpus)
    given = dict(variable.split("=", 1) for variable in values.variables)
    (ranks,) = gang["template"]["spec"]["containers"]
    environ = {entry["name"]: entry["value"] for entry in ranks["env"] if "value" in entry}
    assert membership({"JOB_COMPLETION_INDEX": "1", **environ}).nodes == values.nodes
    for pod in (documents["Pod"]["spec"], job["template"]["spec"], gang["template"]["spec"]):
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            assert given.items() <= {entry["name"]: entry.get("value") for entry in one["env"]}.items()
    assert "limits" not in texts("kubernetes", values)["watch-daemonset.yaml"]


def schema_holds(validators: Path, version: str, files: list[Path]) -> None:
    command = [str(validators / "kubernetes-validate"), "--strict", "-k", version, *map(str, files)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    output = completed.stdout + completed.stderr
    documents = sum(len([*yaml.safe_load_all(path.read_text())]) for path in files)
    assert (completed.returncode, output.count(" passed for ")) == (0, documents), output


GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SPOT = {"key": "spot", "operator": "Exists"}
# What an option is in a pod, and whether a pod of the DaemonSet has it too.
OPTIONS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "node_selector": (("example.com/gpu=h100",), {"nodeSelector": {"example.com/gpu": "h100"}}, True),
    "toleration": (("spot:NoExecute",), {"tolerations": [GPU_TAINT, {**SPOT, "effect": "NoExecute"}]}, True),
    "runtime_class": ("nvidia", {"runtimeClassName": "nvidia"}, True),
    "priority_class": ("true", {"priorityClassName": "true"}, True),
    "pull_secret": (("a", "b"), {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}, True),
    "host_network": (True, {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, True),
    "scheduler": ("mine", {"schedulerName": "mine"}, False),
    "claim": (("domain",), {"resourceClaims": [{"name": "claim-0", "resourceClaimTemplateName": "domain"}]}, False),
    "resource": (("rdma/hca=8", "memory=256Gi", "hugepages-2Mi=1Gi"), {}, False),
    "queue": ("team-a", {}, False),
    "gang": ("volcano", {}, False),
}


def with_option(name: str, value: Any) -> LaunchValues:
    return VALUES._replace(pods=PodOptions(**{name: value}))


def pods_of(files: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each pod's name and specification."""
    yield "preflight", yaml.safe_load(files["preflight.yaml"])["spec"]
    yield "sweep", yaml.safe_load(files["sweep-job.yaml"])["spec"]["template"]["spec"]
    yield "group", gang_job(files["gang-jobset.yaml"])["spec"]["template"]["spec"]
    yield "watch", yaml.safe_load(files["watch-daemonset.yaml"])["spec"]["template"]["spec"]


def test_each_option_is_in_the_pods_that_need_it() -> None:
    assert set(OPTIONS) == set(PodOptions._fields)
    for name, (value, expected, everywhere) in OPTIONS.items():
        for pod, spec in pods_of(texts("kubernetes", with_option(name, value))):
            found = {key: spec.get(key) for key in expected}
            assert found == (expected if pod != "watch" or everywhere else dict.fromkeys(expected)), (name, pod)
    for pod, spec in pods_of(texts("kubernetes", with_option("resource", OPTIONS["resource"][0]))):
        limits = {"nvidia.com/gpu": "8", "rdma/hca": "8", "hugepages-2Mi": "1Gi"}
        asked = {"requests": {"cpu": "16", "memory": "256Gi"}, "limits": limits}
        for one in [*spec.get("initContainers", []), *spec["containers"]]:
            assert one["resources"] == (asked if pod != "watch" else {"requests": {"cpu": "100m", "memory": "1Gi"}})
    queued = texts("kubernetes", with_option("queue", "team-a"))
    labelled = {name for name, text in queued.items() if 'kueue.x-k8s.io/queue-name: "team-a"' in text}
    assert labelled == {"sweep-job.yaml", "preflight.yaml", "gang-jobset.yaml"}


def test_the_defaults_are_what_a_cluster_admits() -> None:
    for pod, spec in pods_of(texts("kubernetes")):
        assert spec["tolerations"] == [GPU_TAINT]
        assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        assert spec.get("nodeSelector") == ({"nvidia.com/gpu.present": "true"} if pod == "watch" else None)
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume]
        assert sizes == ([] if pod == "watch" else ["8Gi"])
        for one in [*spec.get("initContainers", []), *spec["containers"]]:
            added = {} if pod == "watch" else {"add": ["IPC_LOCK"]}
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"], **added}
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert set(one["resources"]["requests"]) == {"cpu", "memory"}
    assert all("Pod Security level" in text for text in texts("kubernetes").values())


@each(
    "gang, count",
    [("kubernetes-1.35", "'minCount': 16"), ("kubernetes-1.37", "'minCount': 16"), ("volcano", "'minMember': 16")],
)
def test_a_gang_counts_all_pods_and_each_pod_names_it(gang: Any, count: str) -> None:
    text = texts("kubernetes", with_option("gang", gang))["gang-jobset.yaml"]
    jobset, group = yaml.safe_load_all(text)
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    named = [
        template["metadata"].get("annotations"),
        *(template["spec"].get(f) for f in ("workloadRef", "schedulingGroup")),
    ]
    assert (count in str(group["spec"]), f"'{group['metadata']['name']}'" in str(named)) == (True, True)
    assert template["spec"].get("schedulerName") == ("volcano" if gang == "volcano" else None)
    assert ("one by one" in text, "one by one" in texts("kubernetes")["gang-jobset.yaml"]) == (False, True)


@pytest.mark.tools
def test_kubernetes_schemas_hold_with_each_option(tmp_path: Path, validators: Path) -> None:
    written = []
    asked = {name: with_option(name, value)._replace(drain=True) for name, (value, _, _) in OPTIONS.items()}
    for name, values in {**asked, "gpus": SETTINGS["gpus"], "cpu": SETTINGS["cpu"]}.items():
        for file, text in texts("kubernetes", values).items():
            written.append(tmp_path / f"{name}-{file}")
            # The schemas have no JobSet, which is a resource of its own: what it makes is a Job.
            written[-1].write_text(text if "kind: JobSet" not in text else yaml.safe_dump(gang_job(text)))
    schema_holds(validators, "1.37", written)
    for version in ("1.35", "1.37"):
        text = texts("kubernetes", with_option("gang", f"kubernetes-{version}"))["gang-jobset.yaml"]
        (tmp_path / version).write_text(yaml.safe_dump_all([gang_job(text), [*yaml.safe_load_all(text)][1]]))
        schema_holds(validators, version, [tmp_path / version])


REFUSED: dict[str, list[Any]] = {
    "pods": [
        *(PodOptions(node_selector=text) for text in [("a",), ("a=1", "a=2")]),
        *(PodOptions(toleration=(text,)) for text in ("a=b:Never", "a: b")),
        *(PodOptions(resource=(text,)) for text in ("rdma/hca", "rdma/hca=0", "nvidia.com/gpu=8")),
        *(with_option(name, ("a\nb",)).pods for name in ("claim", "pull_secret")),
        *(with_option(name, "no name").pods for name in ("queue", "runtime_class", "priority_class", "scheduler")),
    ],
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
    with pytest.raises(ConfigError, match=one_line("")):
        launch_files("kubernetes" if value is None else "slurm", VALUES._replace(**{name: value}))
    with pytest.raises(ConfigError, match="--scheduler is not Volcano's"):
        launch_files("kubernetes", VALUES._replace(pods=PodOptions(gang="volcano", scheduler="mine")))
    with pytest.raises(ConfigError, match="twice"):
        launch_files("kubernetes", VALUES._replace(variables=("NCCL_A=1", "NCCL_A=2")))


def test_the_command_prints_the_files() -> None:
    words = ["fleet", "render", "slurm", "--image", IMAGE]
    assert CliRunner().invoke(cli, words).stdout.startswith("# sweep.sbatch\n#!/bin/bash\n")
    words = ["fleet", "render", "kubernetes", "--image", IMAGE, "--runtime-class", "nvidia", "--resource", "rdma/hca=8"]
    given = CliRunner().invoke(cli, [*words, "--gang", "volcano", "--host-network"]).stdout
    parts = 'runtimeClassName: "nvidia"', '"rdma/hca": "8"', "hostNetwork: true", "scheduling.volcano.sh"
    assert [part for part in parts if part not in given] == []


KUBECTL = """#!/bin/sh
case "$*" in
  "-n ml get pods -l app.kubernetes.io/component=sweep -o name") echo pod/sweep-0-a pod/sweep-1-b pod/sweep-2-c ;;
  "-n ml logs pod/sweep-"*) cat "${0%/*}/${4##*/}" ;;
esac
"""


def test_reports_reach_the_fleets_report_from_the_logs_of_pods(tmp_path: Path) -> None:
    """A pod's log has what the container of the sweep prints, on both streams; the third pod is still pending."""
    text = texts("kubernetes", VALUES._replace(gpus=0, level="static"))["sweep-job.yaml"]
    (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    words = [sys.executable, "-m", "envcheck", *container["command"][1:-1], f"{tmp_path}/kept/"]
    for number, pod in enumerate(("sweep-0-a", "sweep-1-b", "sweep-2-c")):
        node = {"NODE_NAME": f"pool-{number}", "JOB_COMPLETION_INDEX": str(number), "ENVCHECK_RUN_ONLY": "open-files"}
        # Two variables that contradict each other are a warning.
        more = {"WORLD_SIZE": "1", "RANK": "4"} if number == 1 else {}
        with (tmp_path / pod).open("wb") as log:
            if number < 2:
                subprocess.run(words, env={**os.environ, **node, **more}, stdout=log, stderr=log, check=True)
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    lines = [line[4:] for line in text.splitlines() if line.startswith("#   ")]
    lines = lines[: lines.index("envcheck fleet report reports")]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "sweep-0-a").read_text().startswith("{"), "nothing but JSON"
    assert (tmp_path / "sweep-1-b").read_text().startswith("envcheck: warning: ")
    found = json.loads(CliRunner().invoke(cli, ["fleet", "report", str(tmp_path / "reports"), "--json"]).stdout)
    assert (found["verdict"]["good"], found["nodes"]["error"]) == ("pool-[0-1]", ["sweep-2-c"])


def test_only_with_drain_may_the_daemonset_change_nodes() -> None:
    watch = "watch-daemonset.yaml"
    plain, draining = texts("kubernetes"), texts("kubernetes", VALUES._replace(drain=True))
    assert set(draining) - set(plain) == {"rbac.yaml"}
    assert {name for name in plain if plain[name] != draining[name]} == {watch}
    assert yaml.safe_load(plain[watch])["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    pod = yaml.safe_load(draining[watch])["spec"]["template"]["spec"]
    account, role, binding, policy, bound = yaml.safe_load_all(draining["rbac.yaml"])
    assert pod["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    assert pod["tolerations"] == [GPU_TAINT, {"key": TAINT, "operator": "Exists"}]
    user = f"system:serviceaccount:{account['metadata']['namespace']}:{account['metadata']['name']}"
    assert user in policy["spec"]["matchConditions"][0]["expression"]
    assert (bound["spec"]["policyName"], policy["spec"]["failurePolicy"]) == (policy["metadata"]["name"], "Fail")
    assert "authentication.kubernetes.io/node-name" in policy["spec"]["validations"][1]["expression"]
    assert pod["initContainers"][0]["command"][-1] == "--drain"
    assert " --drain " in pod["containers"][0]["command"][2]


def test_the_watch_begins_anew_before_it_judges_by_a_driver_or_devices_that_are_not_its_own(tmp_path: Path) -> None:
    pod = yaml.safe_load(texts("kubernetes")["watch-daemonset.yaml"])["spec"]["template"]["spec"]
    program = pod["containers"][0]["command"][2].replace("/sys/module/nvidia/", "").replace("/dev/nvidiactl", "ctl")
    for happens in ("echo 580 > version", "mv taken ctl"):  # nobody can open a socket, nor what systemd took away
        folder = tmp_path / happens.split()[0]
        folder.mkdir()
        for name, does in (("sleep", f"[ -e judged ] && {happens}; true"), ("envcheck", "cat version >> judged")):
            (folder / name).write_text(f"#!/bin/sh\n{does}\n")
            (folder / name).chmod(0o755)
        (folder / "version").write_text("570\n")
        (folder / "ctl").touch()
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(folder / "taken"))
        environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
        ended = subprocess.run(["sh", "-c", program], cwd=folder, env=environment, timeout=20, check=False)
        assert (ended.returncode, (folder / "judged").read_text()) == (0, "570\n"), happens


def test_the_health_program_ends_before_slurm_ends_it_and_renews_before_the_prolog_asks() -> None:
    health = shlex.split(texts("slurm")["health.sh"], comments=True)
    assert health[health.index("--budget") + 1] == "45s"
    assert health[health.index("timeout") + 3] == "60"
    assert health[health.index("--max-age") + 1] == "300s"
    assert "SchedulerParameters=nohold_on_prolog_fail" in texts("slurm")["slurm.conf.part"]
