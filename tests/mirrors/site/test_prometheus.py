"""A real Prometheus of a running site: each panel's query has data, and an alert rings for a bad log, none for a sound.

Only times are other than rendered: it scrapes and judges each second, and an alert need not stand for minutes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from envcheck.mirrors.site.dashboard import PANELS
from tests.mirrors.site.conftest import World, running
from tests.mirrors.site.upstreams import get

pytestmark = pytest.mark.tools
LARGE = 120_000_000
LINE = {"time": 1.5, "part": "files", "outcome": "ok", "download": 1, "bytes": 10, "promised": 10, "seconds": 0.1}


def line(**changes: Any) -> str:
    """Return a line of the access log as nginx writes it."""
    return json.dumps({**LINE, **changes, "cache": "MISS"}, separators=(",", ":")) + "\n"


@dataclasses.dataclass(frozen=True)
class WatchRecord:
    """A running site and its Prometheus."""

    site: Path
    port: int

    def query(self, path: str, **query: str) -> Any:
        """Return the data of an answer of Prometheus' API."""
        status, body, _ = get(f"http://127.0.0.1:{self.port + 101}/api/v1/{path}?{urlencode(query)}")
        document = json.loads(body)
        assert (status, document["status"]) == (200, "success"), document
        return document["data"]

    def values(self, query: str) -> list[float]:
        """Return what a query gives now."""
        return [float(one["value"][1]) for one in self.query("query", query=query)["result"]]

    def firing(self) -> set[str]:
        """Return the alerts that fire."""
        alerts = self.query("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def downloaded(self, path: str) -> int:
        """Take a file and let it go; return the status."""
        return get(f"http://127.0.0.1:{self.port}{path}")[0]


def copied(site: Path, at: float) -> None:
    """Say when the tree was copied, as the script of the copy does."""
    text = f'envcheck_mirror_sync_success_timestamp_seconds{{name="main"}} {at:.0f}\n'
    (site / "state/metrics/sync-main.prom").write_text(text)


@pytest.fixture
def watched(world: World) -> Iterator[WatchRecord]:
    """Return a site with a Prometheus, a copied tree, and a page and a file to be had."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus here (`make test` unpacks it where apt is)")
    site, port = world.render("--no-hf", "--sync", "main=/nowhere")
    config, rules = site / "prometheus/prometheus.yml", site / "prometheus/rules.yml"
    config.write_text(re.sub(r"_interval: \w+", "_interval: 1s", config.read_text()))
    rules.write_text(re.sub(r"(?m)^( +for:) \w+$", r"\1 1s", rules.read_text()))
    copied(site, time.time())
    (site / "public/static/large").touch()
    os.truncate(site / "public/static/large", LARGE)
    with running(site, watched=True):
        yield WatchRecord(site, port)


@pytest.fixture
def busy(watched: WatchRecord) -> Iterator[WatchRecord]:
    """Return it while clients take pages and large files all the time: what is a rate needs two scrapes."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            watched.downloaded("/static/large")
            watched.downloaded("/pypi/simple/nearlib/")
            over.wait(0.2)

    thread = threading.Thread(target=work)
    thread.start()
    yield watched
    over.set()
    thread.join()


def until(there: Callable[[], bool]) -> bool:
    """Wait for what takes some scrapes; tell whether it came."""
    for _ in range(450):
        if there():
            return True
        time.sleep(0.2)
    return False


def test_every_query_has_data_every_rule_is_sound_and_only_the_bad_log_rings(busy: WatchRecord) -> None:
    queries = [query for panel in PANELS for query in panel.queries.values()]
    silent = set(queries)

    def all_told() -> bool:
        silent.difference_update({query for query in silent if busy.values(query)})
        return not silent

    assert until(all_told), silent
    assert busy.values("envcheck_mirror:download_success:ratio1h") == [1.0]
    assert busy.values("envcheck_mirror:download_rate:bytes_per_second")[0] > 0
    with (busy.site / "logs/access.json").open("a") as log:  # so many that they are judged
        log.writelines(line() for _ in range(5000))
    assert until(lambda: busy.values("envcheck_mirror:downloads_judged:increase1h")[0] > 200)
    time.sleep(3)
    rules = [rule for group in busy.query("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    assert len([rule for rule in rules if rule["type"] == "alerting"]) > 5
    # How fast this machine's loopback and how full its disk is, is not what is asked here.
    machine = {"MirrorSlow", "MirrorStorageFull"}
    assert busy.firing() <= machine
    with (busy.site / "logs/access.json").open("a") as log:
        log.writelines(line(outcome="client_abort") for _ in range(5000))
    time.sleep(3)
    assert busy.firing() <= machine  # clients that went away
    with (busy.site / "logs/access.json").open("a") as log:
        log.writelines(line(promised=20) for _ in range(100))
    assert until(lambda: "MirrorDownloadsFail" in busy.firing())
    assert busy.values("envcheck_mirror:download_success:ratio1h")[0] < 0.999
    assert busy.firing() <= {"MirrorDownloadsFail", *machine}
    copied(busy.site, time.time() - 37 * 3600)
    assert until(lambda: "MirrorStale" in busy.firing())
    copied(busy.site, time.time())
    assert until(lambda: "MirrorStale" not in busy.firing())
