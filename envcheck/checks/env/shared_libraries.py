"""The loader takes the first library of a name, wherever that is, and torch was built against one of them.

A NumPy of another ABI than torch's lets it be imported, and every exchange of an array raises (pytorch/pytorch#132179).
Where torch cannot be imported, the cause is judged from what the worker tried then (runner/worker/torch_facts.py):
another libtorch or NCCL first on LD_LIBRARY_PATH (pytorch/pytorch#62650, #119072), NCCL's packages of two CUDAs in one
directory (pytorch/pytorch#186591).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.extensions.installed import cached
from envcheck.checks.support import process_group
from envcheck.counting import counted

CHECK = checks.Check(
    promise="every library of torch resolves, none is there twice, and libcuda is no stub",
    level="static",
    seconds=1.0,
    cpu_seconds=0.2,
    timeout=60.0,
)

LIMIT = checks.Limit(0, "libraries", "ld.so(8): the first library of a name is taken", "equal")
COMPANIONS = ("torchvision", "torchaudio")
TWICE = re.compile(r"^((lib(?:cublas|cublasLt|cudnn\w*|nccl|cusparse|cufft|cusolver))\.so(?:\.\d+)?)")
# Debian's python3-torch links to libraries of Caffe2 that it does not ship (seen: 1.13.1+dfsg-4).
DISTRIBUTION = "/usr/lib/python3/dist-packages/"
# Brought by the driver: an image on a build machine has none.
DRIVER = ("libcuda.so", "libnvidia-ml.so")
_STUB_LIBRARY = 34  # cuda.h: CUDA_ERROR_STUB_LIBRARY. A copy of the stub has a path of its own and says so
_FOR_CUDA = re.compile(r"(nvidia-.+)-cu\d\d")
_REINSTALL = "install that package again (pip install --force-reinstall --no-deps NAME==VERSION), or build anew"
_BROKEN = "torch is there but broken: install it again, or give --python another; the JSON has the log"
_NUMPY = "install the NumPy that this torch was built for: numpy<2 for torch before 2.3, else NumPy anew"
# Messages of the loader and of Python for a failed import, each with its fix. Reinstalling torch helps none of them.
_KNOWN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_NO_FILE = re.compile(r"^(\S+): cannot open shared object file")


def measure(rank: Rank) -> Measured:
    """Load every library of torch and its companions, then say what failed and what is there more than once."""
    try:
        import torch
    except Exception:
        if importlib.util.find_spec("torch") is None:
            raise
        return {"rank": rank.rank}  # the worker has tried more, before any check

    libraries = sorted((Path(torch.__file__).parent / "lib").glob("lib*.so*"))
    for name in COMPANIONS:
        spec = importlib.util.find_spec(name)
        libraries += sorted(Path(spec.origin).parent.glob("*.so")) if spec and spec.origin else []
    libraries = [path for path in libraries if not of_distribution(path)]
    broken = {path.name: why for path in libraries if (why := _load(path))}
    known, site = cached(), Path(torch.__file__).parents[1]
    preferred = [*_on_path("lib*.so*"), *re.split(r"[ :]+", os.environ.get("LD_PRELOAD", "").strip())]
    mapped = _mapped()
    return {
        "rank": rank.rank,
        "tried": len(libraries),
        "broken": broken,
        "numpy": _numpy(torch),
        "loaded_twice": {name: paths for name, paths in _by_name(mapped).items() if len(paths) > 1},
        "beside": _beside(site, [*known, *map(str, Path(sys.prefix, "lib").glob("lib*.so*"))]),
        "taken": [*_beside(site, [*mapped, *preferred]), *_parts(site, [*known, *preferred])],
        "stubs": sorted({path for path in [*known, *_on_path()] if "/stubs/" in path and "/libcuda.so" in path}),
    }


def of_distribution(path: Path) -> bool:
    """Return whether a path is a link without a target that Debian's own package left: it holds no library."""
    return str(path).startswith(DISTRIBUTION) and path.is_symlink() and not path.exists()


def _load(path: Path) -> str | None:
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
    except OSError as error:
        return str(error)
    return None


def _numpy(torch: Any) -> str:
    """Return why torch and NumPy exchange no array; "" where they do, or NumPy is not installed."""
    if importlib.util.find_spec("numpy") is None:
        return ""
    try:
        array = importlib.import_module("numpy").arange(3)
        same = torch.from_numpy(array).numpy().tolist() == [0, 1, 2]
    except Exception as error:  # noqa: BLE001 (a NumPy of another ABI raises anything)
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return "" if same else "another array comes back"


