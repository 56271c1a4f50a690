"""Mark a node of Kubernetes as unfit or fit from a pod on it: a taint, a label and the reason; others' taints stay."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

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


def patch(node: Mapping[str, Any], check: str, reason: str) -> dict[str, Any] | None:
    """Return the merge patch for this version of the node: unfit for a reason, or fit (""); None if it is so."""
    metadata, taints = node.get("metadata") or {}, (node.get("spec") or {}).get("taints") or []
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", check)[:_LONGEST_VALUE].strip("._-")
    own = [{"key": TAINT, "value": value, "effect": "NoSchedule"}] if reason else []
    marks = {LABEL: "false" if reason else "true"}
    others = [taint for taint in taints if taint.get("key") != TAINT]
    held = (metadata.get("labels") or {}).get(LABEL), (metadata.get("annotations") or {}).get(REASON)
    mine = [{name: taint.get(name) for name in ("key", "value", "effect")} for taint in taints if taint not in others]
    if (mine, *held) == (own, marks[LABEL], reason or None):
        return None
    version = {"resourceVersion": metadata["resourceVersion"]} if metadata.get("resourceVersion") else {}
    return {
        "metadata": {**version, "labels": marks, "annotations": {REASON: reason or None}},
        "spec": {"taints": [*others, *own] or None},
    }


def mark(name: str, check: str, reason: str, environ: Mapping[str, str], account: Path = ACCOUNT) -> str:
    """Mark this node as unfit for a reason, or as fit (""); return "", or why that was not possible."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{quote(name, safe='')}"
    try:
        login = OriginLogin(url, f"Bearer {(account / 'token').read_text(encoding='ascii').strip()}")
        client = Client(ca=account / "ca.crt", logins=[login], connect=_CONNECT, read=_READ)
        for _ in range(_TRIES):
            status = _marked(client, url, check, reason)
            if status == _OK:
                return ""
            if status != _CONFLICT:
                break
    except FileNotFoundError:
        return "the pod has no service account token: apply rbac.yaml, and name its account in the pod"
    except (NetworkError, OSError, ValueError) as error:
        return f"the API server: {error}"
    if status == _FORBIDDEN:
        return "the API server: 403: the service account may not read and patch nodes: apply rbac.yaml"
    return f"the API server answers {status}"


def _marked(client: Client, url: str, check: str, reason: str) -> int:
    """Read the node and change it; return the status of the first answer that is not 200, else 200."""
    with client.get(url, {"Accept": "application/json"}) as answer:
        if answer.status != _OK:
            return answer.status
        node = json.loads(answer.text(_MOST))
    change = patch(node, check, reason) if isinstance(node, dict) else None
    if change is None:
        return _OK
    headers = {"Content-Type": "application/merge-patch+json", "Accept": "application/json"}
    with client.send("PATCH", url, headers, body=json.dumps(change).encode()) as answer:
        return answer.status
