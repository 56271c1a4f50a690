"""A network with one mirror in it: a namespace whose only way out leads to us, and the list of all it asked for.

Whatever leaves it comes out of one virtual cable at an edge that has nothing else. There every packet that begins
something is noted, below any firewall: TCP's first, every datagram, every neighbour that is looked for, of IPv4 and
IPv6. A name server at the edge knows the mirror's name alone, and notes each name it hears.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import dataclasses
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.packets import FIRSTS, Destination, answered, asked_name, destination

MIRROR = "mirror.test"
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
CABLE = "eth0"
# Addresses that are set aside for tests of networks (RFC 2544, RFC 5180).
ADDRESS, INSIDE = "198.18.0.1", "198.18.0.2"
ADDRESS6, INSIDE6 = "2001:2::1", "2001:2::2"
CLONE_NEWNET = 0x40000000
SO_ATTACH_FILTER, SOL_PACKET, PACKET_STATISTICS, PACKET_OUTGOING, ETH_P_ALL = 26, 263, 6, 4, 0x0003


class CannotCloseError(Exception):
    """Why this machine can have no such network."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A closed network. Processes run inside; the mirror's sockets listen at the edge, which has no other way out."""

    inside: int
    edge: int
    _recorder: _Recorder
    _names: _Names

    def argv(self, *command: str | Path) -> list[str]:
        """Return what runs a command inside, in the directory that it is called in."""
        into = ["nsenter", f"--target={self.inside}", "--net", "--mount"]
        return [*into, "sh", "-c", 'cd "$0" && exec "$@"', str(Path.cwd()), *map(str, command)]

    def run(
        self, *command: str | Path, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        argv = self.argv(*command)
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=timeout)

    def listen(self, port: int) -> socket.socket:
        """Return a socket of this process that listens at the mirror's address; its others stay where they are."""
        return _in(self.edge, lambda: socket.create_server((ADDRESS, port), backlog=64))

    def destinations(self) -> set[Destination]:
        """Return every destination asked for until now, and forget them. Fail where the kernel dropped one."""
        return self._recorder.take() | self._names.take()


def strangers(destinations: Iterable[Destination]) -> set[Destination]:
    """Return those that are not the mirror. apt asks by name which of its hosts serves https (RFC 2782)."""
    return {one for one in destinations if one.where not in {MIRROR, f"_https._tcp.{MIRROR}", ADDRESS, ADDRESS6}}


@contextlib.contextmanager
def closed_network() -> Iterator[Network]:
    """Make a network and take it away. CannotCloseError says why there can be none."""
    if os.geteuid() != 0:
        message = "a network of this kind needs root"
        raise CannotCloseError(message)
    _have_ip()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="closed-")))
        edge = stack.enter_context(_namespace("ip link set lo up"))
        inside = stack.enter_context(_namespace(_own_names(scratch)))
        _lay(edge, inside)
        recorder, names = _Recorder(edge), _Names(edge)
        stack.enter_context(recorder.running())
        stack.enter_context(names.running())
        yield Network(inside, edge, recorder, names)


def _have_ip() -> None:
    """Install iproute2 where it is missing, as it cannot be run unpacked: its libraries are packages of their own."""
    if shutil.which("ip", path=PATH) is None and shutil.which("apt-get") is not None:
        for words in (("update",), ("install", "--yes", "--no-install-recommends", "iproute2")):
            subprocess.run(["apt-get", "-qq", *words], check=False, capture_output=True)
    if shutil.which("ip", path=PATH) is None:
        message = "no ip on this machine (Debian's and Ubuntu's package iproute2)"
        raise CannotCloseError(message)


