"""NVIDIA_* variables of an image tell the container runtime what to pass in, and which drivers to refuse."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned
from envcheck.checks.env import image_config

CHECK = checks.Check(
    promise="the image's NVIDIA_* variables ask for what torch's CUDA needs, and no more", level="static"
)

READ = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE")
SOURCE = "NVIDIA Container Toolkit: environment variables (visible devices, driver capabilities, requirements)"
LIMIT = checks.Limit(0, "settings", SOURCE, "equal")
NOTHING = ("", "void", "none")
_ATOM = re.compile(r"(cuda|driver|arch|brand)(>=|<=|!=|=|>|<)([\w.-]+)")


class Constraint(NamedTuple):
    """A requirement: the lowest CUDA of each alternative, "" where one names none, and what no runtime reads."""

    lowest: list[str]
    unread: list[str]


def measure(rank: Rank) -> Measured:
    """Return the variables that NVIDIA's container runtimes read, with their values."""
    names = [*READ, *sorted(name for name in os.environ if name.startswith("NVIDIA_REQUIRE_"))]
    return {
        "rank": rank.rank,
        "image": image_config.is_image(),
        "contained": image_config.contained(),
        "variables": {name: os.environ[name] for name in names if name in os.environ},
    }


def demand(text: str) -> Constraint:
    """Read a requirement: alternatives are set apart by blanks, what must hold together by commas."""
    alternatives = [alternative.split(",") for alternative in text.split()]
    unread = [atom for atoms in alternatives for atom in atoms if _ATOM.fullmatch(atom) is None]
    read = [[match for atom in atoms if (match := _ATOM.fullmatch(atom))] for atoms in alternatives]
    lowest = [next((f[3] for f in atoms if f[1] == "cuda" and f[2] in (">=", ">", "=")), "") for atoms in read]
    return Constraint(lowest, unread)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail an image that keeps CUDA out; warn of another CUDA, and of a container whose owner may mean it so."""
    entry = ranks[0] if ranks else {}
    variables, cuda = entry.get("variables"), view.environment.get("cuda")
    if not isinstance(variables, dict):
        return undecided("the variables were not read", code="nvidia-settings.unmeasured")
    if not entry.get("contained"):
        return skipped("no container: nothing reads them here", code="container.none")
    if not cuda:
        return skipped("torch has no CUDA here: whatever is passed in, it uses none", code="torch.no-cuda")
    keeps_out = [] if view.mode == "gpu" else _keeps_out(variables)
    sentences = [*keeps_out, *_disagrees(variables, str(cuda)), *_lacks(variables, visible=view.mode == "gpu")]
    if not sentences:
        return passed(f"they suit CUDA {cuda}", value=0, limit=LIMIT, variables=variables)
    major = str(cuda).partition(".")[0]
    fix = (
        "set NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=compute,utility and "
        f'NVIDIA_REQUIRE_CUDA="cuda>={major}.0" in the image, and no other NVIDIA_REQUIRE_*'
    )
    verdict = failed if keeps_out and entry.get("image") else warned
    code = "nvidia-settings.keeps-gpus-out" if keeps_out else "nvidia-settings.mismatch"
    about: dict[str, Any] = {"value": len(sentences), "limit": LIMIT, "variables": variables}
    return verdict("; ".join(sentences), fix=fix, code=code, **about)


def _capabilities(variables: dict[str, str]) -> list[str]:
    named = [word.strip() for word in variables.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")]
    return [word for word in named if word] or ["compute", "utility"]


def _keeps_out(variables: dict[str, str]) -> list[str]:
    """Return what keeps every GPU, or libcuda, or the container itself from starting; where a GPU is seen, nothing."""
    devices = variables.get("NVIDIA_VISIBLE_DEVICES")
    reasons = [f"NVIDIA_VISIBLE_DEVICES={devices or '(empty)'} passes no GPU in"] if devices in NOTHING else []
    if not {"compute", "all"} & set(_capabilities(variables)):
        reasons.append(f"NVIDIA_DRIVER_CAPABILITIES={variables['NVIDIA_DRIVER_CAPABILITIES']} leaves libcuda out")
    unread = {n: atoms for n, v in variables.items() if n.startswith("NVIDIA_REQUIRE_") and (atoms := demand(v).unread)}
    return reasons + [f"{name} holds {atoms[0]}, which no runtime understands" for name, atoms in unread.items()]


def _lacks(variables: dict[str, str], *, visible: bool) -> list[str]:
    lacking = []
    if "NVIDIA_VISIBLE_DEVICES" not in variables and not visible:
        text = "NVIDIA_VISIBLE_DEVICES is not set: a GPU is passed in only where the start asks for one (--gpus)"
        lacking.append(text)
    if not {"utility", "all"} & set(_capabilities(variables)):
        lacking.append("NVIDIA_DRIVER_CAPABILITIES leaves NVML and nvidia-smi out")
    return lacking


def _disagrees(variables: dict[str, str], cuda: str) -> list[str]:
    """Compare what is required of the driver with what the wheel needs of it: a driver of the same CUDA major."""
    lowest = [_numbers(number) for number in demand(variables.get("NVIDIA_REQUIRE_CUDA", "")).lowest if number]
    if not lowest or variables.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        return []
    cuda_version, required = _numbers(cuda), ".".join(map(str, min(lowest)))
    if min(lowest) > cuda_version:
        return [f"NVIDIA_REQUIRE_CUDA wants CUDA {required}, and refuses drivers that torch's CUDA {cuda} runs on"]
    if min(lowest)[0] < cuda_version[0]:
        return [
            f"NVIDIA_REQUIRE_CUDA is content with CUDA {required}, and starts on drivers too old for torch's {cuda}"
        ]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit()) or (0,)
