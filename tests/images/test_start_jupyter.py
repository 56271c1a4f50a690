"""start-jupyter: what it refuses, what it starts and with which inputs, and how it ends. The servers are stand-ins."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.data import data_path
from tests.waiting import eventually

SCRIPT = "context/targets/jupyter/start-jupyter"
TOKEN = "0123456789abcdef"  # noqa: S105 (an example)
# The script refuses root, and asks the system who it runs as: the user nobody is on every machine.
NOBODY = 65534 if os.geteuid() == 0 else None

# Writes down how it was started, and ends at SIGTERM; where the file `ends` is, it ends by itself.
STAND_IN = """#!/bin/sh
me=$SEEN/$(basename "$0")
trap 'echo >"$me.ended"; exit 0' TERM
env -0 >"$me.env"
printf '%s\\0' "$@" >"$me.writing" && mv "$me.writing" "$me.args"
[ ! -e "$me.ends" ] || exit 7
while :; do sleep 0.05; done
"""


@dataclasses.dataclass(frozen=True)
class Place:
    """A directory that anybody may enter: the script, stand-ins of both servers, a home, and what they were given."""

    root: Path

    def start(self, *arguments: str, **given: str) -> subprocess.Popen[str]:
        """Start the script as a container would, with this in its environment."""
        env = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "HOME": f"{self.root}/home",
            "SEEN": f"{self.root}/seen",
        }
        return subprocess.Popen(
            ["bash", self.root / "start-jupyter", *arguments],
            env={**env, **given},
            stderr=subprocess.PIPE,
            text=True,
            user=NOBODY,
        )

    def seen(self) -> set[str]:
        """Return what the servers wrote down."""
        return {path.name for path in (self.root / "seen").iterdir()}

    def arguments(self, server: str) -> list[str]:
        """Return the arguments a server was started with."""
        return (self.root / "seen" / f"{server}.args").read_text().split("\0")[:-1]

    def environment(self, server: str) -> dict[str, str]:
        """Return the environment a server was started in."""
        pairs = (self.root / "seen" / f"{server}.env").read_text().split("\0")[:-1]
        return dict(pair.split("=", 1) for pair in pairs)

    def state(self, name: str) -> Path:
        """Return a file of the script's own directory."""
        return self.root / "home/.start-jupyter" / name


@pytest.fixture
def place() -> Iterator[Place]:
    """Return such a directory; pytest's own are this user's alone."""
    root = Path(tempfile.mkdtemp(prefix="start-jupyter-"))
    root.chmod(0o755)
    shutil.copyfile(data_path("templates") / SCRIPT, root / "start-jupyter")
    (root / "bin").mkdir()
    for name in ("jupyter-lab", "sshd"):
        (root / "bin" / name).write_text(STAND_IN)
        (root / "bin" / name).chmod(0o755)
    for name in ("home", "seen"):
        (root / name).mkdir()
        (root / name).chmod(0o777)
    yield Place(root)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return a public and a private key."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    path = tmp_path_factory.mktemp("key") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text(), path.read_text()


