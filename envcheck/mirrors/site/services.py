"""A site's processes and timers as data: their commands, ports and files. Pure."""

from __future__ import annotations

import dataclasses
import sys

from envcheck.mirrors.site.model import Registry, Site


@dataclasses.dataclass(frozen=True)
class Part:
    """One process. `needs` is the package to install for its program; an optional part may lack it."""

    name: str
    argv: tuple[str, ...]
    port: int
    needs: str
    image: str
    optional: bool = False
    build: str = ""
    reads: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    address: str = "127.0.0.1"
    program: str = ""

    @property
    def command(self) -> list[str]:
        """Return the command in a container, where the program may have another name."""
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


def parts(site: Site) -> list[Part]:
    """Return every process of a site in the order of their start: nginx last, after the servers behind it."""
    hf = [_olah(site)] if site.hf and site.hf.inner else []
    s3 = [_rclone(site)] if site.s3 else []
    behind = [*(_registry(site, registry) for registry in site.registries), *hf, *s3]
    return [*behind, _exporter(site), _prometheus(site), _nginx(site)]


def _nginx(site: Site) -> Part:
    named = [site.ca, site.users, site.hf.tokens if site.hf else None, site.store]
    named += [site.tls.certificate, site.tls.key] if site.tls else []
    argv = ("nginx", "-p", site.root, "-e", f"{site.root}/logs/error.log", "-c", f"{site.root}/nginx/nginx.conf")
    return Part(
        name="nginx",
        argv=(*argv, "-g", "daemon off;"),
        port=site.port,
        address=site.addresses[0],
        needs="nginx 1.22 or newer",
        image="${NGINX_IMAGE:-nginx:1.26}",
        reads=tuple(path for path in named if path),
    )


def _registry(site: Site, registry: Registry) -> Part:
    return Part(
        name=f"registry-{registry.name}",
        argv=("docker-registry", "serve", f"{site.root}/registry/{registry.name}.yml"),
        port=registry.inner,
        program="registry",
        needs="the distribution registry (docker-registry)",
        image="${REGISTRY_IMAGE:-registry:2.8.3}",
        reads=(site.ca,),
        environment=_trusting(site),
    )


def _trusting(site: Site) -> tuple[tuple[str, str], ...]:
    """Return the variables that make Go and Python verify upstreams with the site's roots."""
    return (("SSL_CERT_FILE", site.ca),)


def _olah(site: Site) -> Part:
    inner = site.hf.inner if site.hf else 0
    argv = ("olah-cli", "-c", f"{site.root}/olah/olah.toml", "--log-path", f"{site.root}/logs/olah")
    return Part(
        name="olah",
        argv=argv,
        port=inner,
        needs="olah (pip)",
        image="${OLAH_IMAGE:-localhost/envcheck-mirror-olah:0.5.4}",
        build="olah==0.5.4",
        reads=(site.ca,),
        # olah imports GitPython, whose import fails without git, as in slim images.
        environment=(*_trusting(site), ("GIT_PYTHON_REFRESH", "quiet")),
    )


def _rclone(site: Site) -> Part:
    argv = ("rclone", "serve", "http", f"cold:{site.s3}", "--addr", f"127.0.0.1:{site.s3_port}", "--read-only")
    return Part(
        name="rclone",
        argv=argv,
        port=site.s3_port,
        needs="rclone",
        image="${RCLONE_IMAGE:-rclone/rclone:1.68}",
        reads=(site.ca,),
        environment=_trusting(site),
    )


def _exporter(site: Site) -> Part:
    argv = ("python3", f"{site.root}/exporter/exporter.py", site.root, "--port", str(site.exporter))
    return Part(
        name="exporter",
        argv=argv,
        port=site.exporter,
        needs="Python 3.10 or newer",
        image="${PYTHON_IMAGE:-python:3.12-slim}",
    )


def _prometheus(site: Site) -> Part:
    argv = ("prometheus", f"--config.file={site.root}/prometheus/prometheus.yml")
    return Part(
        name="prometheus",
        argv=(
            *argv,
            f"--storage.tsdb.path={site.root}/state/prometheus",
            f"--web.listen-address=127.0.0.1:{site.prometheus}",
        ),
        port=site.prometheus,
        needs="Prometheus",
        image="${PROMETHEUS_IMAGE:-prom/prometheus:v2.53.0}",
        optional=True,
    )


def tasks(site: Site) -> list[Task]:
    """Return the tasks of timers: copy trees from your other mirrors, and limit logs and caches."""
    root, log = site.root, f"{site.root}/logs/access.json"
    # A killed nginx leaves files KEY.NNNNNNNNNN, which it neither counts nor evicts.
    orphans = f"/usr/bin/find {root}/cache/index {root}/cache/files -type f -regex .*[.][0-9]+ -mmin +60 -delete"
    # systemd writes $ as $$.
    reopened = f"/bin/sh -c 'kill -USR1 $$(cat {root}/run/nginx.pid)'"
    return [
        *(_sync(site, name) for name in site.sync),
        _audit(site),
        *([_cold(site)] if site.s3 else []),
        Task("sweep", "what a killed nginx left", "hourly", (orphans,)),
        Task("rotate", "a new access log", "daily", (f"/bin/mv {log} {log}.1", reopened)),
    ]


def _audit(site: Site) -> Task:
    # Use the interpreter of the envcheck that renders, because systemd's PATH has no virtual environment.
    python = f'"{sys.executable}"'.replace("%", "%%").replace("$", "$$")
    return Task("audit", "the caches against the locks", "daily", (f"{python} -m envcheck mirror audit {site.root}",))


def _cold(site: Site) -> Task:
    # Copy only new files; the bucket keeps files that the disk no longer has, and nginx serves them from there.
    copy = f"/usr/bin/env rclone copy --copy-links {site.root}/public cold:{site.s3}"
    return Task("cold", "the trees into the object store", "daily", (copy,), "rclone", _trusting(site))


def _sync(site: Site, name: str) -> Task:
    return Task(f"sync-{name}", f"a copy of {name}", "daily", (f"/bin/sh {site.root}/sync/{name}.sh",))
