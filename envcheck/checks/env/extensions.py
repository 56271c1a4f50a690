"""An extension with compiled code fits one torch, one CUDA and some GPUs, and says so only when it is used.

Every library is read, and nothing is loaded: the libraries it needs (vllm-project/vllm#44335), the torch symbols it
leaves undefined (Dao-AILab/flash-attention#1832), its GPU code (facebookresearch/xformers#1329), its glibc
(flash-attention#1708), and its METADATA (xformers#1096).
"""

from __future__ import annotations

import platform

from envcheck.binaries.native_library import Library, is_foreign
from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.extensions import installed

CHECK = Check(
    promise="every installed extension fits this torch, CUDA, Python, glibc and GPU, by what its libraries need",
    level="static",
    seconds=1.5,
    cpu_seconds=0.5,
    timeout=300.0,
)
_SHOWN = 5


def measure(rank: Rank) -> Measured:
    """Read the libraries of every installed extension, and compare them with what this environment brings."""
    distributions = installed.distributions()
    extensions = installed.extensions(distributions)
    torch = installed.torch_root()
    version = installed.torch_version(torch, distributions)
    versions = {name: dist.version for name, dist in distributions.items()} | ({"torch": version} if version else {})
    undefined = installed.undefined_symbols(extensions, torch)
    brought = installed.brought_libraries(torch)
    names = {installed.required(line) for extension in extensions for line in extension.requires}
    return {
        "rank": rank.rank,
        "interpreter": installed.interpreter(),
        "glibc": installed.glibc(),
        "torch": version,
        "installed": {name: versions[name] for name in sorted(names) if name in versions},
        "extensions": [_extension(extension, undefined[extension.name], brought) for extension in extensions],
    }


def _extension(extension: installed.InstalledExtension, undefined: set[str], brought: set[str]) -> Measured:
    libraries = [
        _row(library, installed.missing_libraries(extension, library, brought), undefined)
        for library in extension.libraries
    ]
    # A symbol of a library that lacks another library may be that one's: torch's CUDA part, for example.
    counted = {symbol for row in libraries if not row["missing"] for symbol in row["undefined"]}
    return {
        "name": extension.name,
        "version": extension.version,
        "listed": extension.listed,
        "versions": extension.versions,
        "tags": extension.tags,
        "requires": extension.requires,
        "other_python": extension.other_python,
        "unread": extension.unread,
        "undefined": {"count": len(counted), "symbols": sorted(counted)[:_SHOWN]},
        "libraries": libraries,
    }


def _row(library: Library, missing: list[str], undefined: set[str]) -> Measured:
    return {
        "path": library.path,
        "missing": missing,
        "foreign": library.machine if is_foreign(library, platform.machine()) else "",
        "undefined": sorted(undefined.intersection(library.torch_symbols)),
        "glibc": library.glibc,
        "sass": list(library.sass),
        "ptx": list(library.ptx),
    }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on each extension that cannot work here, naming the library or symbol and the release that fits."""
    # Facts and version rules are for envcheck's own process; `measure` runs in the environment's Python.
    from envcheck.checks import installed_judge

    return installed_judge.judge(view, ranks)
