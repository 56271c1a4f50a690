"""A variable set long ago decides today what CUDA, NCCL, the loader and Python do.

DCGM refuses to run its diagnostics under CUDA's coredump and profiler switches (NVIDIA/DCGM nvvs/src/Software.cpp).
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import getproxies_environment, proxy_bypass

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, passed, undecided, warned, worst
from envcheck.checks.extensions.installed import cached
from envcheck.checks.support import process_group
from envcheck.counting import counted

CHECK = Check(promise="no environment variable slows, redirects or replaces what the wheel brings", level="static")


class VariableRule(NamedTuple):
    """When a variable does harm: `harmful` is a pattern of its value, `gpu_only` where the CPU does not care."""

    harmful: str
    why: str
    source: str
    gpu_only: bool


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_PATTERNS, _SOURCES = _TABLE["patterns"], _TABLE["sources"]
RULES = {
    name: VariableRule(
        _PATTERNS.get(row["harmful"], row["harmful"]),
        row["why"],
        _SOURCES.get(row["source"], row["source"]),
        row.get("gpu_only", True),
    )
    for name, row in _TABLE["rules"].items()
}
PACKAGES = ("torch", "torchvision", "torchaudio", "triton", "numpy", "nvidia", "sitecustomize", "usercustomize")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h; newer torches may know more.
OPTIONS = _TABLE["allocator"]
# The first takes the beginnings of names, "=" before a whole one, "^" before those to leave out (NCCL's guide).
INTERFACES = _TABLE["interfaces"]
# Lists of cores that bind threads: libgomp's, Intel's OpenMP's (`explicit,proclist=[0,2-6:2]`), and OpenMP's.
BINDING = _TABLE["binding"]
_SPAN = re.compile(r"(\d{1,5})(?:[-:](\d{1,5}))?(?::(\d{1,5}))?")
# Allocators and OpenMP runtimes that people preload on purpose: they replace malloc or threads, and nothing of CUDA.
USUAL = re.compile(r"lib(jemalloc|tcmalloc\w*|mimalloc|iomp5|gomp|omp|stdc\+\+|gcc_s)(-[\w.]+)?\.so[\d.]*")
# CUDA's, torch's and sanitizers': one of the system takes the place of the wheel's, or of malloc.
_GPU = re.compile(r"lib(cu(?!ps|r[ls])|nv|nccl|torch|c10|(a|l|t|ub)san)")
# Google's plugins for A3 start with an algorithm and a protocol of theirs alone (NVIDIA/aicr#422).
GOOGLES = {"NCCL_ALGO": ("ring", "ring,tree"), "NCCL_PROTO": ("simple", "simple,ll128"), "NCCL_NVLS_ENABLE": ("0",)}
NAMES = (*RULES, *THREADS, *BINDING, *ALLOCATOR, *INTERFACES, "NCCL_NET")
LIMIT = Limit(
    0, "variables", "NCCL's, CUDA's and PyTorch's lists of environment variables; " + _SOURCES["dcgm"], "equal"
)


def measure(rank: Rank) -> Measured:
    """Return the variables that matter, and the files that they put before the environment's own."""
    preload = [entry for entry in re.split(r"[\s:]+", os.environ.get("LD_PRELOAD", "")) if entry]
    known = {*map(os.path.realpath, cached())} if preload else ()
    return {
        "rank": rank.rank,
        "variables": {name: os.environ[name] for name in NAMES if name in os.environ},
        "interfaces": [name for _, name in socket.if_nameindex()],
        "cards": [path.name for path in Path("/sys/class/infiniband").glob("*")],
        "proxied": [
            n for n in ("localhost", "127.0.0.1") if "http" in getproxies_environment() and not proxy_bypass(n)
        ],
        "preload": preload,
        # One of the system changes its place alone, as against a full static TLS (libGLdispatch.so.0 on Jetson).
        "system": [path for path in preload if os.path.realpath(path) in known and not _GPU.match(Path(path).name)],
        "absent": [entry for entry in preload if "/" in entry and not Path(entry).exists()],
        "modules": list(_shadowing_modules(os.environ.get("PYTHONPATH", "").split(os.pathsep))),
        "here": list(_shadowing_modules([os.environ.get("PWD", "")])),
        "cores": len(os.sched_getaffinity(0)),
    }


