"""Render a site to its files. Pure: the same site gives the same texts, and all upstreams come from the site."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from envcheck.mirrors.site import exporter
from envcheck.mirrors.site.dashboard import dashboard
from envcheck.mirrors.site.model import Site, checked, netloc
from envcheck.mirrors.site.services import parts, tasks
from envcheck.templating import rendered

_ONCE: Final = {
    "compose.yaml": "site/compose.yaml.j2",
    "nginx/nginx.conf": "site/nginx.conf.j2",
    "prometheus/prometheus.yml": "site/prometheus.yml.j2",
    "prometheus/rules.yml": "site/rules.yml.j2",
    "systemd/envcheck-mirror.target": "site/target.j2",
}


def render(site: Site) -> dict[str, str]:
    """Return path below the site's directory -> text. Raise ConfigError for a site that cannot be rendered safely."""
    checked(site)
    context = _context(site)
    files = {path: rendered(template, context) for path, template in _ONCE.items()}
    files |= {path: rendered(template, {**context, **more}) for path, template, more in _each(site)}
    files["exporter/exporter.py"] = inspect.getsource(exporter)
    files["grafana/dashboard.json"] = dashboard()
    files["client.yaml"] = _pretty(client(site))
    files["site.json"] = _pretty(site)
    return dict(sorted(files.items()))


def client(site: Site) -> dict[str, Any]:
    """Return the mirror profile of the site's clients, for `envcheck mirror show` and `--mirror`."""
    near, base = {index.part for index in site.indexes}, site.at(site.port)
    lists: dict[str, list[str]] = {
        "pypi": [f"{base}/pypi/simple"] if "pypi" in near else [],
        "pytorch": [f"{base}/pytorch/whl/{{variant}}"] if "pytorch" in near else [],
    }
    if site.store:
        lists["pypi"].append(f"{base}/static/store/simple")
        lists["pytorch"].append(f"{base}/static/store/whl/{{variant}}")
    profile: dict[str, Any] = {"name": "mirror-site"}
    profile |= {part: [{"url": url} for url in urls] for part, urls in lists.items() if urls}
    if site.hf:
        profile["hf"] = {"endpoint": site.at(site.hf.port), "token": "allow" if site.hf.tokens else "never"}
    if site.registries:
        plain = 0 if site.tls is None else len("https://")
        profile["registries"] = {registry.name: [site.at(registry.port)[plain:]] for registry in site.registries}
    return {**profile, "ca": site.client_ca} if site.client_ca else profile


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


def _context(site: Site) -> dict[str, Any]:
    return {
        "site": site,
        "addresses": [f"[{address}]" if ":" in address else address for address in site.addresses],
        "netlocs": {origin: netloc(origin) for origin in site.origins},
        "hf_netloc": netloc(site.hf.endpoint) if site.hf and site.hf.endpoint else "",
        "places": places(site),
        "parts": parts(site),
    }


def _each(site: Site) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, template and extra variables of each file that a site has several times or not at all."""
    for part in parts(site):
        yield f"systemd/envcheck-mirror-{part.name}.service", "site/service.j2", {"part": part}
    for name, source in site.sync.items():
        yield f"sync/{name}.sh", "site/sync.sh.j2", {"name": name, "source": source}
    if site.store:
        yield "systemd/envcheck-mirror-store.service", "site/store.service.j2", {}
        yield "systemd/envcheck-mirror-store.path", "site/store.path.j2", {}
    for task in tasks(site):
        yield f"systemd/envcheck-mirror-{task.name}.service", "site/task.service.j2", {"task": task}
        yield f"systemd/envcheck-mirror-{task.name}.timer", "site/task.timer.j2", {"task": task}
    for registry in site.registries:
        yield f"registry/{registry.name}.yml", "site/registry.yml.j2", {"registry": registry}
    if site.hf and site.hf.inner:
        yield "olah/olah.toml", "site/olah.toml.j2", {}


def places(site: Site) -> list[dict[str, str]]:
    """Return the locations that serve files: `at` on the site, `to` upstream; `variable` is the path below both."""
    near = [
        {"at": f"/{index.part}", "to": f"{index.origin}{index.parent}", "variable": f"{index.part}_path"}
        for index in site.indexes
    ]
    far = [{"at": f"/files/{netloc(origin)}", "to": origin, "variable": "files_path"} for origin in site.origins]
    return near + far