def refused(process: subprocess.Popen[str]) -> str:
    """Return the one line of a script that ended with status 2."""
    error = process.communicate(timeout=60)[1]
    assert (process.returncode, error.count("\n")) == (2, 1), error
    return error.removeprefix("start-jupyter: ").strip()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"nothing was started: set JUPYTER_TOKEN .*, SSH_PUBLIC_KEY .* for ssh"),
        ({"JUPYTER_TOKEN": ""}, "JUPYTER_TOKEN is set and empty"),
        ({"JUPYTER_TOKEN": "hunter2"}, "JUPYTER_TOKEN has 7 characters, which can be guessed: 16 or more"),
        ({"JUPYTER_TOKEN": "correct horse battery"}, "JUPYTER_TOKEN holds blanks"),
        ({"JUPYTER_TOKEN": "correct-hörse-battery"}, "JUPYTER_TOKEN holds blanks, control or other characters"),
        ({"JUPYTER_TOKEN": TOKEN, "JUPYTER_TOKEN_FILE": "/t"}, "JUPYTER_TOKEN and JUPYTER_TOKEN_FILE are both set"),
        ({"JUPYTER_TOKEN_FILE": "correct-horse-battery"}, r"JUPYTER_TOKEN_FILE names no file that uid \d+ can read"),
        ({"JUPYTER_TOKEN_FILE": "/"}, "JUPYTER_TOKEN_FILE names a directory; docker makes one"),
        ({"JUPYTER_TOKEN_FILE": "/dev/null"}, "JUPYTER_TOKEN_FILE is set and empty"),
        ({"JUPYTER_TOKEN": TOKEN, "SSH_PUBLIC_KEY": " \n"}, "SSH_PUBLIC_KEY is set and empty"),
        ({"JUPYTER_TOKEN": TOKEN, "JUPYTER_PORT": "0"}, "JUPYTER_PORT is no port"),
        ({"JUPYTER_TOKEN": TOKEN, "JUPYTER_PORT": "http"}, "JUPYTER_PORT is no port"),
        ({"JUPYTER_TOKEN": TOKEN, "SSH_PORT": "65536"}, "SSH_PORT is no port"),
        ({"JUPYTER_TOKEN": TOKEN, "SSH_PORT": ""}, "SSH_PORT is no port"),
        (
            {"JUPYTER_TOKEN": TOKEN, "SSH_PUBLIC_KEY": "x", "SSH_PORT": "8888"},
            "JUPYTER_PORT and SSH_PORT are both 8888",
        ),
        ({"JUPYTER_TOKEN": TOKEN, "HOME": "/proc"}, r"uid \d+ cannot write /proc/.start-jupyter"),
        ({"JUPYTER_TOKEN": TOKEN, "HOME": ""}, "HOME is no absolute path"),
        ({"JUPYTER_TOKEN": TOKEN, "HOME": "home"}, "HOME is no absolute path"),
    ],
)
def test_a_wrong_input_is_one_line_and_nothing_starts(place: Place, given: dict[str, str], message: str) -> None:
    line = refused(place.start(**given))
    assert re.search(message, line), line
    # A secret in the wrong place is not shown to all who read the log.
    assert not re.search("hunter2|h.rse", line)
    assert place.seen() == set()


@pytest.mark.tools
@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hunter2", r"is no public key \(line 1\): give the line of a \.pub file"),
        ("{public}hunter2\n", r"is no public key \(line 2\)"),
        ("{private}", "is a private key: give the line of its .pub file instead"),
        ("# hunter2\n", "holds comments only"),
        # ssh-keygen reads the key in these. sshd would never take the first two, the third is not what anybody meant.
        ("hunter2.com {public}", r"has something before the key \(line 1\): .* without options or a host's name"),
        ("{public}nonsense {public}", r"has something before the key \(line 2\)"),
        ('command="hunter2" {public}', r"has something before the key \(line 1\)"),
        ("ssh-rsa {public}", r"has something before the key \(line 1\)"),
    ],
)
def test_a_key_that_is_a_password_or_a_private_key_is_refused(
    place: Place, pair: tuple[str, str], what: str, message: str, *, as_file: bool
) -> None:
    key = what.format(public=pair[0], private=pair[1])
    (place.root / "given").write_text(key)
    given = {"SSH_PUBLIC_KEY_FILE": f"{place.root}/given"} if as_file else {"SSH_PUBLIC_KEY": key}
    line = refused(place.start(JUPYTER_TOKEN=TOKEN, **given))
    assert re.search(f"^{next(iter(given))} {message}", line), line
    assert "hunter2" not in line
    assert place.seen() == set()


@pytest.mark.skipif(NOBODY is None, reason="needs root")
def test_root_is_refused(place: Place) -> None:
    completed = subprocess.run(
        ["bash", place.root / "start-jupyter"], env={"HOME": "/x"}, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1)
    assert "this is root" in completed.stderr