def _shadowing_modules(places: list[str]) -> Iterator[str]:
    """Yield the files that Python imports instead of its standard library or an installed package."""
    standard = set(getattr(sys, "stdlib_module_names", sys.builtin_module_names))
    before = set()
    for entry in filter(None, places):
        # A module system's torch is on PYTHONPATH alone, and images name their own site-packages: that hides none.
        before.add(os.path.realpath(entry))
        others = [place for place in sys.path if os.path.realpath(place) not in before]
        try:
            names = sorted(Path(entry).iterdir())
        except OSError:
            continue
        for path in names:
            name = path.name.partition(".")[0]
            package = path.is_dir() and (name in PACKAGES or (path / "__init__.py").exists())
            module = (package or path.suffix in (".py", ".pyc", ".so")) and (name in standard or name in PACKAGES)
            # A file of a package's name is no installed package, whatever else there is.
            if module and ((name in PACKAGES and not package) or PathFinder.find_spec(name, others)):
                yield str(path)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Warn of each variable and file that does harm here."""
    entry: Measured = {"absent": [], "interfaces": [], "proxied": [], **(ranks[0] if ranks else {})}
    lists = [entry.get(name) for name in ("preload", "modules", "absent", "interfaces", "proxied")]
    readable = all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in lists)
    cores = entry["cores"] if process_group.counts(entry.get("cores")) else 0
    if not readable or not isinstance(entry.get("variables"), dict) or cores < 1:
        return undecided("the environment was not read", code="environment.unread")
    variables = entry["variables"]
    findings = [*_variables(view, variables, entry.get("cards")), *_threads(variables, cores), *_files(entry)]
    # A list of cores has bound this process when torch loaded its OpenMP; the worker counted before.
    findings += [*_binding(variables, view.environment.get("threads")), *_options(variables)]
    findings += _interfaces(variables, entry["interfaces"], entry.get("cards") or [])
    if entry["proxied"]:
        text = f"HTTP_PROXY catches {' and '.join(entry['proxied'])}: servers of this machine are asked for elsewhere"
        fix = "add localhost,127.0.0.1 to NO_PROXY"
        findings.append(warned(text, fix=fix, code="environment.http-proxy", culprit="HTTP_PROXY"))
    # A script there, `python -c` and a notebook take it first (pytorch/pytorch#39473, #36042); what runs here does not.
    here = [str(path) for path in entry.get("here") or []]
    note = f"; programs started here import {', '.join(here[:3])} before the module of that name" if here else ""
    return worst(findings, passed(f"no variable does harm{note}", value=0, limit=LIMIT))


def _variables(view: View, variables: dict[str, Any], cards: Any) -> Iterator[Outcome]:
    pairs = view.snapshot.signal("gpu.p2p").value
    apart = pairs is not None and not any({pair["read"], pair["write"]} <= {"ok", "unknown"} for pair in pairs)
    googles = any("_CTRL_DEV" in name for name in variables)
    meant = {
        # What forbids what is not here: accelerate insists on it for GeForce 40 (huggingface/accelerate#2195).
        "NCCL_IB_DISABLE": cards == [],
        **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"), apart),
        **{name: googles and str(variables.get(name)).lower() in asked for name, asked in GOOGLES.items()},
    }
    for name, rule in RULES.items():
        value = str(variables.get(name, ""))
        if name not in variables or meant.get(name) or (rule.gpu_only and view.mode != "gpu"):
            continue
        if re.fullmatch(rule.harmful, value, re.IGNORECASE):
            limit = Limit("not set", "", rule.source, "equal")
            yield _warning(name, f"{name}={value}: {rule.why}" if value else f"{name} is set: {rule.why}", value, limit)


def _threads(variables: dict[str, Any], cores: int) -> Iterator[Outcome]:
    """Judge the first number of a list such as "8,2": the threads of the outermost level (OpenMP 5.2, 21.1.2)."""
    for name in THREADS:
        first = str(variables.get(name, "1")).split(",")[0].strip()
        limit = Limit(cores, "threads", "the CPU cores that this process may use", "at most")
        if not first.isdecimal() or int(first) == 0:
            yield _warning(name, f"{name}={first} is not a number of threads", first, limit)
        elif int(first) > cores:
            yield _warning(name, f"{name}={first} with {cores} cores: threads wait for each other", int(first), limit)


def _binding(variables: dict[str, Any], threads: Any) -> Iterator[Outcome]:
    for name in BINDING:
        value = str(variables.get(name, ""))
        bound = len(_bound(name, value))
        if process_group.counts(threads) and 0 < bound < threads:
            limit = Limit(threads, "cores", "gcc.gnu.org/onlinedocs/libgomp; OpenMP 5.2, 21.1.6", "at least")
            yield _warning(name, f"{name}={value} puts {threads} threads on {counted(bound, 'core')}", bound, limit)


def _bound(name: str, value: str) -> set[int]:
    """Return the cores that a list names; none of one that says more: `cores`, repeated, from last to first."""
    listed = re.search(BINDING[name], value)
    text, cores = listed[1] if listed else "", set[int]()
    spans = _SPAN.findall(text)
    downwards = name != "OMP_PLACES" and any(second and int(second) < int(low) for low, second, _ in spans)
    if downwards or _SPAN.sub("", text).strip(" \t,{}"):
        return cores
    for low, second, step in spans:
        first, by = int(low), int(step or 1) or 1
        cores.update(
            range(first, first + int(second or 1) * by if name == "OMP_PLACES" else int(second or low) + 1, by)
        )
    return cores


def _options(variables: dict[str, Any]) -> Iterator[Outcome]:
    """Yield the allocator's options that are one of OPTIONS but for a typing error, at which torch ends."""
    for name in ALLOCATOR:
        for pair in re.sub(r"\[[^\]]*\]", "", str(variables.get(name, ""))).split(","):
            option = pair.partition(":")[0].strip()
            near = difflib.get_close_matches(option, OPTIONS, n=1, cutoff=0.8)
            if near and option not in OPTIONS:
                limit = Limit(near[0], "", _SOURCES["torch"], "equal")
                yield _warning(name, f"{name} has the option {option}, which torch calls {near[0]}", option, limit)


