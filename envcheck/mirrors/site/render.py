"""Render a site to its files. Pure: the same site gives the same texts, and all upstreams come from the site.

compose.yaml and systemd/ start the same parts: docker compose or systemd runs them, envcheck does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from envcheck.data import rendered
from envcheck.mirrors.site.dashboard import dashboard
from envcheck.mirrors.site.model import Registry, Site, checked, netloc

_ONCE: Final = {
    "compose.yaml": "site/compose.yaml.j2",
    "mtail/mirror.mtail": "site/mirror.mtail.j2",
    "nginx/nginx.conf": "site/nginx.conf.j2",
    "prometheus/prometheus.yml": "site/prometheus.yml.j2",
    "prometheus/rules.yml": "site/rules.yml.j2",
    "systemd/envcheck-mirror.target": "site/target.j2",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """One process. `program` is its name in the image, if it differs there; `build` is a Dockerfile of the image."""

    name: str
    argv: tuple[str, ...]
    image: str
    build: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    program: str = ""

    @property
    def command(self) -> list[str]:
        """Return the command in a container."""
        return [self.program or self.argv[0], *self.argv[1:]]


@dataclasses.dataclass(frozen=True)
class Task:
    """A timer's task: `when` in systemd's syntax, `commands` in order, with the credentials of the part `like`."""

    name: str
    about: str
    when: str
    commands: tuple[str, ...]
    like: str = ""
    environment: tuple[tuple[str, str], ...] = ()


def render(site: Site) -> dict[str, str]:
    """Return path below the site's directory -> text. Raise ConfigError for a site that cannot be rendered safely."""
    checked(site)
    context = _context(site)
    files = {path: rendered(template, context) for path, template in _ONCE.items()}
    files |= {path: rendered(template, {**context, **more}) for path, template, more in _each(site)}
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


def parts(site: Site) -> list[Part]:
    """Return every process of a site: nginx last, after the servers behind it."""
    hf = [_olah(site)] if site.hf and site.hf.inner else []
    s3 = [_rclone(site)] if site.s3 else []
    behind = [*(_registry(site, registry) for registry in site.registries), *hf, *s3]
    return [*behind, _mtail(site), _node_exporter(site), _prometheus(site), _nginx(site)]


def _nginx(site: Site) -> Part:
    named = [site.ca, site.users, site.hf.tokens if site.hf else None, site.store]
    named += [site.tls.certificate, site.tls.key] if site.tls else []
    argv = ("nginx", "-p", site.root, "-e", f"{site.root}/logs/error.log", "-c", f"{site.root}/nginx/nginx.conf")
    reads = tuple(path for path in named if path)
    return Part("nginx", (*argv, "-g", "daemon off;"), "${NGINX_IMAGE:-nginx:1.26}", reads=reads)


def _registry(site: Site, registry: Registry) -> Part:
    return Part(
        f"registry-{registry.name}",
        ("docker-registry", "serve", f"{site.root}/registry/{registry.name}.yml"),
        "${REGISTRY_IMAGE:-registry:2.8.3}",
        reads=(site.ca,),
        environment=_trusting(site),
        program="registry",
    )


def _trusting(site: Site) -> tuple[tuple[str, str], ...]:
    return (("SSL_CERT_FILE", site.ca),)


def _olah(site: Site) -> Part:
    install = f"pip install --cert /run/secrets/ca --index-url {site.indexes[0].url} olah==0.5.4"
    return Part(
        "olah",
        ("olah-cli", "-c", f"{site.root}/olah/olah.toml", "--log-path", f"{site.root}/logs/olah"),
        "${OLAH_IMAGE:-localhost/envcheck-mirror-olah:0.5.4}",
        build=("FROM ${PYTHON_IMAGE:-python:3.12-slim}", f"RUN --mount=type=secret,id=ca {install}"),
        reads=(site.ca,),
        # olah imports GitPython, whose import fails without git, as in slim images.
        environment=(*_trusting(site), ("GIT_PYTHON_REFRESH", "quiet")),
    )


def _rclone(site: Site) -> Part:
    argv = ("rclone", "serve", "http", f"cold:{site.s3}", "--addr", f"127.0.0.1:{site.s3_port}", "--read-only")
    image = "${RCLONE_IMAGE:-rclone/rclone:1.68}"
    return Part("rclone", argv, image, reads=(site.ca,), environment=_trusting(site))


def _mtail(site: Site) -> Part:
    argv = ("mtail", "--progs", f"{site.root}/mtail", "--logs", f"{site.root}/logs/access.json", "--logtostderr")
    return Part(
        "mtail",
        (*argv, "--emit_prog_label=false", "--address", "127.0.0.1", "--port", str(site.mtail)),
        "${MTAIL_IMAGE:-localhost/envcheck-mirror-mtail:3.0.0}",
        build=("FROM ${DEBIAN_IMAGE:-debian:12-slim}", "RUN apt-get update && apt-get install --yes mtail"),
    )


def _node_exporter(site: Site) -> Part:
    argv: tuple[str, ...] = ("prometheus-node-exporter", "--collector.disable-defaults", "--collector.filesystem")
    argv += ("--collector.textfile", f"--collector.textfile.directory={site.root}/state/metrics")
    return Part(
        "node-exporter",
        (*argv, f"--web.listen-address=127.0.0.1:{site.node}"),
        "${NODE_EXPORTER_IMAGE:-prom/node-exporter:v1.8.2}",
        program="node_exporter",
    )


def _prometheus(site: Site) -> Part:
    argv: tuple[str, ...] = ("prometheus", f"--config.file={site.root}/prometheus/prometheus.yml")
    argv += (f"--storage.tsdb.path={site.root}/state/prometheus", f"--web.listen-address=127.0.0.1:{site.prometheus}")
    return Part("prometheus", argv, "${PROMETHEUS_IMAGE:-prom/prometheus:v2.53.0}")


def tasks(site: Site) -> list[Task]:
    """Return the tasks of timers: copy trees from your other mirrors, and limit logs and caches."""
    root, log = site.root, f"{site.root}/logs/access.json"
    # A killed nginx leaves files KEY.NNNNNNNNNN, which it neither counts nor evicts.
    orphans = f"/usr/bin/find {root}/cache/index {root}/cache/files -type f -regex .*[.][0-9]+ -mmin +60 -delete"
    # systemd writes $ as $$.
    reopened = f"/bin/sh -c 'kill -USR1 $$(cat {root}/run/nginx.pid)'"
    copies = [Task(f"sync-{n}", f"a copy of {n}", "daily", (f"/bin/sh {root}/sync/{n}.sh",)) for n in site.sync]
    # Copy only new files; the bucket keeps files that the disk no longer has, and nginx serves them from there.
    cold = f"/usr/bin/env rclone copy --copy-links {root}/public cold:{site.s3}"
    about = "the trees into the object store"
    return [
        *copies,
        *([Task("cold", about, "daily", (cold,), "rclone", _trusting(site))] if site.s3 else []),
        Task("sweep", "what a killed nginx left", "hourly", (orphans,)),
        Task("rotate", "a new access log", "daily", (f"/bin/mv {log} {log}.1", reopened)),
    ]