def _mapped() -> list[str]:
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if ".so" in line and line.count("/")]


def _by_name(paths: Iterable[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for path in sorted({os.path.realpath(path) for path in paths}):
        match = TWICE.match(Path(path).name)
        if match:
            names.setdefault(match[2], []).append(path)
    return names


def _beside(site: Path, named: Iterable[str]) -> list[str]:
    """Return those of the named libraries that torch's packages in `site` bring too, and that are not theirs."""
    own = [path for directory in ("torch/lib", "nvidia/*/lib") for path in site.glob(f"{directory}/lib*")]
    brought = {match[1] for path in own if (match := TWICE.match(path.name))}
    theirs = set(map(os.path.realpath, own))
    matches = ((path, TWICE.match(Path(path).name)) for path in named)
    alike = {path for path, match in matches if match and match[1] in brought and not path.startswith(f"{site}/")}
    return sorted(path for path in alike if os.path.realpath(path) not in theirs)


def _parts(site: Path, named: Iterable[str]) -> list[str]:
    """Return parts of cuDNN that the wheel's own opens by name and does not bring (pytorch/pytorch#188892, #185512)."""
    own = {path.name.partition(".so")[0]: path for path in site.glob("nvidia/*/lib/libcudnn*.so*")}
    opened = own["libcudnn_graph"].read_bytes() if "libcudnn_graph" in own else b""
    matches = ((path, TWICE.match(Path(path).name)) for path in named)
    return sorted({path for path, match in matches if match and match[2] not in own and match[2].encode() in opened})


def _on_path(name: str = "libcuda.so*") -> list[str]:
    directories = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    found = [path for directory in directories for path in Path(directory).glob(name)]
    return [*{re.sub(r"(\.so\.\d+).*", r"\1", path.name): str(path) for path in reversed(found)}.values()]


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on what does not load, is loaded twice or is a stub; warn on a copy that is taken for the wheel's own."""
    if view.environment.get("import_trials"):
        return blamed(view.environment) or unimportable(view.environment)
    if not view.environment.get("torch"):
        return skipped(f"no torch to look into: {view.environment.get('error', 'none was asked')}", code="torch.none")
    entry = ranks[0] if ranks else {}
    if not process_group.counts(entry.get("tried")) or not entry["tried"] or not isinstance(entry.get("broken"), dict):
        return undecided("no library of torch was looked at", code="libraries.unmeasured")
    loaded = view.snapshot.gpus and view.environment.get("cuinit") == _STUB_LIBRARY and view.environment.get("libcuda")
    stubs = entry.get("stubs") or ([loaded] if loaded else [])
    fix, about = "take the stubs directory out of LD_LIBRARY_PATH and ld.so.conf; it is for linking only", len(stubs)
    of_stubs = [_finding(failed, f"a stub libcuda: {path}", fix, about, "libraries.stub", path) for path in stubs]
    findings = [*_broken(entry), *of_stubs, *_twice(entry)]
    if entry.get("numpy"):
        text = f"torch and NumPy exchange no array: {entry['numpy']}"
        findings.append(_finding(failed, text, _NUMPY, 1, "libraries.numpy", "numpy"))
    if view.environment.get("cuda"):
        findings += [*_mixed(view.environment.get("packages") or {}), *_elsewhere(entry)]
    unused = entry.get("beside") or []
    note = f"; {counted(len(unused), 'copy', 'copies')} elsewhere that nothing loads" if unused else ""
    return worst(findings, otherwise=passed(f"{entry['tried']} libraries load, none twice{note}", value=0, limit=LIMIT))


def blamed(environment: Mapping[str, Any]) -> Outcome | None:
    """Return a failure with all that can be blamed for a torch that cannot be imported; None where nothing can."""
    trials = environment.get("import_trials")
    if not environment.get("error") or not isinstance(trials, dict):
        return None
    lists = {name: [*map(str, lines)] for name, lines in trials.items() if isinstance(lines, list)}
    findings = [*_files(lists), *_variables(lists), *_mixed(environment.get("packages") or {}, failed)]
    return worst(findings, findings[0]) if findings else None


def import_error(environment: Mapping[str, Any]) -> str:
    """Return why torch is not there, with the library that the loader was in where a signal ended the import."""
    trials = environment.get("import_trials")
    last = trials.get("last") if isinstance(trials, dict) else None
    return f"{environment['error']}{f', in {last}' if last else ''}"


def unimportable(environment: Mapping[str, Any]) -> Outcome:
    """Return the outcome of all that needs torch where it cannot be imported, with what mends it, as far as known."""
    matches = ((re.search(pattern, str(environment["error"])), fix) for pattern, fix, _ in _KNOWN)
    known, cause = next((match.expand(fix) for match, fix in matches if match), _BROKEN), blamed(environment)
    text, fix = f"torch cannot be imported: {import_error(environment)}", cause.remedy if cause else known
    return undecided(text, fix=fix, code="torch.import", unimportable="torch")


def _files(trials: Mapping[str, list[str]]) -> Iterator[Outcome]:
    for line in trials.get("unlike", []):
        path, text = line.rpartition(": ")[0], f"torch cannot be imported: {line}"
        yield failed(text, fix=_REINSTALL, code="torch.library-size", culprit=path)


def _variables(trials: Mapping[str, list[str]]) -> Iterator[Outcome]:
    for name in trials.get("works_without", []):
        taken = trials.get("modules" if name == "PYTHONPATH" else "taken", [])
        text = f"torch is imported without {name}, and not with it{': ' if taken else ''}{'; '.join(taken[:3])}"
        fix = f"unset {name}, in the image or in the profile that sets it, or take that directory out of it"
        if name == "LC_ALL":
            text, fix = "torch is imported with LC_ALL=C.UTF-8, and not as it is", "set LC_ALL=C.UTF-8"
        yield failed(text, fix=fix, code="torch.import-variable", culprit=name)


def _broken(entry: Measured) -> list[Outcome]:
    drivers = {
        why for why in entry["broken"].values() if (match := _NO_FILE.match(why)) and match[1].startswith(DRIVER)
    }
    broken = {name: why for name, why in entry["broken"].items() if why not in drivers}
    fix = "reinstall torch with the very packages it names (the lock has them); remove nothing from site-packages"
    text, about = f"{len(broken)} of {entry['tried']} libraries do not load", (len(broken), "libraries.broken")
    return [
        _finding(failed, f"{text}, {name}: {why}", fix, *about, name, broken=broken) for name, why in broken.items()
    ]


def _twice(entry: Measured) -> list[Outcome]:
    twice = entry.get("loaded_twice") or {}
    fix, about = "remove one of them: the wheel's own is the one torch was built with", (len(twice), "libraries.twice")
    return [
        _finding(failed, f"{name} is loaded twice: {', '.join(paths)}", fix, *about, name, twice=twice)
        for name, paths in twice.items()
    ]


def _mixed(packages: Mapping[str, str], judged: Callable[..., Outcome] = warned) -> list[Outcome]:
    """Tell of NVIDIA's packages of one library for several CUDAs: they install into one directory."""
    groups: dict[str, list[str]] = {}
    for name in sorted(packages):
        if match := _FOR_CUDA.fullmatch(name):
            groups.setdefault(match[1], []).append(name)
    over = [names for names in groups.values() if len(names) > 1]
    fix, about = "uninstall both, then install the one that torch names", (len(over), "libraries.overwritten")
    return [
        _finding(
            judged, f"{' and '.join(names)} put the same files in one place", fix, *about, names[0], overwritten=over
        )
        for names in over
    ]


def _elsewhere(entry: Measured) -> list[Outcome]:
    # A report from before copies were told from what is taken cannot say that they are not.
    taken = entry.get("taken", entry.get("beside"))
    if not isinstance(taken, list):
        return [undecided("it is not known which libraries are taken", code="libraries.unmeasured")]
    fix = "uninstall it, or take its directory out of LD_LIBRARY_PATH, LD_PRELOAD or ld.so.conf: wheels bring theirs"
    summary = f"{', '.join(taken[:3])} is taken for the wheel's own"
    return [_finding(warned, summary, fix, len(taken), "libraries.beside", taken[0], taken=taken)] if taken else []


def _finding(
    judged: Callable[..., Outcome], summary: str, fix: str, count: int, code: str, culprit: str, **details: Any
) -> Outcome:
    return judged(summary, fix=fix, value=count, limit=LIMIT, code=code, culprit=culprit, **details)
