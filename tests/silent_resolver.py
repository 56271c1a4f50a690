"""A namespace whose only name server hears every question and answers none, as in many a container.

    python tests/silent_resolver.py HOSTS QUESTIONS CMD...    HOSTS stands for /etc/hosts; each packet adds to QUESTIONS

Run under `unshare --net --mount --uts` (and --map-root-user where this user is not root).
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

USUAL = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
SERVER = "127.0.0.53"
NAME = "lonely"
_UNSHARE = ["unshare", "--net", "--mount", "--uts", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def command(*argv: str | Path, hosts: Path, questions: Path) -> list[str]:
    """Return what runs a command there; skips the test where this user may make no namespaces."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may make no network namespace")
    return [*_UNSHARE, sys.executable, __file__, str(hosts), str(questions), *map(str, argv)]


def main(hosts: str, questions: str, argv: list[str]) -> int:
    """Set the namespace up and run the command in it."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, env={"PATH": path})
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((SERVER, 53))
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(f"nameserver {SERVER}\n")
        conf.flush()
        for ours, theirs in ((conf.name, "/etc/resolv.conf"), (hosts, "/etc/hosts")):
            subprocess.run(["mount", "--bind", ours, theirs], check=True)
        socket.sethostname(NAME)
        threading.Thread(target=_listen, args=(server, questions), daemon=True).start()
        return subprocess.run(argv, check=False).returncode


def _listen(server: socket.socket, questions: str) -> None:
    while True:
        packet = server.recv(1500)
        with Path(questions).open("ab") as stream:
            stream.write(packet[12:].hex().encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
