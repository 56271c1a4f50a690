"""A report that can be passed on: no name of the site is left in it, and every check still comes to the same."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports import redact as redacting
from envcheck.reports.model import HostFacts, RunReport, encode, rejudge
from envcheck.reports.redact import RedactError, redact
from envcheck.runner.launcher import Place
from envcheck.runner.planning import discover, plan
from envcheck.runner.schema import OutcomeRow, TargetFacts
from tests.builders import machine, report
from tests.tables import beside

SNAPSHOT = machine("h100x8")
UUID = "GPU-5f3e9a52-3b1c-4c57-9d0b-{:012d}"
RESULTS = {dtype: {"wrong": 0} for dtype in ("float32", "float16", "bfloat16")}


def site(host: str = "rack7-n1.corp.example", user: str = "ada") -> RunReport:
    """Return the report of eight H100 whose every corner holds a name."""
    gpus = [
        Gpu(UUID.format(i), {**g.signals, "uuid": Signal(UUID.format(i)), "serial": Signal(f"165242{i}")})
        for i, g in enumerate(SNAPSHOT.gpus)
    ]
    signals = {**SNAPSHOT.signals, "host.name": Signal(host), "host.boot_id": Signal("c0ffee00-1234")}
    signals["env"] = Signal({"LD_LIBRARY_PATH": f"/home/{user}/sim/lib:/usr/lib", "SLURMD_NODENAME": host})
    signals["shm.kind"] = Signal(reason=f"/data/{user}/x: not permitted to {user} on {host}")
    standing = {"world": 8, "host": host, "is_cuda": True, "backend": "nccl"}
    ranks = [{"rank": i, "device": g.uuid, "results": RESULTS, **standing} for i, g in enumerate(gpus)]
    devices = [{"index": i, "name": "NVIDIA H100 80GB HBM3", "uuid": g.uuid} for i, g in enumerate(gpus)]
    outcomes = [
        OutcomeRow(id=f.id, kind=f.kind, status="pass", summary=f"{UUID.format(3)} of {host} is fine")
        for f in discover()
        if f.kind == "node"
    ]
    log = f"[rank 0] File /home/{user}/sim/train.py\nconnect to [10.4.7.9]:29500 failed, mac 0c:42:a1:2b:3c:4d"
    by_gpu = {"rates": {UUID.format(i): 1.0 for i in range(8)}}
    outcomes.append(
        OutcomeRow(id="all-reduce", kind="env", status="pass", summary="", ranks=ranks, log=log, details=by_gpu)
    )
    chosen = [f for f in discover() if f.id in {o.id for o in outcomes}]
    return report(
        *outcomes,
        plan=plan(chosen, level="quick", nproc=2),
        host=HostFacts(name=host, system="Linux", kernel="6.1", arch="x86_64", cpus=8, place=Place(node=host)),
        target=TargetFacts(kind="python", name=f"/home/{user}/sim/venv/bin/python3.12", chosen="--python"),
        snapshot=Snapshot("", signals, gpus),
        environment={
            "python": "3.12.3",
            "torch": "2.8.0+cu128",
            "cuda": "12.8",
            "arch_list": ["sm_90"],
            "prefix": f"/home/{user}/sim/venv",
            "device_count": 8,
            "devices": devices,
        },
        boot="c0ffee00-1234",
    )


def judged(report: RunReport) -> dict[str, str]:
    return {o.id: o.status for o in rejudge(report).report.outcomes}


# What a site would not have told, each where it stands in a report; every name has "canary" in it.
CANARIES: dict[str, Any] = beside(__file__)["canaries"]
LOG = (
    "[rank 0] connect to 10.66.7.9 failed: canary7-n2.canarydomain.example, fe80::e42:a103:65:be1a%ib0\n"
    'File "/home/canaryuser/canarydir/canaryfile.py", line 3, in c10::cuda of torch.distributed.elastic\n'
    "mail canaryuser@canarymail.example, ssh canaryuser@canary7-n3, canaryuser is on canary7-n1\n"
)


def test_no_canary_sings() -> None:
    made = site("canary7-n1.canarydomain.example", "canaryuser")
    signals = {**made.snapshot.signals, **{name: Signal(value) for name, value in CANARIES.items()}}
    running = Signal([{"pid": 8, "name": "/home/canaryuser/canarydir/canaryjob", "memory": 0}])
    gpus = [Gpu(gpu.uuid, {**gpu.signals, "processes": running}) for gpu in made.snapshot.gpus]
    loud = [structs.replace(o, log=LOG, summary="10.66.7.9 at canary7-n[1-2] of canaryuser") for o in made.outcomes]
    target = TargetFacts(kind="image", name="canaryregistry.example:5000/canaryteam/torch:1", chosen="--image")
    made = structs.replace(made, snapshot=Snapshot("", signals, gpus), outcomes=loud, target=target)
    statement = encode(redact(made)).decode()
    leaks = [
        statement[max(0, at.start() - 60) : at.end() + 30]
        for at in re.finditer("canary|10\\.66|ca11a7|a103|be1a", statement)
    ]
    assert leaks == []
    assert "in c10::cuda of torch.distributed.elastic" in statement
    assert ".example/owner-1/torch:1" in statement


def test_what_says_what_a_thing_is_stays() -> None:
    made = redact(site())
    assert made.target.name.endswith("/venv/bin/python3.12")
    assert made.environment["prefix"] == made.target.name.removesuffix("/bin/python3.12")
    assert {g.signal("name").value for g in made.snapshot.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert made.snapshot.signal("driver.version").value == "570.124.06"
    assert made.snapshot.signal("env").value["LD_LIBRARY_PATH"].endswith("/lib:/usr/lib")
    data = {
        "text": "/usr/local/cuda-12.8/lib64/libcudart.so.12, /usr/local/bin/ptxas, /etc/nccl.conf, /run/docker.sock"
    }
    assert redacting._text(data["text"], "text", redacting.Pseudonyms()) == data["text"]  # noqa: SLF001 (one text of many)


def test_the_number_of_a_numa_node_is_no_host() -> None:
    """On a real H100 one row said `"node": "0"`, and every version that began with 0 lost its first number."""
    made = report(
        OutcomeRow(id="memory-bandwidth", kind="env", status="pass", summary="", ranks=[{"node": "0", "rank": 0}]),
        OutcomeRow(id="extensions", kind="env", status="pass", summary="torchvision 0.26.0: every library fits"),
    )
    assert [row.summary for row in redact(made).outcomes] == ["", "torchvision 0.26.0: every library fits"]


def test_one_name_has_one_pseudonym_and_another_another() -> None:
    made = redact(site())
    gpus = [gpu.uuid for gpu in made.snapshot.gpus]
    assert len(set(gpus)) == 8
    assert [device["uuid"] for device in made.environment["devices"]] == gpus
    assert [rank["device"] for rank in made.outcomes[-1].ranks] == gpus
    assert {rank["host"] for rank in made.outcomes[-1].ranks} == {made.host.name}


# Names that are words of the report itself.
WORDS = (
    "nccl gloo cpu cuda H100 pass GPU sm_90 570.124.06 torch 9.0 on x86_64 linux usr lib open tmpfs 12.8 float32 "
    "NVIDIA name host a.b 1980"
)
NAMES = st.sampled_from(WORDS.split()) | st.from_regex("n[a-z0-9]{0,6}-[0-9]{1,3}", fullmatch=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(host=NAMES, user=NAMES, key=st.sampled_from(["", "secret"]))
def test_no_verdict_changes_whatever_the_names_are(host: str, user: str, key: str) -> None:
    made = site(host, user)
    try:
        redacted = redact(made, key)
    except RedactError:
        # A name that a check's own evidence consists of: better no report than another verdict.
        assert {host, user} & set(WORDS.split())
        return
    assert judged(redacted) == judged(made)
    assert (redacted.verdict, [o.status for o in redacted.outcomes]) == (
        made.verdict,
        [o.status for o in made.outcomes],
    )
    assert redacted.host.name != host


def test_a_redaction_that_would_change_a_verdict_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(text: str, key: str, names: Any) -> str:
        del names
        return "1.2.3" if key == "driver.kernel" else text

    monkeypatch.setattr(redacting, "_text", spoil)
    with pytest.raises(RedactError, match="driver-nvml would change"):
        redact(site())