def test_jupyter_gets_the_token_in_a_file_of_its_own_and_sshd_does_not_start(place: Place) -> None:
    # The port of a server that is not started is in nobody's way.
    process = place.start("--ServerApp.base_url=/lab/", JUPYTER_TOKEN=TOKEN, SSH_PORT="8888")
    assert eventually(lambda: "jupyter-lab.args" in place.seen(), expected=True)
    arguments, environment = place.arguments("jupyter-lab"), place.environment("jupyter-lab")
    token = Path(environment["JUPYTER_TOKEN_FILE"])
    assert (token.read_text(), token.stat().st_mode & 0o777) == (TOKEN, 0o600)
    process.terminate()
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 0, message
    assert TOKEN not in message
    assert not [text for text in (*arguments, *environment.values()) if TOKEN in text]
    assert arguments[-1] == "--ServerApp.base_url=/lab/"
    assert {"--ServerApp.ip=0.0.0.0", "--ServerApp.port=8888", "--ServerApp.port_retries=0"} <= set(arguments)
    assert not token.exists(), "it outlives the server on a volume"
    assert token.parent.stat().st_mode & 0o777 == 0o700
    assert not {"sshd.args", "sshd.env"} & place.seen()


@pytest.mark.tools
def test_sshd_takes_keys_only_and_gives_a_session_the_containers_environment(
    place: Place, pair: tuple[str, str]
) -> None:
    odd = 'a "b" \\c #d $HOME'
    process = place.start(SSH_PUBLIC_KEY=pair[0], HF_HOME="/data/hf", ODD=odd, LINES="1\n2", NVIDIA_VISIBLE_DEVICES="0")
    assert eventually(lambda: "sshd.args" in place.seen(), expected=True)
    process.terminate()
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 0, message
    config = place.state("sshd_config").read_text()
    lines = config.splitlines()
    for line in ("PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin no", "UsePAM no"):
        assert line in lines
    assert "AuthenticationMethods publickey" in lines
    assert place.state("authorized_keys").read_text().strip() == pair[0].strip()
    assert place.state("host_key").stat().st_mode & 0o777 == 0o600
    (set_env,) = [line for line in lines if line.startswith("SetEnv ")]
    for name, value in {"HF_HOME": "/data/hf", "NVIDIA_VISIBLE_DEVICES": "0", "ODD": odd}.items():
        assert json.dumps(f"{name}={value}") in set_env
    assert "SSH_PUBLIC_KEY" not in config
    assert "jupyter-lab.args" not in place.seen()
    # Whoever logs in can compare it.
    fingerprint = subprocess.run(
        ["ssh-keygen", "-l", "-f", place.state("host_key.pub")], capture_output=True, text=True, check=True
    )
    assert fingerprint.stdout.split()[1] in message


@pytest.mark.tools
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both(place: Place, pair: tuple[str, str], number: int) -> None:
    process = place.start(JUPYTER_TOKEN=TOKEN, SSH_PUBLIC_KEY=pair[0])
    assert eventually(lambda: {"sshd.args", "jupyter-lab.args"} <= place.seen(), expected=True)
    process.send_signal(number)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 0, message
    assert {"sshd.ended", "jupyter-lab.ended"} <= place.seen()


@pytest.mark.tools
@pytest.mark.parametrize(
    ("ends", "other", "named"), [("sshd", "jupyter-lab", "sshd"), ("jupyter-lab", "sshd", "JupyterLab")]
)
def test_where_one_server_ends_by_itself_the_other_is_ended_too(
    place: Place, pair: tuple[str, str], ends: str, other: str, named: str
) -> None:
    (place.root / "seen" / f"{ends}.ends").touch()
    process = place.start(JUPYTER_TOKEN=TOKEN, SSH_PUBLIC_KEY=pair[0])
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert f"start-jupyter: {named} ended by itself" in message
    assert f"{other}.args" not in place.seen() or f"{other}.ended" in place.seen()
