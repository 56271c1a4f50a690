"""Who an image runs as and what it starts: of an image as it is configured, of a container as it runs."""

import dataclasses
from typing import Any

import pytest

from envcheck.checks import ERROR, PASS, SKIP, WARN, Rank, View
from envcheck.checks.env import image_config
from envcheck.checks.support import control_group, secret_patterns
from tests.tables import beside, each

CASES = beside(__file__)

RANK = Rank(0, 1, 0, "cpu", "gloo", "")
RUNNING = {"rank": 0, "image": False, "contained": True, "uid": 1000, "mapped": False, "init": "tini"}
IMAGE = {"runs_as": "1000:1000", "program": "tini", "history": 3, "secrets": []}


@each(
    "change, status, word",
    [
        ({}, PASS, "user 1000, under tini"),
        ({"uid": 0, "mapped": True}, PASS, "under tini"),
        ({"init": "docker-init"}, PASS, "docker-init"),
        ({"init": ""}, WARN, "not known"),
        ({"uid": 0, "init": "sleep"}, WARN, "it runs as root; PID 1 is sleep"),
        ({"contained": False, "uid": 0, "init": "x"}, SKIP, "no container"),
        ({"image": True}, ERROR, "was not read"),
        ({"uid": None}, ERROR, "not looked at"),
    ],
)
def test_a_container_on_each_side(cpu: View, change: dict[str, Any], status: str, word: str) -> None:
    outcome = image_config.judge(cpu, [{**RUNNING, **change}])
    assert outcome.status == status, outcome
    assert word in outcome.summary
    assert bool(outcome.remedy) == (status in (WARN, ERROR))


@each(
    "change, status, word",
    [
        ({}, PASS, "user 1000, under tini"),
        ({"runs_as": ""}, WARN, "runs as root"),
        ({"runs_as": "0:0"}, WARN, "runs as root"),
        ({"runs_as": "root"}, WARN, "runs as root"),
        ({"program": ""}, WARN, "PID 1 is not known"),
        ({"program": "entrypoint.sh"}, WARN, "entrypoint.sh, which is no init"),
    ],
)
def test_an_image_is_judged_as_it_is_configured(cpu: View, change: dict[str, Any], status: str, word: str) -> None:
    started = {**RUNNING, "image": True, "uid": 0, "init": "python", "mapped": True}
    outcome = image_config.judge(dataclasses.replace(cpu, image={**IMAGE, **change}), [started])
    assert outcome.status == status, outcome
    assert word in outcome.summary


def test_nothing_measured_is_no_pass(cpu: View) -> None:
    assert image_config.judge(cpu, []).status == ERROR


@each("text, mapped", [("0 0 4294967295", False), ("0 100000 65536", True), ("", False)])
def test_a_rootless_containers_root_is_nobody(monkeypatch: pytest.MonkeyPatch, text: str, *, mapped: bool) -> None:
    monkeypatch.setattr(control_group, "text", lambda _path: text)
    assert image_config.measure(RANK)["mapped"] == mapped


def test_this_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_config, "contained", lambda: True)
    measured = image_config.measure(RANK)
    assert measured["init"]
    assert (measured["image"], measured["contained"]) == (False, True)


def test_kubernetes_is_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_config, "_MARKS", ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not image_config.contained()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert image_config.contained()


CANARY = "canary"  # what must never be read out
LONG = CANARY * 6


@each(
    "line, actual",
    [
        (f"RUN |1 HF_TOKEN={CANARY} /bin/sh -c python get.py # buildkit", ["HF_TOKEN"]),
        (f"/bin/sh -c #(nop)  ENV AWS_SECRET_ACCESS_KEY={CANARY}", ["AWS_SECRET_ACCESS_KEY"]),
        (f'ENV API_KEY="{CANARY} b"', ["API_KEY"]),
        (f"RUN huggingface-cli login --token {CANARY}", ["--token"]),
        (f"RUN wget --password={CANARY} x", ["--password"]),
        (f"RUN pip install -i https://me:{CANARY}@mirror.example/simple x", ["a password in a URL"]),
        (f"RUN git clone https://{LONG}@git.example/x", ["a password in a URL"]),
        (f"RUN curl -H 'Authorization: Bearer {CANARY}' x", ["an Authorization header"]),
        (f"RUN echo hf_{LONG} > x", ["a Hugging Face token"]),
        (f"COPY ghp_{LONG} x", ["a GitHub token"]),
        (f"RUN echo {'AKIA' + 'CANARYCANARY1234'}", ["an AWS key"]),
        ("RUN echo '-----BEGIN " + "OPENSSH PRIVATE KEY-----'", ["a private key"]),
        (f"RUN A_TOKEN={CANARY} B_TOKEN={CANARY} A_TOKEN={CANARY} x", ["A_TOKEN", "B_TOKEN"]),
    ],
)
def test_a_credential_is_named_and_not_read_out(line: str, actual: list[str]) -> None:
    assert secret_patterns.line(line) == actual


@each("line", CASES["usual"])
def test_what_is_usual_is_none(line: str) -> None:
    assert secret_patterns.line(line) == []
