"""A site to its files. Pure: the same site gives the same texts; every upstream in them came with the site."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from envcheck.mirrors.site import exporter
from envcheck.mirrors.site.dashboard import dashboard
from envcheck.mirrors.site.model import Site, checked, netloc
from envcheck.mirrors.site.parts import parts, tasks
from envcheck.templating import rendered

_ONCE: Final = {
    "compose.yaml": "site/compose.yaml.j2",
    "nginx/nginx.conf": "site/nginx.conf.j2",
    "prometheus/prometheus.yml": "site/prometheus.yml.j2",
    "prometheus/rules.yml": "site/rules.yml.j2",
    "systemd/envcheck-mirror.target": "site/target.j2",
}


def render(site: Site) -> dict[str, str]:
    """Return path below the site's directory -> text. Raise ConfigError for what cannot be rendered safely."""
    checked(site)
    context = _context(site)
    files = {path: rendered(template, context) for path, template in _ONCE.items()}
    files |= {path: rendered(template, {**context, **more}) for path, template, more in _each(site)}
    files["exporter/exporter.py"] = inspect.getsource(exporter)
    files["grafana/dashboard.json"] = dashboard()
    files["site.json"] = msgspec.json.format(msgspec.json.encode(site)).decode() + "\n"
    return dict(sorted(files.items()))


def _context(site: Site) -> dict[str, Any]:
    return {
        "site": site,
        "addresses": [f"[{address}]" if ":" in address else address for address in site.addresses],
        "netlocs": {one: netloc(one) for one in site.origins},
        "hf_netloc": netloc(site.hf.endpoint) if site.hf and site.hf.endpoint else "",
        "places": places(site),
        "parts": parts(site),
    }


def _each(site: Site) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, template and what it needs besides, of what there may be several or none of."""
    for part in parts(site):
        yield f"systemd/envcheck-mirror-{part.name}.service", "site/service.j2", {"part": part}
    for task in tasks(site):
        yield f"systemd/envcheck-mirror-{task.name}.service", "site/task.service.j2", {"task": task}
        yield f"systemd/envcheck-mirror-{task.name}.timer", "site/task.timer.j2", {"task": task}
    for registry in site.registries:
        yield f"registry/{registry.name}.yml", "site/registry.yml.j2", {"registry": registry}
    if site.hf:
        yield "olah/olah.toml", "site/olah.toml.j2", {}


def places(site: Site) -> list[dict[str, str]]:
    """Return where files are taken from: `at` here, `to` there; `variable` holds the path below both."""
    near = [
        {"at": f"/{index.part}", "to": f"{index.origin}{index.parent}", "variable": f"{index.part}_path"}
        for index in site.indexes
    ]
    far = [{"at": f"/files/{netloc(one)}", "to": one, "variable": "files_path"} for one in site.origins]
    return near + far
