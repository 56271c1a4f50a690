"""The target jupyter on a real engine: HTTP and ssh from outside, a notebook, any user, and what must not be there."""

import dataclasses
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import layers
from tests.e2e.conftest import BUILD, CELL, ROOT, Machine, download
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

TOKEN = "canary-token-0123456789abcdef"  # noqa: S105 (an example)
USER = "12345:12345"
# What a session is to have as it was given.
GIVEN = {"HF_HOME": "/data/hf", "NVIDIA_VISIBLE_DEVICES": "none", "ODD": 'a "b" \\c #d $HOME'}
NOTEBOOK = {
    "cells": [{"cell_type": "code", "source": "import torch\ntorch.ones(2).sum()", "metadata": {}, "outputs": []}],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "nbformat": 4,
    "nbformat_minor": 4,
}
NOTEBOOK["cells"][0]["execution_count"] = None  # type: ignore[index]
# Ports that somebody listens on (0A), but for those on 127.0.0.1 (0100007F), where kernels and extensions talk.
OPEN_PORTS = r"""awk '$4 == "0A" && $2 !~ /^0100007F/ { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6"""


@dataclasses.dataclass(frozen=True)
class JupyterServer:
    """A running container of the image, and who may log in."""

    machine: Machine
    image: str
    name: str
    keys: Path

    @property
    def address(self) -> str:
        output = self.machine.docker("inspect", "--format={{.NetworkSettings.IPAddress}}", self.name).stdout
        return output.strip()

    def logs(self) -> str:
        completed = self.machine.docker("logs", self.name)
        return completed.stdout + completed.stderr

    def http(self, path: str, token: str | None = None, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of a request to JupyterLab."""
        headers = {"Authorization": f"token {token}"} if token else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}:8888{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 (an address of this test)
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None
        except OSError:
            return 0, None

    def ssh(
        self, command: str, *options: str, user: str = "envcheck", key: str = "key"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command over ssh, from a container that has nothing but a client and the key."""
        hosts = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
        mounted = f"--volume={self.keys}:/keys:ro"
        client = ("run", "--rm", "--user=0", "--entrypoint=ssh", mounted, self.image, *hosts, "-o", "BatchMode=yes")
        return self.machine.docker(*client, *options, "-i", f"/keys/{key}", f"{user}@{self.address}", command)

    def ports(self) -> set[int]:
        """Return the TCP ports that somebody listens on inside, on any address but 127.0.0.1."""
        listed = self.machine.docker("exec", self.name, "sh", "-c", OPEN_PORTS).stdout
        return {int(port, 16) for port in listed.split()}


@pytest.fixture(scope="module")
def image(machine: Machine) -> str:
    """Return the image; its layers up to torch are those of the target runtime."""
    download(ROOT / "images" / CELL / "jupyter.lock", machine.index.wheels)
    done = machine.envcheck(*BUILD, "--target", "jupyter", "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["image"])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory, machine: Machine, image: str) -> Path:
    """Return a directory with a key that may log in and another that may not."""
    into = tmp_path_factory.mktemp("keys")
    make = "for name in key other; do ssh-keygen -q -t ed25519 -N '' -f /keys/$name; done; chmod a+r /keys/*.pub"
    machine.docker("run", "--rm", "--user=0", f"--volume={into}:/keys", image, "sh", "-c", make)
    assert (into / "other").is_file()
    return into


@pytest.fixture(scope="module")
def served(machine: Machine, image: str, keys: Path) -> Iterator[JupyterServer]:
    """Return a container with both servers, run by a user that no file of the image knows, with a new volume."""
    given = {**GIVEN, "JUPYTER_TOKEN": TOKEN, "SSH_PUBLIC_KEY": (keys / "key.pub").read_text()}
    environment = [f"--env={name}={value}" for name, value in given.items()]
    volume = "--volume=code:/workspace/code"
    completed = machine.docker("run", "--detach", "--name=served", f"--user={USER}", volume, *environment, image)
    assert completed.returncode == 0, completed.stderr
    served = JupyterServer(machine, image, "served", keys)
    assert eventually(lambda: served.http("/api/status", TOKEN)[0], 200) == 200, served.logs()
    yield served
    machine.docker("rm", "--force", "--volumes", "served")


def test_nothing_listens_without_a_token_or_a_key(machine: Machine, image: str) -> None:
    completed = machine.docker("run", "--rm", image)
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1), completed.stderr
    assert "JUPYTER_TOKEN" in completed.stderr
    assert "SSH_PUBLIC_KEY" in completed.stderr


def test_jupyter_answers_the_token_alone(served: JupyterServer) -> None:
    assert [served.http("/api/contents", token)[0] for token in (None, "0123456789abcdef", TOKEN)] == [403, 403, 200]


def test_the_token_is_on_no_command_line_in_no_log_and_in_no_kernel(served: JupyterServer) -> None:
    assert served.http(f"/api/contents?token={TOKEN}")[0] == 200
    status, kernel = served.http("/api/kernels", TOKEN, "POST", {})
    assert status == 201
    running = served.machine.docker("top", "served", "-eo", "pid,args").stdout
    assert "jupyter-lab" in running
    assert "ipykernel" in running
    assert TOKEN not in running
    assert TOKEN not in served.logs()
    # In brackets, so that it does not find itself: what docker executes has the container's own environment.
    environments = "cat $(grep -lz '[i]pykernel' /proc/[0-9]*/cmdline | sed s/cmdline/environ/)"
    environment = served.machine.docker("exec", "served", "sh", "-c", environments).stdout
    assert "HF_HOME=/data/hf" in environment
    assert TOKEN not in environment
    assert served.http(f"/api/kernels/{kernel['id']}", TOKEN, "DELETE")[0] == 204


def test_ssh_takes_the_key_and_a_session_has_the_containers_environment(served: JupyterServer) -> None:
    completed = served.ssh("id -un; id -u; command -v python; env")
    assert completed.returncode == 0, completed.stderr
    name, number, python, *environment = completed.stdout.splitlines()
    assert (name, number, python) == ("envcheck", "12345", "/opt/venv/bin/python")
    assert {f"{name}={value}" for name, value in GIVEN.items()} <= set(environment)
    assert not [line for line in environment if line.startswith(("JUPYTER_TOKEN", "SSH_PUBLIC_KEY"))]
    # A terminal of JupyterLab is a login shell, whose profile sets another PATH.
    assert served.ssh("bash -lc 'command -v python'").stdout == "/opt/venv/bin/python\n"
    terminal = served.ssh("tty && echo there", "-tt").stdout
    assert terminal.split() == ["/dev/pts/0", "there"]


@pytest.mark.parametrize(
    ("options", "user", "key"),
    [(("-o", "PubkeyAuthentication=no"), "envcheck", "key"), ((), "envcheck", "other"), ((), "root", "key")],
    ids=["no key", "another key", "root"],
)
def test_ssh_takes_no_password_no_stranger_and_no_root(
    served: JupyterServer, options: tuple[str, ...], user: str, key: str
) -> None:
    completed = served.ssh("true", *options, user=user, key=key)
    assert completed.returncode == 255
    # A server that takes a password names it here.
    assert completed.stderr.strip().endswith("Permission denied (publickey)."), completed.stderr


def test_a_notebook_runs_a_cell_in_the_volume(served: JupyterServer) -> None:
    body = {"type": "notebook", "format": "json", "content": NOTEBOOK}
    assert served.http("/api/contents/one.ipynb", TOKEN, "PUT", body)[0] == 201
    completed = served.ssh("cd /workspace/code && jupyter execute --inplace one.ipynb")
    assert completed.returncode == 0, completed.stderr
    status, saved = served.http("/api/contents/one.ipynb", TOKEN)
    assert status == 200
    (output,) = saved["content"]["cells"][0]["outputs"]
    assert output["data"]["text/plain"] == "tensor(2.)"


def test_the_default_user_with_files_has_the_one_server_that_was_asked_for(
    machine: Machine, image: str, keys: Path
) -> None:
    mounted = f"--volume={keys}/key.pub:/run/key.pub:ro"
    given = (mounted, "--env=SSH_PUBLIC_KEY_FILE=/run/key.pub", "--env=SSH_PORT=2222")
    assert machine.docker("run", "--detach", "--name=one", *given, image).returncode == 0
    served = JupyterServer(machine, image, "one", keys)
    try:
        assert eventually(lambda: "Server listening" in served.logs(), expected=True), served.logs()
        assert served.ports() == {2222}
        assert served.ssh("id -un; echo $SHELL", "-p", "2222").stdout.split() == ["envcheck", "/bin/bash"]
    finally:
        machine.docker("rm", "--force", "one")


def test_no_layer_holds_a_host_key_or_a_secret_of_the_build(machine: Machine, image: str, tmp_path: Path) -> None:
    # A name as an archive's header begins with it; programs and comments have it too, but after a slash.
    there = "\0etc/ssh/moduli"
    needles = [*machine.canaries.values(), machine.index.url, "\0etc/ssh/ssh_host_", TOKEN, there]
    assert set(layers.search(image, needles, machine.env, tmp_path)) == {there}
    shadow = machine.docker("run", "--rm", "--user=0", image, "grep", "sshd", "/etc/shadow").stdout
    assert shadow.split(":")[2] == "7305", "the day of the build is in it"


def test_stopping_ends_both_within_seconds_and_the_host_key_stays(served: JupyterServer) -> None:
    before = [line for line in served.logs().splitlines() if "host key SHA256:" in line]
    assert served.http("/api/kernels", TOKEN, "POST", {})[0] == 201
    assert served.ports() == {22, 8888}
    begin = time.monotonic()
    served.machine.docker("stop", "--time=20", "served")
    assert time.monotonic() - begin < 15
    assert served.machine.docker("inspect", "--format={{.State.ExitCode}}", "served").stdout.strip() == "0"
    served.machine.docker("start", "served")
    assert eventually(lambda: served.logs().count(before[0]), 2) == 2, served.logs()
