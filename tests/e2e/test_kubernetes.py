"""The rendered manifests on a real API server, controllers and scheduler, with four nodes that are objects alone.

`make test-kubernetes` builds the server once (tests/e2e/kubernetes_tools.py) and runs this; elsewhere it is skipped.
The server is Kubernetes 1.20: it drops what came later (an indexed Job), which kubernetes-validate checks. In the
place of the kubelet, the test runs the init container's command and writes its exit code into the pod.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.fleet import gate, kubernetes_node
from envcheck.fleet.gate import NodeVerdict, image_subject, this_boot
from envcheck.fleet.launch_files import launch_files
from tests.fleet.test_launch_files import IMAGE, VALUES
from tests.mirrors.site.upstreams import free_ports

TOOLS: Final = os.environ.get("ENVCHECK_TEST_KUBERNETES", "")
NODES: Final = ("n1", "n2", "n3", "n4")
FAILING: Final = "n2"
REASON: Final = "envcheck: gpu-visible: 7 of 8 GPUs"
PATIENCE: Final = 240.0
TAINT: Final = {"key": "envcheck/unfit", "value": "gpu-visible", "effect": "NoSchedule"}
# The user that a pod of the service account of rbac.yaml is.
MARKS: Final = (("labels", kubernetes_node.LABEL), ("annotations", kubernetes_node.REASON))
ACCOUNT: Final = "system:serviceaccount:ml:envcheck-watch"

pytestmark = [
    pytest.mark.skipif(not TOOLS, reason="opt-in: `make test-kubernetes` builds an API server for half an hour"),
    pytest.mark.timeout(900),
]


class Cluster:
    """The API of the server, as an administrator."""

    def __init__(self, port: int, account: Path) -> None:
        self.port, self.account = port, account
        self._base = f"https://127.0.0.1:{port}"
        self._trust = ssl._create_unverified_context()  # noqa: S323, SLF001 (a certificate of its own, on the loopback)

    def call(self, method: str, path: str, content: Any = None, kind: str = "application/json") -> Any:
        """Send a request and return the answer."""
        request = urllib.request.Request(f"{self._base}{path}", method=method)  # noqa: S310 (our own server)
        request.add_header("Authorization", "Bearer secret")
        request.add_header("Content-Type", kind)
        data = None if content is None else json.dumps(content).encode()
        with urllib.request.urlopen(request, data, timeout=30, context=self._trust) as answer:  # noqa: S310
            return json.loads(answer.read())

    def patch(self, path: str, content: Any) -> None:
        """Merge a part into an object."""
        self.call("PATCH", path, content, "application/merge-patch+json")

    def node(self, name: str) -> tuple[list[dict[str, str]], str | None, str | None]:
        """Return a node's taints, the label that says whether it is fit, and the reason."""
        node = self.call("GET", f"/api/v1/nodes/{name}")
        label, reason = ((node["metadata"].get(kind) or {}).get(key) for kind, key in MARKS)
        return node["spec"].get("taints", []), label, reason

    def pods(self, part: str) -> list[dict[str, Any]]:
        """Return the pods of one of the manifests that are bound to a node."""
        query = f"labelSelector=app.kubernetes.io/component%3D{part}"
        found = self.call("GET", f"/api/v1/namespaces/ml/pods?{query}")["items"]
        return [pod for pod in found if pod["spec"].get("nodeName")]


