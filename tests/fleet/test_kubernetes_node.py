"""How a gate marks its node in Kubernetes: only its own taint, label and reason change, and a refusal is said."""

import json
import re
from typing import Any

import pytest
from msgspec import structs

from envcheck.fleet.gate import Boot, GatedEnvironment, NodeVerdict
from envcheck.fleet.kubernetes_node import mark, patch, unproven
from tests.certificates import Certificate, signed
from tests.http_server import Answer, Request, Server, Servers
from tests.tables import each

REASON = "envcheck: ecc: 2 errors"
OTHERS = {"key": "maintenance", "value": "tonight", "effect": "NoExecute"}
OWN = {"key": "envcheck/unfit", "value": "ecc", "effect": "NoSchedule"}


def node(*taints: dict[str, str], label: str | None = None, reason: str | None = None) -> dict[str, Any]:
    labels = {"zone": "a"} | ({"envcheck/fit": label} if label else {})
    annotations = {"envcheck/reason": reason} if reason else {}
    metadata = {"name": "n7", "resourceVersion": "5", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"taints": [*taints]} if taints else {}}


def changed(known: dict[str, Any], check: str, reason: str) -> dict[str, Any]:
    change = patch(known, check, reason)
    assert change is not None
    return change


def test_only_the_gates_own_taint_label_and_reason_change() -> None:
    change = changed(node(OTHERS), "ecc", REASON)
    assert change["spec"]["taints"] == [OTHERS, OWN]
    marks = {"labels": {"envcheck/fit": "false"}, "annotations": {"envcheck/reason": REASON}}
    assert change["metadata"] == {"resourceVersion": "5", **marks}
    change = changed(node(OTHERS, OWN, label="false", reason=REASON), "", "")
    assert (change["spec"]["taints"], change["metadata"]["labels"]) == ([OTHERS], {"envcheck/fit": "true"})
    assert change["metadata"]["annotations"] == {"envcheck/reason": None}
    assert patch(node(OWN, label="false", reason=REASON), "shm", "envcheck: shm: small") is not None
    assert patch(node(OTHERS, OWN, label="false", reason=REASON), "ecc", REASON) is None, "it is marked already"
    assert patch(node(OTHERS, label="true"), "", "") is None
    # The operator cordons a node while it exchanges the driver (NVIDIA/gpu-operator#2820); its pods tolerate no taint.
    for held in ([], [OWN]):
        cordoned = node(OTHERS, *held)
        cordoned["spec"]["unschedulable"] = True
        change = changed(cordoned, "driver-nvml", REASON)
        assert change["spec"]["taints"] == [OTHERS, *held]
        assert (change["metadata"]["labels"], REASON in str(change)) == ({"envcheck/fit": "false"}, True)
    named = changed(node(), "-my check/é" + "x" * 90, REASON)
    assert re.fullmatch("my-check-x{,54}", named["spec"]["taints"][0]["value"]), "as Kubernetes takes it"


@each(
    "gpus, present, covered, gpu, why",
    [
        ({}, "", ["shm"], False, "it failed ecc, which this run did not cover"),
        ({"nvidia.com/gpu": "8"}, "true", ["ecc"], True, ""),
        ({"nvidia.com/gpu": "8"}, "", ["ecc"], False, "it has nvidia.com/gpu, and the run saw no GPU"),
        ({"nvidia.com/gpu": "0", "cpu": "64"}, "false", ["ecc"], False, ""),
        # Its driver is gone, and with it the device plugin (NVIDIA/k8s-device-plugin#1698).
        ({"nvidia.com/gpu": "0"}, "true", ["ecc"], False, "it has nvidia.com/gpu.present, and the run saw no GPU"),
    ],
)
def test_a_node_is_fit_only_where_the_run_covered_its_taint_and_saw_its_gpus(
    gpus: dict[str, str], present: str, covered: list[str], gpu: Any, why: str
) -> None:
    tainted = {**node(OTHERS, OWN), "status": {"capacity": gpus}}
    tainted["metadata"]["labels"]["nvidia.com/gpu.present"] = present
    assert unproven(tainted, covered, gpu=gpu) == why
    untainted = node(OTHERS, label="false", reason=REASON)  # it was cordoned as it failed
    assert unproven(untainted, covered, gpu=gpu) == (why if "ecc" not in covered else "")


class Api:
    """A node in front of which other clients change it, so often; or that refuses."""

    def __init__(self, conflicts: int = 0, status: int = 200) -> None:
        self.node, self.conflicts, self.status = node(OTHERS), conflicts, status

    def __call__(self, request: Request) -> Answer:
        """Answer as the API server."""
        if request.login != "Bearer secret" or self.status != 200:
            return Answer(401 if request.login != "Bearer secret" else self.status)
        if request.method == "PATCH":
            assert request.headers["Content-Type"] == "application/merge-patch+json"
            if self.conflicts:
                self.conflicts -= 1
                return Answer(409)
            self.node["spec"] = json.loads(request.body)["spec"]
        return Answer(body=json.dumps(self.node).encode())


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Return a server's certificate; beside its authority's is a token, as in a pod."""
    at = tmp_path_factory.mktemp("account")
    (at / "token").write_text("secret\n")
    return signed(at, "127.0.0.1", name="ca.crt")


def judged(*covered: str, node: str = "n7", gpu: bool = False) -> NodeVerdict:
    """Return the verdict of a run that covered these checks; that of a run in which ecc failed without any."""
    subject = GatedEnvironment(kind="python", name="/opt/venv", state="1")
    mode: Any = "gpu" if gpu else "cpu"
    at = Boot(node=node, boot="1", driver="", gpus=0, uptime=1.0)
    found = (
        {"status": "pass", "covered": covered} if covered else {"status": "fail", "check": "ecc", "summary": "2 errors"}
    )
    return structs.replace(NodeVerdict(subject=subject, at=at, level="quick", mode=mode, status="pass"), **found)


def marked(server: Server, account: Certificate, *covered: str, node: str = "n7") -> str:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    return mark(judged(*covered, node=node), environ, account.ca.parent)


def test_a_node_is_marked_in_two_requests_and_a_conflict_is_tried_again(servers: Servers, account: Certificate) -> None:
    api = Api(conflicts=1)
    server = servers.start(Server(api, tls=account.context))
    assert marked(server, account) == ""
    assert api.node["spec"]["taints"] == [OTHERS, OWN]
    path = "/api/v1/nodes/n7"
    assert [(r.method, r.path) for r in server.requests] == [("GET", path), ("PATCH", path)] * 2
    assert "did not cover" in marked(server, account, "shm")
    assert marked(server, account, "ecc") == ""
    assert api.node["spec"]["taints"] == [OTHERS]
    marked(server, account, node="../pods/x")
    assert server.requests[-1].path == "/api/v1/nodes/..%2Fpods%2Fx", "a name that is no path stays a name"


@each(
    "api, why",
    [(Api(status=403), "apply rbac.yaml"), (Api(status=404), "answers 404"), (Api(conflicts=99), "answers 409")],
)
def test_a_server_that_refuses_is_said(servers: Servers, account: Certificate, api: Api, why: str) -> None:
    assert why in marked(servers.start(Server(api, tls=account.context)), account)


def test_the_token_is_sent_only_to_a_server_of_the_clusters_authority(servers: Servers, account: Certificate) -> None:
    other = servers.start(Server(Api()))
    assert marked(other, account).startswith("the API server: ")
    nothing = account._replace(ca=account.ca.parent / "none/ca.crt")
    assert "apply rbac.yaml" in marked(other, nothing), "the pod has no account"
    assert other.requests == []
