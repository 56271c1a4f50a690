"""Eight InfiniBand ports, and an image without the libraries that drive them: NCCL takes TCP and says nothing.

Where RDMA ports are up, or the image promises the libraries, what NCCL opens is opened as NCCL does it
(src/misc/ibvsymbols.cc, src/plugin/plugin_open.cc): libibverbs, of which one that was installed without its recommended
providers finds no device, and of EFA and Google's fabric their own plug-in.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.collectives import fabrics
from envcheck.counting import counted

CHECK = checks.Check(
    promise="where RDMA ports are up or promised, the libraries and the plug-in that NCCL opens for them load",
    level="static",
    timeout=60.0,
)

LIBRARIES = ("libibverbs.so.1", "libmlx5.so.1")
VERBS = LIBRARIES[0]
LIMIT = checks.Limit(0, "libraries", "NVIDIA NCCL, src/misc/ibvsymbols.cc and src/plugin/plugin_open.cc", "at most")
# Where libibverbs of a distribution looks for its providers.
_PLACES = ("/usr/lib/*/libibverbs", "/usr/lib64/libibverbs", "/usr/lib/libibverbs")
_DMI = Path("/sys/class/dmi/id/sys_vendor")
_INSTALL = fabrics.LIBRARIES
_EFA = "install AWS's EFA packages (aws-ofi-nccl, libfabric), and put aws-ofi-nccl's lib first on LD_LIBRARY_PATH"
_GIB = "mount /usr/local/gib, and source its scripts/set_nccl_env.sh, as Google's documentation of A3 Ultra and A4 says"


def measure(rank: Rank) -> Measured:
    """Open what NCCL opens; return what the loader said of each (None: it loads), providers, and what the node is."""
    plugin = os.environ.get("NCCL_NET_PLUGIN", "")
    names = [plugin, f"libnccl-net-{plugin}.so"] if plugin else ["libnccl-net.so"]
    libraries = {name: _load(name) for name in LIBRARIES}
    return {
        "rank": rank.rank,
        "libraries": libraries,
        "providers": _providers(),
        "plugins": {name: _load(name) for name in names},
        "ports": fabrics.active_ports(),
        "maker": _DMI.read_text(encoding="utf-8", errors="replace").strip() if _DMI.is_file() else "",
    }


def _load(name: str) -> str | None:
    """Return the loader's complaint about a library, None when it is content."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return None


def _providers() -> list[str]:
    """Return the providers of libibverbs, beside the one that is loaded or in a distribution's places."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    loaded = set(re.findall(r"\s(/\S*/libibverbs\.so\S*)$", maps, re.MULTILINE))
    beside = [Path(path).parent / "libibverbs" for path in loaded]
    places = [*beside, *(path for place in _PLACES for path in Path("/").glob(place[1:]))]
    return sorted({path.name for place in places for path in place.glob("lib*-rdmav*.so")})


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail what is promised or what rails need and does not load; warn where the ports may be an ordinary card's."""
    if not view.environment.get("cuda"):
        return skipped("torch has no CUDA here: NCCL opens no network", code="torch.no-cuda")
    entry = ranks[0] if ranks else {}
    if not isinstance(entry.get("libraries"), dict) or not isinstance(entry.get("plugins"), dict):
        return undecided("nothing was opened", code="fabric-libraries.unmeasured")
    promised = view.promises.get("fabric", "none")
    wanted = [] if promised in ("none", "unknown") else promised.split()
    # Those that the environment sees, else those of the node around it.
    listed = entry.get("ports") or view.snapshot.signal("ib.ports").value or []
    ports = [port for port in listed if view.mode == "gpu" and port.get("state", "ACTIVE") == "ACTIVE"]
    if not wanted and not ports:
        return skipped("no RDMA port is up beside GPUs here, and the image promises none", code="fabric-libraries.none")
    amazon = any(port.get("vendor") == fabrics.AMAZON for port in ports)
    needed = list(dict.fromkeys([*wanted, VERBS]))
    why = "the image promises it" if wanted else f"{counted(len(ports), 'RDMA port is', 'RDMA ports are')} up here"
    verdict = failed if wanted else fabrics.verdict(ports)
    findings = [*_missing(verdict, entry, needed, why), *_plugin(entry, ports, amazon=amazon)]
    fine = f"{', '.join(needed)} load, {counted(len(entry.get('providers') or []), 'provider')}; {why}"
    return worst(findings, otherwise=passed(fine, value=0, limit=LIMIT))


def _missing(verdict: checks.Verdict, entry: Measured, needed: list[str], why: str) -> list[Outcome]:
    """Return the libraries that do not load, or that none of them knows a device."""
    broken = {name: entry["libraries"].get(name, "it was not tried") for name in needed}
    findings = [
        verdict(
            f"{name} does not load ({said}); {why}",
            fix=_INSTALL,
            value=1,
            limit=LIMIT,
            code="fabric-libraries.missing",
            culprit=name,
        )
        for name, said in broken.items()
        if said is not None
    ]
    if findings or entry.get("providers"):
        return findings
    text = f"libibverbs has no provider, so that it finds no device; {why}"
    return [verdict(text, fix=_INSTALL, value=1, limit=LIMIT, code="fabric-libraries.no-provider", culprit=VERBS)]


def _plugin(entry: Measured, ports: list[Measured], *, amazon: bool) -> list[Outcome]:
    """Return that the network's own NCCL plug-in does not load: of EFA, or of Google's RDMA."""
    google = bool(ports) and str(entry.get("maker")) == "Google"
    if not (amazon or google) or None in entry["plugins"].values():
        return []
    said = "; ".join(str(value) for value in entry["plugins"].values())
    text = f"{'EFA' if amazon else 'Google RDMA'} without its NCCL plug-in: {said}"
    # NCCL's own verbs reach Google's ports as well, slower; of EFA's they know nothing.
    verdict, fix = (failed, _EFA) if amazon else (warned, _GIB)
    return [verdict(text, fix=fix, value=1, limit=LIMIT, code="fabric-libraries.no-plugin", culprit="libnccl-net.so")]
