"""Mark a node of Kubernetes as unfit or fit from a pod on it: a taint, a label and the reason; others' taints stay."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from envcheck.fleet.gate import NodeVerdict
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import OriginLogin
from envcheck.mirrors.net.network_errors import NetworkError

TAINT: Final = "envcheck/unfit"
LABEL: Final = "envcheck/fit"
REASON: Final = "envcheck/reason"
# Where Kubernetes puts a pod's credentials (kubernetes.io, "Accessing the Kubernetes API from a Pod").
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Seconds, and how often it is tried where another client changes the node in between.
_CONNECT, _READ, _TRIES = 2.0, 3.0, 3
_CONFLICT, _FORBIDDEN, _OK = 409, 403, 200
_MOST: Final = 4 << 20
# A taint's value is at most 63 letters, digits, dots, dashes and underscores.
_LONGEST_VALUE: Final = 63
# How device plugins name GPUs and their parts in a node's capacity.
_DEVICES: Final = ("nvidia.com/", "amd.com/gpu", "gpu.intel.com/")
# Read off the PCI bus: without a driver there is no device plugin and no capacity (NVIDIA/k8s-device-plugin#1698).
_PRESENT: Final = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")


def unproven(node: Mapping[str, Any], covered: Collection[str], *, gpu: bool) -> str:
    """Return why a pass does not make this node fit: it has GPUs and none was seen, or what set its taint did not run.

    `covered` are the checks that found nothing.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    gpus = [name for name, count in capacity.items() if name.startswith(_DEVICES) and str(count) != "0"]
    metadata = node.get("metadata") or {}
    labels, told = metadata.get("labels") or {}, str((metadata.get("annotations") or {}).get(REASON))
    gpus += [name for name in _PRESENT if labels.get(name) == "true"]
    if gpus and not gpu:
        return f"it has {gpus[0]}, and the run saw no GPU"
    proven = set(map(_taint_value, covered))
    taints = (node.get("spec") or {}).get("taints") or []
    failed = [str(taint.get("value")) for taint in taints if taint.get("key") == TAINT]
    # A cordoned node got no taint: there its reason, "envcheck: CHECK: WHY", alone keeps the check that failed.
    failed += re.findall("^envcheck: (.+?): ", told) if labels.get(LABEL) == "false" else []
    left = dict.fromkeys(check for check in failed if _taint_value(check) not in proven)
    return f"it failed {', '.join(left)}, which this run did not cover" if left else ""


def _taint_value(check: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", check)[:_LONGEST_VALUE].strip("._-")


def patch(node: Mapping[str, Any], check: str, reason: str) -> dict[str, Any] | None:
    """Return the merge patch for this version of the node: unfit for a reason, or fit (""); None if it is so.

    A cordoned node gets no new taint: it takes no work, and where its driver is exchanged just now, a taint that the
    GPU operator's pods do not tolerate would keep the new driver away (NVIDIA/gpu-operator#2820, #26).
    """
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    taints = spec.get("taints") or []
    others = [taint for taint in taints if taint.get("key") != TAINT]
    mine = [{name: taint.get(name) for name in ("key", "value", "effect")} for taint in taints if taint not in others]
    new = mine if spec.get("unschedulable") else [{"key": TAINT, "value": _taint_value(check), "effect": "NoSchedule"}]
    own = new if reason else []
    marks = {LABEL: "false" if reason else "true"}
    held = (metadata.get("labels") or {}).get(LABEL), (metadata.get("annotations") or {}).get(REASON)
    if (mine, *held) == (own, marks[LABEL], reason or None):
        return None
    version = {"resourceVersion": metadata["resourceVersion"]} if metadata.get("resourceVersion") else {}
    return {
        "metadata": {**version, "labels": marks, "annotations": {REASON: reason or None}},
        "spec": {"taints": [*others, *own] or None},
    }


def mark(verdict: NodeVerdict, environ: Mapping[str, str], account: Path = ACCOUNT) -> str:
    """Mark a verdict's node as unfit, or as fit where a pass proves that; return "", or why it is not marked."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{quote(verdict.at.node, safe='')}"
    try:
        login = OriginLogin(url, f"Bearer {(account / 'token').read_text(encoding='ascii').strip()}")
        client = Client(ca=account / "ca.crt", logins=[login], connect=_CONNECT, read=_READ)
        for _ in range(_TRIES):
            status, why = _marked(client, url, verdict)
            if status == _OK:
                return why
            if status != _CONFLICT:
                break
    except FileNotFoundError:
        return "the pod has no service account token: apply rbac.yaml, and name its account in the pod"
    except (NetworkError, OSError, ValueError) as error:
        return f"the API server: {error}"
    if status == _FORBIDDEN:
        return "the API server: 403: the service account may not read and patch nodes: apply rbac.yaml"
    return f"the API server answers {status}"


def _marked(client: Client, url: str, verdict: NodeVerdict) -> tuple[int, str]:
    """Read the node and change it; return the status of the first answer that is not 200, else 200, and a doubt."""
    with client.get(url, {"Accept": "application/json"}) as answer:
        if answer.status != _OK:
            return answer.status, ""
        node = json.loads(answer.text(_MOST))
    failed = verdict.status == "fail"
    why = "" if failed else unproven(node, verdict.covered, gpu=verdict.mode == "gpu")
    change = None if why else patch(node, verdict.check, verdict.reason if failed else "")
    if change is None:
        return _OK, why
    headers = {"Content-Type": "application/merge-patch+json", "Accept": "application/json"}
    with client.send("PATCH", url, headers, body=json.dumps(change).encode()) as answer:
        return answer.status, ""
