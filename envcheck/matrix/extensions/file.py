"""extensions.yaml: the releases of native extensions, what their wheels bind to; its types, and how it is read.

Versions are strings. A row names its sources, as in matrix.yaml; what one weak source says is `verified: false`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envcheck.errors import refuse
from envcheck.matrix.facts.model import Dotted, Fact, HostArch, MatrixRow, Variant
from envcheck.matrix.file.load import cached, refuse_duplicates, typed
from envcheck.safe_files import read_whole

SHIPPED: Final = Path(__file__).with_name("extensions.yaml")


Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Major = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]
Tag = Annotated[str, msgspec.Meta(pattern=r"^(py|cp)[0-9]+-(none|abi3|cp[0-9]+[mt]?)$")]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]

# Who serves a wheel: the Python index, a PyTorch index, the project's own releases, or another author.
Channel = Literal["pypi", "pytorch", "project", "third-party"]
# What the libraries need of libtorch: nothing, its stable ABI, or C++ symbols; "mixed" has libraries of both kinds.
Abi = Literal["none", "stable", "c++", "mixed"]


class ExtensionWheel(Fact, frozen=True, kw_only=True):
    """The wheels of a release for one host arch at one place, which differ in their Python tag and torch minor only.

    `file` is the file name, in which "{tag}", "{torch}" and "{abi}" stand for the Python tag, the torch minor and TRUE
    or FALSE; None when it is not known. `where` is the URL of the directory or index; None for the Python index.
    `variants` are the PyTorch variants whose directory has it, or that the local version names; empty: any.
    `torch` are the torch minors in the file name; empty where it names none. `built_for` is the requirement that a
    torch must meet, where METADATA does not say it. `cxx11abi` are the C++ string ABIs that there is a wheel for.

    `abi`, `cuda` (majors of the CUDA libraries that DT_NEEDED names), `sass` and `ptx` (the union over the libraries)
    are None where nobody read them: such a wheel never counts as fitting. `code_verified` is false where they were not
    read off the wheel's own libraries. `cuda_choices` says that there is one library for each major, and one suffices.
    """

    channel: Channel
    where: str | None = None
    file: str | None = None
    sha256: dict[str, Sha256] = {}
    arch: HostArch | Literal["any"]
    tags: Annotated[list[Tag], msgspec.Meta(min_length=1)]
    glibc: Dotted | None = None
    size_mb: int | None = None
    variants: list[Variant] = []
    torch: list[Dotted] = []
    built_for: str | None = None
    built_for_verified: bool = True
    cxx11abi: list[bool] = []
    abi: Abi | None = None
    cuda: list[Major] | None = None
    cuda_choices: bool = False
    sass: list[Dotted] | None = None
    ptx: list[Dotted] = []
    code_verified: bool = True


class SourceBuild(Fact, frozen=True, kw_only=True):
    """The source of a release: what a build needs and takes. `where` is None for an sdist on the Python index.

    `torch` is the requirement that a torch must meet for the build to succeed; None where none is known.
    `sass` is what it builds without TORCH_CUDA_ARCH_LIST, as far as nvcc knows it. `cpu`: it also builds without CUDA.
    """

    where: str | None = None
    torch: str | None = None
    needs: str
    takes: str | None = None
    sass: list[Dotted] = []
    cpu: bool = False


class ExtensionRelease(Fact, frozen=True, kw_only=True):
    """A release. `requires` is its Requires-Dist for Linux without extras: name -> specifier ("" for any).

    `jit` says what it compiles at first use and what that needs; None where it compiles nothing.
    """

    version: str
    requires_python: str | None = None
    requires: dict[Name, str] = {}
    jit: str | None = None
    built_from: SourceBuild | None = None
    wheels: list[ExtensionWheel] = []


class Extension(Fact, frozen=True, kw_only=True):
    """A project with native code. `modules` are its native modules, `smallest_op` is the smallest call that proves it.

    `instead` names other sources of the same GPU code, nearest first. `aliases` are its older names.
    """

    name: Name
    aliases: list[Name] = []
    modules: list[str] = []
    smallest_op: str | None = None
    instead: list[str] = []
    releases: list[ExtensionRelease] = []


class Extensions(MatrixRow, frozen=True, kw_only=True):
    """The whole extensions.yaml."""

    schema: Literal["envcheck/extensions/1"]
    sources: dict[str, str]
    extensions: list[Extension]

    def find(self, name: str) -> Extension | None:
        """Return the extension called `name` (normalized as PEP 503 says), by its name or an older one; or None."""
        return next((row for row in self.extensions if name == row.name or name in row.aliases), None)


def load(path: Path | None = None) -> Extensions:
    """Return the extensions in `path`, or the shipped ones. Raises ConfigError, for versions that are none too."""
    name = str(path) if path else SHIPPED.name
    try:
        raw = read_whole(path or SHIPPED)
    except OSError as error:
        refuse(f"{name}: {error.strerror or 'cannot be read'}", "give a readable file with --extensions")
    if path is None:
        return cached(raw, Extensions, [__file__], lambda: loads(raw, name))
    extensions = loads(raw, name)
    for row in extensions.extensions:  # no test has linted them
        for release in row.releases:
            for problem in unreadable(release):
                refuse(
                    f"{name}: {row.name} {release.version}: {problem}", "write versions and specifiers as METADATA does"
                )
    return extensions


def loads(raw: bytes, name: str = SHIPPED.name) -> Extensions:
    """Return the extensions in the YAML text `raw`. `name` is what errors call the file. Raises ConfigError."""
    extensions, document = typed(raw, name, Extensions, SHIPPED.name)
    names = [other for row in extensions.extensions for other in (row.name, *row.aliases)]
    refuse_duplicates(document, "$.extensions", names)
    for at, row in enumerate(extensions.extensions):
        refuse_duplicates(document, f"$.extensions[{at}].releases", (release.version for release in row.releases))
    return extensions


def merged(shipped: Extensions, own: Extensions) -> Extensions:
    """Return the shipped facts with a site's own: its releases come beside those shipped, or replace them."""
    rows = {row.name: row for row in shipped.extensions}
    for row in own.extensions:
        releases = {release.version: release for each in (rows.get(row.name, row), row) for release in each.releases}
        rows[row.name] = msgspec.structs.replace(row, releases=[*releases.values()])
    return msgspec.structs.replace(shipped, sources=shipped.sources | own.sources, extensions=[*rows.values()])


def unreadable(release: ExtensionRelease) -> Iterator[str]:
    """Yield each version and specifier of a release that is none: no question about it has an answer."""
    try:
        Version(release.version)
    except InvalidVersion:
        yield f"{release.version} is not a version (PEP 440)"
    specifiers = {"requires_python": release.requires_python or "", **release.requires}
    specifiers |= {f"wheels[{at}].built_for": wheel.built_for or "" for at, wheel in enumerate(release.wheels)}
    specifiers |= {"built_from.torch": (release.built_from.torch if release.built_from else None) or ""}
    for name, specifier in specifiers.items():
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:  # noqa: PERF203 (specifiers are few)
            yield f"{name}: {specifier!r} is not a version specifier (PEP 440)"
