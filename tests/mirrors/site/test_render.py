"""What is rendered: safe, the same each time, of no upstream but the site's own; each file judged by its tool."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.mirrors.site import Registry, Site, SiteHub, SiteIndex, Tls, read, render
from envcheck.mirrors.site_sources import resolvers
from tests.certificates import Certificate
from tests.http_server import Servers
from tests.mirrors.site.conftest import ROOT, World, envcheck, page
from tests.processes import program, ran
from tests.tables import each

INDEXES = [
    SiteIndex(part="pypi", url="https://index.example/simple", links=["https://files.example"]),
    SiteIndex(part="pytorch", url="https://torch.example/whl", links=["https://cdn.example"]),
]


def site(root: Path, **changes: object) -> Site:
    made = Site(
        root=str(root),
        addresses=["127.0.0.1", "::1"],
        name="mirror.example",
        port=8443,
        indexes=INDEXES,
        ca="/etc/ssl/certs/ca-certificates.crt",
        resolvers=["127.0.0.53", "[::1]"],
        mtail=8543,
        prometheus=8544,
        node=8547,
        cache_size=10**12,
        min_free=10**11,
        hf=SiteHub(port=8444, inner=8545),
        registries=[Registry(name="docker.io", url="https://registry.example", port=8445, inner=8553, debug=8554)],
        s3="bucket/prefix",
        s3_port=8546,
        sync={"main": "rsync://other.example/static/main"},
        trees={"debian": "https://apt.example/debian"},
        allow=["192.0.2.0/24", "127.0.0.0/8"],
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.tools
def test_nginx_takes_it_with_everything_on(tmp_path: Path, nginx: str, authority: Certificate) -> None:
    (tmp_path / "users").write_text("a:b\n")
    (tmp_path / "tokens").write_text('"Bearer x" 1;\n')
    whole = site(
        tmp_path,
        tls=Tls(certificate=str(authority.certificate), key=str(authority.key)),
        users=str(tmp_path / "users"),
        hf=SiteHub(port=8444, inner=8545, endpoint="https://hf.example", tokens=str(tmp_path / "tokens")),
    )
    for name in ("nginx", "logs", "run", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "nginx/nginx.conf").write_text(render(whole)["nginx/nginx.conf"])
    command = [nginx, "-t", "-p", str(tmp_path), "-e", "stderr", "-c", str(tmp_path / "nginx/nginx.conf")]
    completed = ran(command)
    assert completed.returncode == 0, completed.stderr
    assert "warn" not in completed.stderr


def test_the_same_site_gives_the_same_bytes_and_is_read_back(tmp_path: Path) -> None:
    assert render(site(tmp_path)) == render(site(tmp_path))
    (tmp_path / "site.json").write_text(render(site(tmp_path))["site.json"])
    assert read(tmp_path) == site(tmp_path)


def test_every_upstream_in_the_files_came_with_the_site(tmp_path: Path) -> None:
    for path, text in render(site(tmp_path)).items():
        hosts = set(re.findall(r"https://([\w.-]*\w)", text))
        assert all(host.endswith(".example") for host in hosts), path


@each(
    ("changes", "says"),
    [
        ({"ca": '/srv/a"b'}, "in a path or URL"),
        ({"ca": "/srv/a b"}, "in a path or URL"),
        ({"indexes": [SiteIndex(part="pypi", url="https://x.example/$host")]}, "in a path or URL"),
        ({"indexes": [SiteIndex(part="pypi", url="https://x.example/simple", links=["://"])]}, "is not a URL"),
        ({"registries": [Registry(name="a", url="x", port=1, inner=2, debug=3)]}, "is not a URL"),
        ({"sync": {"../up": "https://x.example"}}, "is not a valid name"),
    ],
)
def test_what_nginx_would_read_as_something_else_is_refused(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        render(site(tmp_path, **changes))


def test_name_servers_are_written_as_nginx_takes_them() -> None:
    text = "# none\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\noptions x\n"
    assert resolvers(text) == ["192.0.2.53", "[fe80::1]"]


@pytest.mark.tools
def test_where_pages_link_to_is_asked_of_the_index(world: World, servers: Servers) -> None:
    (world.root / "only.yaml").write_text((world.root / "site.yaml").read_text().splitlines()[0])
    far = {f"{world.far.url}/packages/x.whl": world.wheels["farlib"]}
    page(world.index.tree / "simple", "filelock", far)
    target, profile = str(world.root / "asked"), str(world.root / "only.yaml")
    done = envcheck("mirror", "site", "render", target, "--mirror", profile, "--no-pytorch")
    assert done.returncode == 0, done.stderr
    assert read(world.root / "asked").indexes[0].links == [world.far.url]
    servers.close()
    done = envcheck("mirror", "site", "render", target, "--mirror", profile, "--no-pytorch")
    said, *refusal = done.stderr.splitlines()
    assert (done.returncode, said.split()[0], len(refusal)) == (3, "reading", 1)
    assert "--link" in done.stderr


@each(
    ("names", "options", "lacks"),
    [
        ("", (), "pypi:"),
        ("pypi: [{url: https://x.example/simple}]", (), "pytorch:"),
        ("pypi: [{url: https://x.example/simple}, {url: default}]", ("--no-pytorch",), "hf: {endpoint: URL}"),
        ("pypi: [{url: default}]", ("--no-pytorch", "--no-hf"), "pypi:"),
    ],
)
def test_a_closed_profile_gives_no_site_before_the_clients_own_defaults(
    tmp_path: Path, names: str, options: tuple[str, ...], lacks: str
) -> None:
    (tmp_path / "closed.yaml").write_text(f"closed: true\n{names}\n")
    words = ["mirror", "site", "render", str(tmp_path / "s"), "--mirror", str(tmp_path / "closed.yaml")]
    result = CliRunner().invoke(cli, [*words, "--link", "https://l.example", *options])
    assert isinstance(result.exception, ConfigError)
    assert lacks in result.exception.message
    assert not (tmp_path / "s").exists()


@pytest.mark.tools
def test_systemd_has_nothing_to_say_of_any_unit(tmp_path: Path) -> None:
    judge = program("systemd-analyze")
    whole = render(site(tmp_path, store=str(tmp_path / "store")))
    units = {Path(path).name: text for path, text in whole.items() if path.startswith("systemd/")}
    assert {"envcheck-mirror.target", "envcheck-mirror-store.path", "envcheck-mirror-sync-main.timer"} <= set(units)
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    # Where the units that ours are ordered by are: this machine's, or beside an unpacked systemd-analyze.
    beside = (Path(judge).parents[2] / "systemd-analyze").glob("**/systemd/system")
    paths = [str(tmp_path), *map(str, beside), "/usr/lib/systemd/system", "/lib/systemd/system"]
    env = {**os.environ, "SYSTEMD_UNIT_PATH": ":".join(paths), "SYSTEMD_LOG_LEVEL": "info"}
    words = [judge, "verify", *(str(tmp_path / name) for name in units)]
    completed = ran(words, env=env)
    lines = completed.stderr.splitlines()
    assert [line for line in lines if "envcheck-mirror" in line and "is not executable" not in line] == []


DASHBOARD = (ROOT / "templates/site/dashboard.json").read_text(encoding="utf-8")
QUERIES = [target["expr"] for panel in json.loads(DASHBOARD)["panels"] for target in panel["targets"]]


def test_every_metric_that_the_dashboard_asks_for_is_exported_or_recorded(tmp_path: Path) -> None:
    files = render(site(tmp_path))
    exported = set(re.findall(r"counter (\S+) by", files["mtail/mirror.mtail"]))
    exported |= set(re.findall(r"echo \"(\w+)", files["sync/main.sh"]))
    rules = files["prometheus/rules.yml"]
    assert len(exported) > 5
    recorded = set(re.findall(r"- record: (\S+)", rules))
    assert set(re.findall(r"envcheck_mirror[\w:]*", " ".join(QUERIES))) <= exported | recorded
    assert set(re.findall(r"envcheck_mirror[\w:]*", rules)) <= exported | recorded


@pytest.mark.promtool
def test_every_query_of_the_dashboard_is_promql(tmp_path: Path, promtool: str) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    words = [promtool, "check", "rules", str(tmp_path / "rules.yml")]
    completed = ran(words)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_the_dashboard_is_what_grafana_publishes(tmp_path: Path) -> None:
    schema = str(ROOT / "tests/data/grafana-dashboard.schema.json")
    for text, valid in ((DASHBOARD, True), (DASHBOARD.replace('"gridPos"', '"gridpos"'), False)):
        (tmp_path / "dashboard.json").write_text(text)
        judge = [sys.executable, "-m", "check_jsonschema", "--schemafile", schema, str(tmp_path / "dashboard.json")]
        completed = ran(judge)
        assert (completed.returncode == 0) == valid, completed.stdout


HOUR = 60
PREFIX = "envcheck_mirror_"


def downloads(ok: str, error: str, truncated: str, client_abort: str) -> dict[str, str]:
    data = {"ok": ok, "error": error, "truncated": truncated, "client_abort": client_abort}
    return {f'{PREFIX}downloads_total{{outcome="{outcome}"}}': values for outcome, values in data.items()}


def rate(per_minute: float, seconds: float) -> dict[str, str]:
    return {
        f'{PREFIX}download_bytes_total{{size="large"}}': f"0+{per_minute:.0f}x180",
        f'{PREFIX}download_seconds_total{{size="large"}}': f"0+{seconds}x180",
    }


def storage(used: float) -> dict[str, str]:
    return {
        'node_filesystem_size_bytes{mountpoint="/srv",fstype="ext4"}': "1000000x180",
        'node_filesystem_avail_bytes{mountpoint="/srv",fstype="ext4"}': f"{1000000 * (1 - used):.0f}x180",
        'node_filesystem_size_bytes{mountpoint="/tmp",fstype="tmpfs"}': "1000000x180",
        'node_filesystem_avail_bytes{mountpoint="/tmp",fstype="tmpfs"}': "0x180",
    }


UP = {'up{job="envcheck-mirror", instance="127.0.0.1:8547"}': "1x300"}
CASES: list[tuple[str, dict[str, str], int, bool]] = [
    # A hundred a minute: 6000 an hour, of which six may fail.
    ("MirrorDownloadsFail", downloads("0+100x180", "0+1x180", "0x180", "0x180"), 2 * HOUR, True),
    ("MirrorDownloadsFail", downloads("0+100x180", "0x180", "0+1x180", "0x180"), 2 * HOUR, True),
    ("MirrorDownloadsFail", downloads("0+10000x180", "0+1x180", "0x180", "0x180"), 2 * HOUR, False),
    ("MirrorDownloadsFail", downloads("0+100x180", "0x180", "0x180", "0+100x180"), 2 * HOUR, False),
    ("MirrorDownloadsFail", downloads("0+2x180", "0+1x180", "0x180", "0x180"), 2 * HOUR, False),
    ("MirrorDownloadsFail", downloads("0x180", "0+10x180", "0x180", "0x180"), 2 * HOUR, True),
    ("MirrorSlow", rate(60 * 49e6, 60), 2 * HOUR, True),
    ("MirrorSlow", rate(60 * 51e6, 60), 2 * HOUR, False),
    ("MirrorSlow", rate(0, 0), 2 * HOUR, False),
    ("MirrorStorageFull", storage(0.86), HOUR, True),
    ("MirrorStorageFull", storage(0.84), HOUR, False),
    ("MirrorStale", {f'{PREFIX}sync_success_timestamp_seconds{{name="main"}}': "0x300"}, 37 * HOUR, True),
    ("MirrorStale", {f'{PREFIX}sync_success_timestamp_seconds{{name="main"}}': "0x300"}, 35 * HOUR, False),
    ("MirrorNeverSynced", UP, 37 * HOUR, True),
    ("MirrorNeverSynced", UP, 35 * HOUR, False),
    ("MirrorNeverSynced", {**UP, f'{PREFIX}sync_success_timestamp_seconds{{name="other"}}': "0x300"}, 37 * HOUR, True),
    ("MirrorNeverSynced", {**UP, f'{PREFIX}sync_success_timestamp_seconds{{name="main"}}': "0x300"}, 37 * HOUR, False),
    ("MirrorDown", {'up{job="envcheck-mirror"}': "1 1 0x180"}, HOUR, True),
    ("MirrorDown", {'up{job="envcheck-mirror"}': "1x180"}, HOUR, False),
]


def case(number: int, alert: str, series: dict[str, str], at: int) -> dict[str, Any]:
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    return {
        "name": f"{number} {alert}",
        "interval": "10m" if at > 3 * HOUR else "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": int(CASES[number][3])}]}
        ],
    }


def judged(tmp_path: Path, promtool: str, *command: str) -> subprocess.CompletedProcess[str]:
    for path, content in render(site(tmp_path)).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return ran([promtool, *command], cwd=tmp_path)


@pytest.mark.promtool
def test_every_alert_fires_on_one_side_of_its_limit_and_not_on_the_other(tmp_path: Path, promtool: str) -> None:
    tests = [case(number, alert, series, at) for number, (alert, series, at, _) in enumerate(CASES)]
    data = {"rule_files": ["prometheus/rules.yml"], "evaluation_interval": "5m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(data))  # JSON is YAML
    done = judged(tmp_path, promtool, "test", "rules", "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_promtool_takes_the_configuration_and_no_alert_is_without_a_case(tmp_path: Path, promtool: str) -> None:
    done = judged(tmp_path, promtool, "check", "config", "prometheus/prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (tmp_path / "prometheus/rules.yml").read_text()
    named = {line.split()[-1] for line in rules.splitlines() if "- alert:" in line}
    assert named == {alert for alert, _, _, fires in CASES if fires} == {a for a, _, _, fires in CASES if not fires}
    assert rules.count(" fix: ") == len(named)


def test_a_fix_names_no_unit_that_is_not_rendered(tmp_path: Path) -> None:
    files = render(site(tmp_path))
    rules = files["prometheus/rules.yml"].replace("{{ $labels.name }}", "main")
    named = set(re.findall(r"systemctl status ([^`]+)`", rules))
    assert {"envcheck-mirror-sync-main.service"} <= named
    assert {f"systemd/{unit}" for unit in named if "*" not in unit} <= files.keys()