def _own_names(scratch: Path) -> str:
    """Return the commands after which names are asked of the edge alone, and /sys tells of the network they run in."""
    (scratch / "resolv.conf").write_text(f"nameserver {ADDRESS}\noptions timeout:2 attempts:2\n")
    (scratch / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (scratch / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (scratch / "groups").mkdir()
    binds = [f"mount --bind {scratch}/{name} /etc/{name}" for name in ("resolv.conf", "hosts", "nsswitch.conf")]
    # The control groups below /sys are the machine's all the same.
    there, groups = "/sys/fs/cgroup", f"{scratch}/groups"
    sys = [f"mount --rbind {there} {groups}", "mount -t sysfs sysfs /sys", f"mount --rbind {groups} {there}"]
    return " && ".join([*binds, *sys, f"umount --lazy {groups}", "ip link set lo up"])


@contextlib.contextmanager
def _namespace(script: str) -> Iterator[int]:
    """Give the process that holds a network, and mounts, of its own, once the script has run in it."""
    pipe = subprocess.PIPE
    words = ["unshare", "--net", "--mount", "sh", "-c", f"{script} && echo ready && exec cat"]
    with subprocess.Popen(words, env={"PATH": PATH}, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stderr
        if holder.stdout.readline() != "ready\n":
            message = f"no network namespace may be made here: {holder.stderr.read().strip()}"
            raise CannotCloseError(message)
        try:
            yield holder.pid
        finally:
            holder.stdin.close()


def _lay(edge: int, inside: int) -> None:
    """Lay the cable; inside it is the default route of both protocols."""
    _ip(edge, "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", str(inside))
    for end, addresses in ((edge, (ADDRESS, ADDRESS6)), (inside, (INSIDE, INSIDE6))):
        _ip(end, "address", "add", f"{addresses[0]}/24", "dev", CABLE)
        _ip(end, "address", "add", f"{addresses[1]}/64", "dev", CABLE, "nodad")
        _ip(end, "link", "set", CABLE, "up")
    for address in (ADDRESS, ADDRESS6):
        _ip(inside, "route", "add", "default", "via", address)
    # Who does not answer is asked for once: what is repeated a second later would be in the list of what came after.
    for table in ("arp_cache", "ndisc_cache"):
        _ip(inside, "ntable", "change", "name", table, "dev", CABLE, "mcast_probes", "1")


def _ip(pid: int, *arguments: str) -> None:
    command = ["nsenter", f"--target={pid}", "--net", "ip", *arguments]
    completed = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    if completed.returncode:
        message = f"`ip {' '.join(arguments)}`: {completed.stderr.strip()}"
        raise CannotCloseError(message)


def _in(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket made in another process's network: it stays there, and the thread that made it ends."""

    def enter() -> socket.socket:
        with Path(f"/proc/{pid}/ns/net").open("rb") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return make()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result()


class _KeptNamespace(abc.ABC):
    """Destinations, noted by a thread of its own until the block ends."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._seen: set[Destination] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._socket.close()

    @abc.abstractmethod
    def _work(self) -> None:
        """Note what comes until the block ends."""

    def _note(self, one: Destination) -> None:
        with self._lock:
            self._seen.add(one)

    def take(self) -> set[Destination]:
        with self._lock:
            seen, self._seen = self._seen, set()
        return seen


class _Recorder(_KeptNamespace):
    """Notes what comes out of the cable at the edge."""

    def __init__(self, edge: int) -> None:
        super().__init__(_in(edge, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)))
        buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in FIRSTS))
        attach = struct.pack("HL", len(FIRSTS), ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attach)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.settimeout(0.05)
        self._socket.bind((CABLE, ETH_P_ALL))
        self._quiet = threading.Event()

    def take(self) -> set[Destination]:
        self._quiet.clear()
        assert self._quiet.wait(30), "it never fell silent"
        _, dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        assert dropped == 0, f"{dropped} packets were not seen"
        return super().take()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                frame, about = self._socket.recvfrom(256)
            except TimeoutError:
                self._quiet.set()
                continue
            actual = destination(frame) if about[2] != PACKET_OUTGOING else None
            if actual is not None:
                self._note(actual)


class _Names(_KeptNamespace):
    """A name server that knows the mirror, and notes whom it was asked for; by UDP, as every client asks first."""

    def __init__(self, edge: int) -> None:
        super().__init__(_in(edge, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        self._socket.settimeout(0.1)
        self._socket.bind((ADDRESS, 53))

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                query, client = self._socket.recvfrom(4096)
            except TimeoutError:
                continue
            name, _ = asked_name(query)
            self._note(Destination("dns", name))
            with contextlib.suppress(OSError):
                self._socket.sendto(answered(query, ADDRESS if name == MIRROR else None), client)
