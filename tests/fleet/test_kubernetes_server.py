"""Opt-in, on the real thing: ENVCHECK_TEST_KUBERNETES names a directory with kube-apiserver and etcd.

The server is the test's own, without what starts pods: a node and its pod are objects alone. kubectl is on PATH.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.fleet.group.meeting import free_ports
from envcheck.fleet.kubernetes_node import mark
from tests.certificates import openssl, signed
from tests.cli.test_slurm import started, until
from tests.fleet.test_kubernetes_node import judged
from tests.tables import each

PROGRAMS = os.environ.get("ENVCHECK_TEST_KUBERNETES", "")
ETCD = """etcd --data-dir={at}/etcd --listen-peer-urls=http://127.0.0.1:{peer}
--listen-client-urls=http://127.0.0.1:{etcd} --advertise-client-urls=http://127.0.0.1:{etcd}
"""
SERVER = """kube-apiserver --secure-port={port} --bind-address=127.0.0.1 --advertise-address=10.0.0.1 --cert-dir={at}
--tls-cert-file={at}/cert.pem --tls-private-key-file={at}/key.pem --token-auth-file={at}/tokens
--etcd-servers=http://127.0.0.1:{etcd} --service-cluster-ip-range=10.200.0.0/24 --authorization-mode=RBAC
--service-account-issuer=https://test --service-account-key-file={at}/signer
--service-account-signing-key-file={at}/signer --disable-admission-plugins=ServiceAccount
"""
# A node with GPUs that somebody else keeps free, and the pod on it whose token the marks come with.
OBJECTS = """
kind: Node
apiVersion: v1
metadata: {name: n7}
spec: {taints: [{key: maintenance, value: tonight, effect: NoExecute}]}
status: {capacity: {nvidia.com/gpu: "8"}}
---
kind: Pod
apiVersion: v1
metadata: {name: gate}
spec: {nodeName: n7, serviceAccountName: envcheck-watch, containers: [{name: gate, image: registry.example/x}]}
"""
REASON = "envcheck: ecc: 2 errors"
IMAGE = f"registry.example:5000/torch@sha256:{'a' * 64}"


class Cluster:
    """An API server, and the manifests for it, in a directory that is also that of a pod's account."""

    def __init__(self, at: Path, port: int) -> None:
        self.at, self.environ = at, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        to = [f"--server=https://127.0.0.1:{port}", f"--certificate-authority={at}/ca.crt", "--token=secret"]
        self.command = ["kubectl", "--kubeconfig=/dev/null", *to, "--namespace=ml"]

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, in the manifests' namespace."""
        return subprocess.run([*self.command, *words], input=given, check=check, text=True, capture_output=True)

    def marked(self, *covered: str, gpu: bool = False) -> str:
        """Mark the node as a gate in its pod does; return why it is not marked."""
        return mark(judged(*covered, gpu=gpu), self.environ, self.at)

    def node(self) -> tuple[list[str], str | None, str | None]:
        """Return the node's taints, and what envcheck says of it."""
        node = json.loads(self.kubectl("get", "node", "n7", "-o", "json").stdout)
        labels, notes = (node["metadata"].get(kind, {}) for kind in ("labels", "annotations"))
        taints = [f"{taint['key']}={taint.get('value', '')}" for taint in node["spec"].get("taints", [])]
        return taints, labels.get("envcheck/fit"), notes.get("envcheck/reason")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not PROGRAMS:
        pytest.skip("opt-in: ENVCHECK_TEST_KUBERNETES names no directory with kube-apiserver and etcd")
    at = tmp_path_factory.mktemp("kubernetes")
    signed(at, "127.0.0.1", name="ca.crt")
    openssl(at, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "signer")
    (at / "tokens").write_text("secret,admin,1,system:masters\n")
    words = ["--drain", "--namespace", "ml", "--image", IMAGE, "--output", str(at)]
    subprocess.run([sys.executable, "-m", "envcheck", "fleet", "render", "kubernetes", *words], check=True)
    etcd, peer, port = free_ports(3)
    store, server = (text.format(at=at, etcd=etcd, peer=peer, port=port).split() for text in (ETCD, SERVER))
    one, environment = Cluster(at, port), {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    with started(store, environment, at), started(server, environment, at):
        until(lambda: not one.kubectl("get", "--raw=/readyz", check=False).returncode, at)
        one.kubectl("create", "namespace", "ml")
        yield one


def test_a_taint_goes_only_by_a_run_that_covered_its_check_and_saw_the_gpus(cluster: Cluster) -> None:
    cluster.kubectl("create", "serviceaccount", "envcheck-watch")
    cluster.kubectl("create", "-f-", given=OBJECTS)
    bound = ["--bound-object-kind=Pod", "--bound-object-name=gate"]
    (cluster.at / "token").write_text(cluster.kubectl("create", "token", "envcheck-watch", *bound).stdout)
    assert "403" in cluster.marked()
    # Of rbac.yaml a server before 1.30 does not know the policy.
    cluster.kubectl("apply", "-f", f"{cluster.at}/rbac.yaml", check=False)
    others = cluster.node()[0]
    assert "maintenance=tonight" in others
    assert cluster.marked() == ""
    tainted = ([*others, "envcheck/unfit=ecc"], "false", REASON)
    assert cluster.node() == tainted
    for covered, gpu, why in (("shm", True, "did not cover"), ("ecc", False, "the run saw no GPU")):
        assert (why in cluster.marked(covered, gpu=gpu), cluster.node()) == (True, tainted)
    assert (cluster.marked("ecc", gpu=True), cluster.node()) == ("", (others, "true", None))


@each("file", ["watch-daemonset.yaml", "preflight.yaml"])
def test_the_server_takes_the_manifests_and_refuses_one_with_a_slip(cluster: Cluster, file: str) -> None:
    text = (cluster.at / file).read_text()
    for right, wrong in (("", ""), ("volumeMounts:", "volumeMount:"), ("mountPath: /", "mountPath: ''  # ")):
        given = text.replace(right, wrong)
        done = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f-", given=given, check=False)
        assert ("(server dry run)" in done.stdout, bool(done.returncode)) == (not right, bool(right)), done.stderr