def _interfaces(variables: dict[str, Any], interfaces: list[str], cards: list[str]) -> Iterator[Outcome]:
    # Cards are judged where there are any (llm-d/llm-d-benchmark#1862): an image of a cluster may run elsewhere. Only
    # NCCL's verbs read the list: EFA's cards (rdmap16s27) are libfabric's.
    verbs = variables.get("NCCL_IB_DISABLE") != "1" and str(variables.get("NCCL_NET") or "IB").upper().startswith("IB")
    cards = [card for card in cards if verbs and not card.startswith(("rdmap", "efa"))]
    for name in INTERFACES:
        value, there = str(variables.get(name, "")), cards if name == "NCCL_IB_HCA" else interfaces
        # Only NCCL knows ^ and =: gloo takes each word as a name, and fails if no interface has it (aws-do-eks#51).
        nccl = name.startswith("NCCL")
        listed = value.removeprefix("=") if nccl else value
        wanted = [part.partition(":")[0].strip() for part in listed.split(",") if there and part.strip()]
        begins = nccl and not value.startswith("=")
        none = [p for p in wanted if not any(each == p or (begins and each.startswith(p)) for each in there)]
        if none and not (nccl and (len(none) < len(wanted) or value.startswith("^"))):
            limit = Limit(", ".join(there), "", _SOURCES["nccl"], "equal")
            what = "RDMA card" if name == "NCCL_IB_HCA" else "network interface"
            yield _warning(name, f"{name}={value} names {', '.join(none)}, no {what} of this machine", value, limit)


def _files(entry: Measured) -> Iterator[Outcome]:
    limit = Limit("no file", "", "man ld.so; https://docs.python.org/3/using/cmdline.html#envvar-PYTHONPATH", "equal")
    usual = [*entry["absent"], *(entry.get("system") or [])]
    odd = [path for path in entry["preload"] if path not in usual and not USUAL.fullmatch(path.rpartition("/")[2])]
    for name, text, paths in (
        ("LD_PRELOAD", "LD_PRELOAD names {}, which is not there", entry["absent"]),
        ("LD_PRELOAD", "LD_PRELOAD loads {} into every process", odd),
        ("PYTHONPATH", "PYTHONPATH puts {} before the module of that name", entry["modules"]),
    ):
        for _, (first, *others) in itertools.groupby(paths, os.path.dirname):
            more = f" and {len(others)} more of that directory" if others else ""
            yield _warning(name, text.format(f"{first}{more}"), first, limit)


def _warning(name: str, text: str, value: Any, limit: Limit) -> Outcome:
    fix = f"unset {name}, in the image or in the profile that sets it"
    code = f"environment.{name.lower().replace('_', '-')}"
    return warned(text, fix=fix, value=value, limit=limit, code=code, culprit=name)
