"""What a store releases: its contents, each with hashes, and the tree of files that any server can serve of them.

simple/<project>/      index.html (PEP 503, 658)
whl/<variant>/…        the same for the wheels of PyTorch's own index
files/<hash>/<name>    the wheels and their .metadata
hf/…                   files and API pages for huggingface_hub, which also needs the headers in headers.json
nginx/                 configuration for nginx, which sets these headers
"""

import contextlib
import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email.parser import BytesHeaderParser
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from packaging.utils import parse_wheel_filename

from envcheck.data import rendered
from envcheck.errors import PromiseError, refuse
from envcheck.mirrors.hub import HubFile, Revision, format_lock, parse_lock
from envcheck.mirrors.index import NAME_MAX, parse_file_name
from envcheck.mirrors.store.objects import Store

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_INDEX: Final = re.compile(r"pypi|pytorch/(?:cpu|cu[0-9]{3})")
# A branch is one step of a path. Clients escape a slash in it, so such a branch is published by its commit alone.
BRANCH: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Bytes of a wheel's name: with `.metadata` appended, it must still fit in a file name (NAME_MAX).
_LONGEST_NAME: Final = NAME_MAX - len(".metadata")
_METADATA: Final = re.compile(r"[^/]+\.dist-info/METADATA")
# Bytes. The longest known descriptions have a few hundred KB.
_LARGEST: Final = 16 << 20


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One wheel: its file name, the index that its lock names, and the sha256 of its METADATA. `size` in bytes."""

    name: str
    sha256: str
    size: int
    index: str = "pypi"
    metadata: str | None = None
    requires_python: str | None = None

    @property
    def project(self) -> str:
        """Return the project's normalised name (PEP 503)."""
        return parse_wheel_filename(self.name)[0]

    @property
    def version(self) -> str:
        """Return the wheel's version."""
        return str(parse_wheel_filename(self.name)[1])


class Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is published. `branches` maps the branch of a repository, "OWNER/NAME@main", to its commit."""

    schema: str = "envcheck/contents/1"
    wheels: list[Wheel] = []
    models: list[Revision] = []
    branches: dict[str, str] = {}


def merge(old: Contents, new: Contents) -> Contents:
    """Return both contents; for a file, repository or branch that is in both, the entry of `new`."""
    wheels = {(wheel.index, wheel.name, wheel.sha256): wheel for wheel in [*old.wheels, *new.wheels]}
    models = {(model.kind, model.repo, model.revision): model for model in [*old.models, *new.models]}
    return Contents(
        wheels=[wheels[key] for key in sorted(wheels)],
        models=[models[key] for key in sorted(models)],
        branches=dict(sorted({**old.branches, **new.branches}.items())),
    )


def object_sizes(contents: Contents) -> dict[str, int | None]:
    """Map the sha256 of each object that the store must have to its size in bytes, None if unknown."""
    wheels: dict[str, int | None] = {wheel.sha256: wheel.size for wheel in contents.wheels}
    about_them: dict[str, int | None] = {wheel.metadata: None for wheel in contents.wheels if wheel.metadata}
    models = {str(file.sha256): file.size for model in contents.models for file in model.files}
    return dict(sorted({**about_them, **models, **wheels}.items()))


def parse_contents(data: bytes, where: str) -> Contents:
    """Return the contents in `data`, which is not trusted; `where` names its source in errors.

    Raises ConfigError if it is invalid or has a name that could lead outside the tree.
    """
    try:
        contents = msgspec.json.decode(data, type=Contents)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        refuse(f"{where}: not a valid list of contents: {error}", "export it again with `envcheck store export`")
    for wrong in _problems(contents):
        refuse(f"{where}: {wrong}", "export it again with `envcheck store export`")
    return contents


def _problems(contents: Contents) -> Iterator[str]:
    if contents.schema != "envcheck/contents/1":
        yield f"{contents.schema!r} is an unknown schema"
    for wheel in contents.wheels:
        if not _is_publishable(wheel):
            yield f"{wheel.name!r} is not a valid wheel"
    for model in contents.models:
        parse_lock(format_lock(model), model.repo)
    present = {(model.repo, model.revision) for model in contents.models}
    for branch, commit in contents.branches.items():
        repo, _, name = branch.partition("@")
        if (repo, commit) not in present or not BRANCH.fullmatch(name):
            yield f"the branch {branch!r} belongs to no repository in it"


def _is_publishable(wheel: Wheel) -> bool:
    if len(wheel.name.encode("utf-8", "replace")) > _LONGEST_NAME:
        return False
    try:
        parse_file_name(wheel.name)
    except ValueError:
        return False
    hashes = [wheel.sha256, *([wheel.metadata] if wheel.metadata else [])]
    plain_name = "/" not in wheel.name and wheel.name.isascii() and wheel.name.isprintable()
    return (
        plain_name and wheel.size >= 0 and bool(_INDEX.fullmatch(wheel.index)) and all(map(_SHA256.fullmatch, hashes))
    )


def describe_wheel(store: Store, sha256: str, name: str, index: str) -> Wheel:
    """Return the wheel as it is published, and store its METADATA as an object of its own."""
    path = store.path(sha256)
    metadata = _read_metadata(path, name)
    requires = BytesHeaderParser().parsebytes(metadata)["Requires-Python"]
    return Wheel(
        name=name,
        sha256=sha256,
        size=path.stat().st_size,
        index=index,
        metadata=store.add(metadata, f"{name}.metadata"),
        requires_python=str(requires) if requires else None,
    )


def _read_metadata(path: Path, name: str) -> bytes:
    with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if _METADATA.fullmatch(member.filename)]
        if len(members) == 1 and members[0].file_size <= _LARGEST:
            return archive.read(members[0])
    message = f"{name} is not a wheel: it has no METADATA"
    raise PromiseError(message, fix="the lock names this file: lock the cell again")


_HEADERS: Final = {
    "ETag": "etag",
    "X-Repo-Commit": "commit",
    "X-Linked-Etag": "linked_etag",
    "X-Linked-Size": "linked_size",
}


class TreeFiles(NamedTuple):
    """The files of a tree: `objects` maps paths to hashes in the store, `pages` maps paths to generated bytes."""

    objects: dict[str, str]
    pages: dict[str, bytes]


def tree_files(contents: Contents) -> TreeFiles:
    """Return the tree of these contents. Equal contents give equal bytes."""
    objects: dict[str, str] = {}
    for wheel in contents.wheels:
        path = f"files/{wheel.sha256}/{wheel.name}"
        objects |= {path: wheel.sha256, **({f"{path}.metadata": wheel.metadata} if wheel.metadata else {})}
    pages = _index_pages(contents.wheels)
    headers: dict[str, dict[str, str]] = {}
    for model in contents.models:
        named = [name.partition("@")[::2] for name, commit in contents.branches.items() if commit == model.revision]
        revisions = [model.revision, *(branch for repo, branch in named if repo == model.repo)]
        objects |= {_resolve_path(model, rev, file.path): str(file.sha256) for rev in revisions for file in model.files}
        pages |= {path: page for rev in revisions for path, page in _api_pages(model, rev).items()}
        headers |= {_resolve_path(model, rev, f.path): _headers(model, f) for rev in revisions for f in model.files}
    pages["headers.json"] = _json({"schema": "envcheck/headers/1", "headers": dict(sorted(headers.items()))})
    pages |= _nginx_files(headers)
    return TreeFiles(dict(sorted(objects.items())), dict(sorted(pages.items())))


def _nginx_files(headers: Mapping[str, Mapping[str, str]]) -> dict[str, bytes]:
    """Return the files that an nginx configuration includes to serve the tree; each begins with where to include it.

    `headers` maps the path of each model file to the headers of its response. The including server sets `root`.
    """
    rows = {path.removeprefix("hf"): of_file for path, of_file in sorted(headers.items())}
    by_name = {
        short: {_quoted(path): _quoted(of_file[name]) for path, of_file in rows.items()}
        for name, short in _HEADERS.items()
    }
    context = {"headers": _HEADERS, "variables": by_name}
    pages = {name: rendered(f"site/tree_{name}.conf.j2", context) for name in ("maps", "packages", "models")}
    pages["variables"] = rendered("site/tree_variables.conf.j2", context)
    # With this mark, a server of a changing tree can tell whether these headers belong to the current files.
    mark = hashlib.sha256(pages["variables"].encode()).hexdigest()[:16]
    pages["variables"] += f'map "" $envcheck_mark {{ default "{mark}"; }}\n'
    pages["maps"] += pages["variables"]
    return {**{f"nginx/{name}.conf": text.encode() for name, text in pages.items()}, f"nginx/{mark}": b""}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _index_pages(wheels: Iterable[Wheel]) -> dict[str, bytes]:
    pages: dict[str, bytes] = {}
    ordered = sorted(wheels, key=lambda wheel: (_index_root(wheel), wheel.project, wheel.name, wheel.sha256))
    for root, of_index in groupby(ordered, key=_index_root):
        projects = {project: list(files) for project, files in groupby(of_index, key=lambda wheel: wheel.project)}
        context = {"title": "Simple index", "projects": projects, "wheels": [], "up": "../" * (root.count("/") + 2)}
        pages[f"{root}/index.html"] = rendered("site/tree_index.html.j2", context).encode()
        for project, files in projects.items():
            page = {**context, "title": project, "projects": [], "wheels": files}
            pages[f"{root}/{project}/index.html"] = rendered("site/tree_index.html.j2", page).encode()
    return pages


def _index_root(wheel: Wheel) -> str:
    return "simple" if wheel.index == "pypi" else f"whl/{wheel.index.partition('/')[2]}"


def _resolve_path(model: Revision, revision: str, path: str) -> str:
    return f"hf/{'datasets/' if model.kind == 'dataset' else ''}{model.repo}/resolve/{revision}/{path}"


def _headers(model: Revision, file: HubFile) -> dict[str, str]:
    tag = f'"{file.blob}"'
    return {"ETag": tag, "X-Repo-Commit": model.revision, "X-Linked-Etag": tag, "X-Linked-Size": str(file.size)}


def _api_pages(model: Revision, revision: str) -> dict[str, bytes]:
    at = f"hf/api/{model.kind}s/{model.repo}"
    siblings = [{"rfilename": file.path} for file in model.files]
    info = {"id": model.repo, "sha": model.revision, "private": False, "gated": False, "siblings": siblings}
    if model.kind == "model":
        info["modelId"] = model.repo
    rows: list[dict[str, Any]] = []
    for file in model.files:
        rows.append({"type": "file", "oid": file.sha1 or file.sha256, "size": file.size, "path": file.path})
        if not file.sha1:
            rows[-1]["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
    pages = {f"{at}/revision/{revision}": _json(info), f"{at}/tree/{revision}": _json(rows)}
    return {**pages, **({f"{at}/index.json": _json(info)} if revision == "main" else {})}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
