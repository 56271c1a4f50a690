"""A tree that any file server can serve to pip, uv and huggingface_hub; pure: contents in, paths and pages out.

simple/<project>/      index.html (PEP 503, 658), index.json (PEP 691, 700) for whoever asks for JSON
whl/<variant>/…        the same for what PyTorch's own index serves
files/<hash>/<name>    the wheels and their .metadata
hf/…                   what huggingface_hub asks an endpoint for; it needs the headers of headers.json too
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from envcheck.mirrors.hub.revision import HubFile, Revision
from envcheck.mirrors.store.manifest import Contents, Wheel

JSON: Final = "application/vnd.pypi.simple.v1+json"

_HEADERS: Final = {
    "ETag": "etag",
    "X-Repo-Commit": "commit",
    "X-Linked-Etag": "linked_etag",
    "X-Linked-Size": "linked_size",
}


class TreeFiles(NamedTuple):
    """`objects` map paths to hashes of the store, `pages` map paths to what is written anew."""

    objects: dict[str, str]
    pages: dict[str, bytes]


def tree_files(contents: Contents) -> TreeFiles:
    """Return the tree of these contents: the same bytes for the same contents."""
    objects = {path: digest for wheel in contents.wheels for path, digest in _wheel_paths(wheel).items()}
    pages = _index_pages(contents.wheels)
    headers: dict[str, dict[str, str]] = {}
    for model in contents.models:
        revisions = [model.revision, *_branches(model, contents.branches)]
        objects |= {_resolve_path(model, rev, file.path): str(file.sha256) for rev in revisions for file in model.files}
        pages |= {path: page for rev in revisions for path, page in _api_pages(model, rev).items()}
        headers |= {_resolve_path(model, rev, f.path): _headers(model, f) for rev in revisions for f in model.files}
    pages["headers.json"] = _json({"schema": "envcheck/headers/1", "headers": dict(sorted(headers.items()))})
    pages |= nginx_files(headers)
    return TreeFiles(dict(sorted(objects.items())), dict(sorted(pages.items())))


def nginx_files(headers: Mapping[str, Mapping[str, str]]) -> dict[str, bytes]:
    """Return what nginx includes to serve the tree; each file says where. `root` is for the including server to set."""
    rows = {path.removeprefix("hf"): told for path, told in sorted(headers.items())}
    maps = [
        "# Included in `http`, beside a server with `root TREE` that includes packages.conf, and one with",
        "# `root TREE/hf` that includes models.conf: what HF_ENDPOINT names.",
        "map_hash_max_size 65536;",
        "map_hash_bucket_size 4096;",
    ]
    variables = [
        "# Included in `http` by a mirror site, which has hash sizes of its own.",
        f'map $http_accept $envcheck_page {{ default "index.html"; "~{_escaped(JSON)}" "index.json"; }}',
    ]
    for name, short in _HEADERS.items():
        values = [f"  {_quoted(path)} {_quoted(told[name])};" for path, told in rows.items()]
        variables += [f"map $uri $envcheck_{short} {{", '  default "";', *values, "}"]
    packages = [
        "location ~ ^/(simple|whl)/(.*/)?$ {",
        f"  types {{ text/html html; {JSON} json; }}",
        "  add_header Vary Accept;",
        "  try_files $uri$envcheck_page =404;",
        "}",
        "location /files/ { types { } default_type application/octet-stream; }",
    ]
    models = [
        "location /api/ { types { } default_type application/json; try_files $uri $uri/index.json =404; }",
        "location / {",
        "  types { } default_type application/octet-stream; etag off;",
        *(f"  add_header {name} $envcheck_{short};" for name, short in _HEADERS.items()),
        "}",
    ]
    # Who serves a tree that changes can tell whether these headers are those of the files that are there now.
    mark = hashlib.sha256("\n".join(variables).encode()).hexdigest()[:16]
    variables.append(f'map "" $envcheck_mark {{ default "{mark}"; }}')
    files = {"maps": [*maps, *variables[1:]], "variables": variables, "packages": packages, "models": models}
    told = {f"nginx/{name}.conf": "\n".join([*lines, ""]).encode() for name, lines in files.items()}
    return {**told, f"nginx/{mark}": b""}


def _escaped(text: str) -> str:
    return text.replace(".", r"\.").replace("+", r"\+")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wheel_paths(wheel: Wheel) -> dict[str, str]:
    path = f"files/{wheel.sha256}/{wheel.name}"
    return {path: wheel.sha256, **({f"{path}.metadata": wheel.metadata} if wheel.metadata else {})}


def _index_pages(wheels: Iterable[Wheel]) -> dict[str, bytes]:
    pages: dict[str, bytes] = {}
    for root, of_index in groupby(sorted(wheels, key=_sort_key), key=_index_root):
        projects = {project: list(files) for project, files in groupby(of_index, key=lambda wheel: wheel.project)}
        up = "../" * (root.count("/") + 2)
        for project, files in projects.items():
            pages[f"{root}/{project}/index.html"] = _html(project, [_anchor(wheel, up) for wheel in files])
            pages[f"{root}/{project}/index.json"] = _project_json(project, files, up)
        pages[f"{root}/index.html"] = _html("Simple index", [f'<a href="{name}/">{name}</a>' for name in projects])
        project_rows = [{"name": name} for name in projects]
        pages[f"{root}/index.json"] = _json({"meta": {"api-version": "1.1"}, "projects": project_rows})
    return pages


def _index_root(wheel: Wheel) -> str:
    return "simple" if wheel.index == "pypi" else f"whl/{wheel.index.partition('/')[2]}"


def _sort_key(wheel: Wheel) -> tuple[str, str, str, str]:
    return _index_root(wheel), wheel.project, wheel.name, wheel.sha256


def _html(title: str, links: Iterable[str]) -> bytes:
    body = "<br>\n".join(links)
    head = f'<meta charset="utf-8"><meta name="pypi:repository-version" content="1.1"><title>{title}</title>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}\n</body></html>\n".encode()


def _anchor(wheel: Wheel, up: str) -> str:
    attrs = {"href": f"{_href(wheel, up)}#sha256={wheel.sha256}"}
    if wheel.requires_python:
        attrs["data-requires-python"] = wheel.requires_python
    if wheel.metadata:
        attrs["data-core-metadata"] = attrs["data-dist-info-metadata"] = f"sha256={wheel.metadata}"
    attributes = " ".join(f'{name}="{html.escape(value)}"' for name, value in attrs.items())
    return f"<a {attributes}>{html.escape(wheel.name)}</a>"


def _href(wheel: Wheel, up: str) -> str:
    return f"{up}files/{wheel.sha256}/{quote(wheel.name)}"


def _project_json(project: str, wheels: list[Wheel], up: str) -> bytes:
    versions = sorted({wheel.version for wheel in wheels})
    files = [_file_json(wheel, up) for wheel in wheels]
    return _json({"meta": {"api-version": "1.1"}, "name": project, "versions": versions, "files": files})


def _file_json(wheel: Wheel, up: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "filename": wheel.name,
        "url": _href(wheel, up),
        "hashes": {"sha256": wheel.sha256},
        "size": wheel.size,
    }
    if wheel.requires_python:
        row["requires-python"] = wheel.requires_python
    if wheel.metadata:
        row["core-metadata"] = row["dist-info-metadata"] = {"sha256": wheel.metadata}
    return row


def _branches(model: Revision, branches: Mapping[str, str]) -> list[str]:
    return [
        n.partition("@")[2] for n, c in branches.items() if c == model.revision and n.partition("@")[0] == model.repo
    ]


def _repo_path(model: Revision) -> str:
    return f"datasets/{model.repo}" if model.kind == "dataset" else model.repo


def _resolve_path(model: Revision, revision: str, path: str) -> str:
    return f"hf/{_repo_path(model)}/resolve/{revision}/{path}"


def _headers(model: Revision, file: HubFile) -> dict[str, str]:
    tag = f'"{file.blob}"'
    linked = {"X-Linked-Etag": tag, "X-Linked-Size": str(file.size)}
    return {"ETag": tag, "X-Repo-Commit": model.revision, **linked}


def _api_pages(model: Revision, revision: str) -> dict[str, bytes]:
    """Return what the API answers: the repository at a revision, and all of its files."""
    at = f"hf/api/{model.kind}s/{model.repo}"
    siblings = [{"rfilename": file.path} for file in model.files]
    info = {"id": model.repo, "sha": model.revision, "private": False, "gated": False, "siblings": siblings}
    if model.kind == "model":
        info["modelId"] = model.repo
    pages = {
        f"{at}/revision/{revision}": _json(info),
        f"{at}/tree/{revision}": _json([_tree_row(f) for f in model.files]),
    }
    return {**pages, **({f"{at}/index.json": _json(info)} if revision == "main" else {})}


def _tree_row(file: HubFile) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "oid": file.sha1 or file.sha256, "size": file.size, "path": file.path}
    return row if file.sha1 else {**row, "lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 134}}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