def until(ready: Callable[[], bool], why: str) -> None:
    """Wait until something holds; fail after the patience of this module."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if ready():
                return
        time.sleep(0.5)
    pytest.fail(f"waited {PATIENCE:.0f} s for {why}")


def commands(at: Path, ports: list[int]) -> list[list[str]]:
    """Return what starts etcd, the API server, the controllers and the scheduler."""
    etcd, peer, api, controllers, scheduler = ports
    client = f"--kubeconfig={at}/kubeconfig --leader-elect=false --port=0"
    key = f"{at}/key.pem"
    store = f"http://127.0.0.1:{etcd}"
    lines = f"""
        etcd --data-dir={at}/etcd --listen-client-urls={store} --advertise-client-urls={store}
         --listen-peer-urls=http://127.0.0.1:{peer};
        kube-apiserver --etcd-servers={store} --bind-address=127.0.0.1 --advertise-address=10.0.0.1
         --secure-port={api} --cert-dir={at}/certificates --service-cluster-ip-range=10.200.0.0/24
         --service-account-issuer=https://x --service-account-key-file={key}
         --service-account-signing-key-file={key} --token-auth-file={at}/tokens --authorization-mode=RBAC
         --disable-admission-plugins=ServiceAccount;
        kube-controller-manager {client} --secure-port={controllers} --cert-dir={at}/controllers
         --node-monitor-grace-period=900s --node-startup-grace-period=900s;
        kube-scheduler {client} --secure-port={scheduler} --cert-dir={at}/scheduler"""
    return [[f"{TOOLS}/{words[0]}", *words[1:]] for words in map(str.split, lines.split(";"))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start the cluster and make its nodes; end all of it."""
    at, first = tmp_path_factory.mktemp("kubernetes"), free_ports(5)
    ports = [*range(first, first + 5)]
    subprocess.run(["openssl", "genrsa", "-out", str(at / "key.pem"), "2048"], check=True, capture_output=True)
    (at / "tokens").write_text(f'secret,admin,1,"system:masters"\nwatching,{ACCOUNT},2\n')
    server = {"server": f"https://127.0.0.1:{ports[2]}", "insecure-skip-tls-verify": True}
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (at / "kubeconfig").write_text(json.dumps(configuration))
    found = Cluster(ports[2], at / "account")
    with contextlib.ExitStack() as running:
        for number, command in enumerate(commands(at, ports)):
            log = running.enter_context((at / f"{number}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            running.callback(process.wait)
            running.callback(process.kill)
            if number == 1:
                until(lambda: bool(found.call("GET", "/api/v1/namespaces/default")), f"the API server: {at}/1.log")
        found.account.mkdir()
        (found.account / "token").write_text("watching")
        shutil.copy(at / "certificates/apiserver.crt", found.account / "ca.crt")
        found.call("POST", "/api/v1/namespaces", {"metadata": {"name": "ml"}})
        for name in NODES:
            add_node(found, name)
        yield found


def add_node(cluster: Cluster, name: str) -> None:
    """Make a node of eight GPUs that is ready."""
    cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    conditions = [{"type": "Ready", "status": "True", "reason": "Made", "message": "made"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    cluster.patch(f"/api/v1/nodes/{name}/status", {"status": status})


def manifest(name: str) -> dict[str, Any]:
    """Return a rendered manifest."""
    (document,) = manifests(name)
    return document


def manifests(name: str) -> list[dict[str, Any]]:
    """Return all that is in a rendered file."""
    (file,) = launch_files("kubernetes", [name], VALUES._replace(nodes=len(NODES), drain=True))
    return [*yaml.safe_load_all(file.text)]


def keep(state: Path, name: str, *, fails: bool) -> None:
    """Keep a verdict of now for a node."""
    verdict = NodeVerdict(
        subject=image_subject(IMAGE, None, None),
        at=this_boot({"NODE_NAME": name}),
        level="full",
        mode="gpu",
        status="fail" if fails else "pass",
        check="gpu-visible" if fails else "",
        summary="7 of 8 GPUs" if fails else "",
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ENVCHECK_HOME", str(state))
        gate.keep(verdict)


def run_init(cluster: Cluster, pod: dict[str, Any], state: Path) -> Result:
    """Do as a kubelet: run the init container's command and write what it came to into the pod; return the result."""
    container = pod["spec"]["initContainers"][0]
    words = [*container["command"][1:], "--image", IMAGE]
    variables = {"NODE_NAME": pod["spec"]["nodeName"], "ENVCHECK_HOME": str(state)}
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.port)}
    with pytest.MonkeyPatch.context() as patched:
        # A pod's credentials are below /var/run, which is not this test's to write to.
        marked = functools.partial(kubernetes_node.mark, account=cluster.account)
        patched.setattr(kubernetes_node, "mark", marked)
        done = CliRunner().invoke(cli, words, env=variables | server)
    lines = done.output.strip().splitlines()
    ended = {"exitCode": done.exit_code, "message": lines[-1] if lines else "", "reason": "Error"}
    entry = {"name": container["name"], "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    status = {"initContainerStatuses": [{**entry, "state": {"terminated": ended}}], "phase": "Pending"}
    cluster.patch(f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}/status", {"status": status})
    return done


def apply_account(cluster: Cluster) -> None:
    """Make the service account of the DaemonSet and what it may do."""
    account, role, binding = manifests("rbac")
    cluster.call("POST", "/api/v1/namespaces/ml/serviceaccounts", account)
    cluster.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    cluster.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)


def watching(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the pods of the DaemonSet by node, once there is one on each."""
    until(lambda: len(cluster.pods("watch")) == len(NODES), "a pod of the DaemonSet on each node")
    return {pod["spec"]["nodeName"]: pod for pod in cluster.pods("watch")}


def test_the_daemonset_watches_each_node_and_a_failing_gate_taints_it_and_says_why(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.call("POST", "/apis/apps/v1/namespaces/ml/daemonsets", manifest("watch"))
    pods = watching(cluster)
    assert set(pods) == set(NODES)
    for name in NODES:
        keep(tmp_path, name, fails=name == FAILING)
    refused = run_init(cluster, pods[FAILING], tmp_path)
    assert (refused.exit_code, cluster.node(FAILING)) == (1, ([], None, None))
    assert "apply rbac.yaml" in refused.stderr
    apply_account(cluster)
    until(lambda: run_init(cluster, pods[FAILING], tmp_path).stderr == "", "the role of the service account")
    codes = {name: run_init(cluster, pod, tmp_path).exit_code for name, pod in pods.items()}
    assert codes == {name: int(name == FAILING) for name in NODES}
    failed = next(pod for pod in cluster.pods("watch") if pod["spec"]["nodeName"] == FAILING)
    assert failed["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"] == REASON
    assert {name: cluster.node(name) for name in NODES} == {
        name: ([TAINT], "false", REASON) if name == FAILING else ([], "true", None) for name in NODES
    }


def test_a_node_that_the_gate_tainted_gets_no_pod_of_the_sweep_until_its_checks_pass(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.call("POST", "/apis/batch/v1/namespaces/ml/jobs", manifest("sweep"))
    until(lambda: len(cluster.pods("sweep")) == len(NODES) - 1, "a pod of the Job on each untainted node")
    assert {pod["spec"]["nodeName"] for pod in cluster.pods("sweep")} == set(NODES) - {FAILING}
    unfit = cluster.call("GET", "/api/v1/nodes?labelSelector=envcheck%2Ffit%3Dfalse")["items"]
    assert [node["metadata"]["name"] for node in unfit] == [FAILING]
    keep(tmp_path, FAILING, fails=False)
    assert run_init(cluster, watching(cluster)[FAILING], tmp_path).exit_code == 0
    assert cluster.node(FAILING) == ([], "true", None)
    until(lambda: len(cluster.pods("sweep")) == len(NODES), "the last pod, on the node whose taint was taken off")


def test_the_server_takes_the_preflight_pod(cluster: Cluster) -> None:
    answer = cluster.call("POST", "/api/v1/namespaces/ml/pods?dryRun=All", manifest("preflight"))
    assert answer["spec"]["initContainers"][0]["command"][:3] == shlex.split("envcheck fleet gate")
