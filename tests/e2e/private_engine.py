"""A modern docker engine of the tests' own, on a root Debian or Ubuntu: nothing of the host's is used or changed.

    python tests/e2e/private_engine.py exec -- CMD...     CMD with DOCKER_HOST set; the engine ends with it
    python tests/e2e/private_engine.py offer -- CMD...    the same, its images kept for the next; where an engine
                                                          answers already or none can be had, just CMD

The distribution's own packages are unpacked (not installed) under .envcheck/engine, once. Each start has its own
socket, configuration, exec root and pid file in a directory that is removed when it ends, and so is the data root
of `exec`. Only mmdebstrap, which makes the base of an image and cannot be run unpacked, is installed where missing.
"""

import contextlib
import dataclasses
import fcntl
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".envcheck" / "engine"
# The last two are compose: Debian's name and Ubuntu's.
PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd", "docker-compose", "docker-compose-v2")
# Docker before 23 has no BuildKit with heredocs; these releases run the next one's packages (they need glibc 2.34)
# but not its runc (2.38), which stays the release's own.
NEWER_ENGINE = {"bookworm": "trixie"}
# From linux/sockios.h and linux/if.h: a bridge without needing iproute2.
SIOCBRADDBR, SIOCBRDELBR, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS, IFF_UP = 0x89A0, 0x89A1, 0x8916, 0x891C, 0x8914, 1
# Seconds for dockerd to answer: a second or two, and a minute on two busy cores.
PATIENCE = 180


class CannotStartError(Exception):
    """Why this machine can have no private engine."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """A running engine: where it is and the environment its clients need."""

    root: Path
    run: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return what to set so that docker, the SDK and envcheck use this engine and no other."""
        return {
            "DOCKER_HOST": f"unix://{self.run}/docker.sock",
            "DOCKER_CONFIG": str(self.run / "config"),
            "PATH": f"{self.root}/usr/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
        }


@contextlib.contextmanager
def private_engine(*, keep: bool = False) -> Iterator[Engine]:
    """Start an engine, and end it and all it left when the block ends; `keep` what it holds for the next that does."""
    root = unpacked()
    _sweep()
    run = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=CACHE))
    with _guarded(run), _data(run, keep=keep) as data, _bridge(_bridge_of(run)) as bridge:
        process = _spawn(root, run, data, bridge)
        try:
            yield _ready(Engine(root, run), process)
        finally:
            _stop(process)
            _unmount(data)  # what a build that was cut off left
            _clean(run)


@contextlib.contextmanager
def _data(run: Path, *, keep: bool) -> Iterator[Path]:
    """Give the data root: the kept one, which one engine at a time may have, or one that goes with the engine."""
    if not keep:
        yield run / "data"
        return
    with (CACHE / "data.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = "another command has the private engine whose images are kept"
            raise CannotStartError(message) from error
        _unmount(CACHE / "data")  # nobody has it: what is mounted there, a killed engine left
        yield CACHE / "data"


@contextlib.contextmanager
def _guarded(run: Path) -> Iterator[None]:
    """Have a process wait for the end of this one, however it comes, and then end what it left."""
    argv = [sys.executable, __file__, "guard", str(run)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True):
        yield


def _guard(run: Path) -> None:
    """Read until the end of the process that holds the other end, which may have cleaned up itself."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    if run.exists():
        _end(run)


def _sweep() -> None:
    """End and remove what a start left that was killed together with its guard."""
    for run in CACHE.glob("run-*"):
        if not Path("/proc", run.name.split("-")[1]).exists():
            _end(run)


def _end(run: Path) -> None:
    """End a start's dockerd, unmount what it mounted, and remove its files and bridge."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((run / "pid").read_text(encoding="ascii"))
        if str(run) in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8"):
            os.killpg(pid, signal.SIGTERM)
            deadline = time.monotonic() + 30
            while Path(f"/proc/{pid}/exe").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            _kill_group(pid)
    _clean(run)
    _remove_bridge(_bridge_of(run))
    with contextlib.suppress(CannotStartError), _data(run, keep=True):
        pass  # taking it unmounts what is left there


def _bridge_of(run: Path) -> str:
    """Return the name of a start's bridge: one process may start two engines."""
    return f"envc-{run.name.rpartition('-')[2]}"


@contextlib.contextmanager
def _bridge(name: str) -> Iterator[str]:
    """Make a bridge of our own: docker0 may be another engine's, and `bridge: none` would delete it."""
    address, netmask = _free_subnet(), "255.255.255.0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, SIOCBRADDBR, name.encode() + b"\0")
            for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, netmask)):
                ifreq = struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, ifreq)
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", name.encode(), IFF_UP))
        except OSError as error:
            message = f"this kernel makes no bridge: {error}"
            raise CannotStartError(message) from error
    try:
        yield name
    finally:
        _remove_bridge(name)


def _remove_bridge(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, contextlib.suppress(OSError):
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", name.encode(), 0))
        fcntl.ioctl(control, SIOCBRDELBR, name.encode() + b"\0")


def unpacked() -> Path:
    """Return the root the engine's packages are unpacked in; CannotStartError says why there can be none."""
    if os.geteuid() != 0:
        message = "a private engine needs root"
        raise CannotStartError(message)
    if shutil.which("apt-get") is None:
        message = "a private engine is unpacked from Debian's or Ubuntu's packages; this machine has no apt"
        raise CannotStartError(message)
    if shutil.which("mmdebstrap") is None:
        _run("apt-get", "-qq", "update")
        wait = ("-o", "DPkg::Lock::Timeout=120")
        _run("apt-get", "-qq", *wait, "install", "--yes", "--no-install-recommends", "mmdebstrap")
    root = CACHE / "root-with-compose"  # another name whenever PACKAGES change
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "unpack.lock").open("w") as lock:  # another process of the tests may be unpacking them
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "usr/sbin/dockerd").exists():
            with tempfile.TemporaryDirectory(prefix="unpack-", dir=CACHE) as scratch:
                _unpack(Path(scratch))
                (Path(scratch) / "root").rename(root)
    return root


def _unpack(scratch: Path) -> None:
    codename = release()
    download(scratch / "engine", NEWER_ENGINE.get(codename, codename), PACKAGES)
    download(scratch / "runc", codename, ("runc",))
    for deb in sorted(scratch.glob("*/*.deb")):
        _run("dpkg-deb", "-x", str(deb), str(scratch / "root"))


def release() -> str:
    text = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE)
    if text is None:
        message = "/etc/os-release names no release"
        raise CannotStartError(message)
    return text[1]


def download(into: Path, suite: str, packages: tuple[str, ...], *, expired: bool = False) -> None:
    """Fetch packages of a suite from the hosts this machine's apt uses, with lists of our own.

    `expired`: its list may be older than it says that it should be used, as a mirror's of an unreleased suite often is.
    """
    apt = _private_apt(into, suite, expired=expired)
    known = set(_run("apt-cache", "pkgnames", env=apt).split())
    _run("apt-get", "-qq", "download", *(p for p in packages if p in known), env=apt, cwd=into)


def _private_apt(into: Path, suite: str, *, expired: bool = False) -> dict[str, str]:
    """Return the environment of an apt with lists of its own, which are read."""
    for part in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "etc/trusted.gpg.d"):
        (into / part).mkdir(parents=True)
    (into / "status").touch()
    for keyring in (*Path("/etc/apt/trusted.gpg.d").glob("*.*"), *Path("/usr/share/keyrings").glob("*archive*.gpg")):
        (into / "etc/trusted.gpg.d" / keyring.name).symlink_to(keyring)
    (into / "etc/sources.list").write_text(_sources(suite), encoding="utf-8")
    (into / "apt.conf").write_text(
        f'Dir::Etc "{into}/etc"; Dir::State::Lists "{into}/lists"; Dir::Cache "{into}/cache";\n'
        f'Dir::State::status "{into}/status"; APT::Sandbox::User "root";\n'
        f'Acquire::Check-Valid-Until "{"false" if expired else "true"}";\n',
        encoding="utf-8",
    )
    apt = {**os.environ, "APT_CONFIG": str(into / "apt.conf")}
    _run("apt-get", "-qq", "update", env=apt)
    return apt


def _sources(suite: str) -> str:
    """Return source lines for a suite, at the places this machine's apt has its own release from."""
    codename = release()
    template = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = _run("apt-get", "indextargets", "--format", template, "Created-By: Packages")
    expected = {codename, f"{codename}-updates"} if suite == codename else {codename}
    rows = (line.split() for line in listed.splitlines())
    lines = {
        f"deb {uri} {release.replace(codename, suite)} {part}\n" for uri, release, part in rows if release in expected
    }
    if not lines:
        message = f"this machine's apt sources do not name {codename}"
        raise CannotStartError(message)
    return "".join(sorted(lines))


def _spawn(root: Path, run: Path, data: Path, bridge: str) -> subprocess.Popen[bytes]:
    (run / "config").mkdir()
    plugins = json.dumps({"cliPluginsExtraDirs": [str(root / "usr/libexec/docker/cli-plugins")]})
    (run / "config/config.json").write_text(plugins, encoding="utf-8")
    (run / "daemon.json").write_text(json.dumps(_configuration(bridge)), encoding="utf-8")
    path = f"{root}/usr/sbin:{root}/usr/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
    with (run / "log").open("wb") as log:
        return subprocess.Popen(
            [
                root / "usr/sbin/dockerd",
                *("--config-file", run / "daemon.json"),
                *("--data-root", data),
                *("--exec-root", run / "exec"),
                *("--host", f"unix://{run}/docker.sock"),
                *("--pidfile", run / "pid"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )


def _configuration(bridge: str) -> dict[str, object]:
    """No rule of the host's firewall is touched; the outside is reached by --network host."""
    features = {"containerd-snapshotter": True}
    return {"features": features, "bridge": bridge, "mtu": _mtu(), "iptables": False, "ip6tables": False}


def _routes() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]]


def _mtu() -> int:
    """Return the default route's MTU: a bridge with a larger one loses packets where the path is narrower."""
    device = next((fields[0] for fields in _routes() if fields[1] == "00000000"), "lo")
    return min(1500, int(Path(f"/sys/class/net/{device}/mtu").read_text(encoding="ascii")))


def _free_subnet() -> str:
    """Return the first address of a private /24 that no route of this machine covers."""
    used = []
    for fields in _routes():
        address, mask = (int.from_bytes(bytes.fromhex(fields[i]), "little") for i in (1, 7))
        if mask:
            used.append(ipaddress.ip_network((address, mask.bit_count())))
    candidates = [ipaddress.ip_network(f"172.{second}.0.0/24") for second in range(30, 16, -1)]
    return str(next((c for c in candidates if not any(c.overlaps(u) for u in used)), candidates[0])[1])


def _ready(engine: Engine, process: subprocess.Popen[bytes]) -> Engine:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if _answers({**os.environ, **engine.environment}):
            return engine
        time.sleep(0.1)
    message = f"dockerd did not come up: {(engine.run / 'log').read_text(errors='replace')[-300:]}"
    raise CannotStartError(message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End dockerd, which ends its containerd; what is left of the group, because dockerd was killed, ends too."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    _kill_group(process.pid)
    process.wait()


def _kill_group(leader: int) -> None:
    """Kill a process group, and wait until none of it is left: a containerd still writes for a moment."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(30):
            os.killpg(leader, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(leader, os.WNOHANG)
            time.sleep(0.1)


def _clean(run: Path) -> None:
    """Unmount and remove a start's files; what a killed build's processes still write is removed with the next try."""
    for _ in range(20):
        _unmount(run)
        shutil.rmtree(run, ignore_errors=True)
        if not run.exists():
            return
        time.sleep(0.5)


def _unmount(directory: Path) -> None:
    """Unmount a directory, which dockerd mounts on itself, and all below it."""
    mounted = (line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines())
    for point in sorted((m for m in mounted if f"{m}/".startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False)


def _run(*argv: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    completed = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if completed.returncode == 0:
        return completed.stdout
    message = f"{argv[0]} {argv[1]} failed: {completed.stderr.strip()[-300:]}"
    raise CannotStartError(message)


def main(argv: list[str]) -> int:
    if argv[:1] == ["guard"] and len(argv) == 2:
        _guard(Path(argv[1]))
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    if argv[:1] not in (["exec"], ["offer"]) or argv[1:2] != ["--"] or not argv[2:]:
        sys.stderr.write(f"usage: {__file__} exec|offer -- COMMAND...\n")
        return 2
    env: dict[str, str] = {}
    if argv[0] == "offer" and _answers(os.environ):
        return subprocess.run(argv[2:], check=False).returncode
    with contextlib.ExitStack() as running:
        try:
            env = running.enter_context(private_engine(keep=argv[0] == "offer")).environment
        except CannotStartError as error:
            sys.stderr.write(f"no private container engine: {error}\n")
            if argv[0] == "exec":
                return 3
        status = subprocess.run(argv[2:], env={**os.environ, **env}, check=False).returncode
        if env and argv[0] == "offer":
            sys.stderr.write("the private engine ends here; `make engine` opens a shell beside it, with its images\n")
        return status


def _ended(number: int, _: object) -> None:
    sys.exit(128 + number)


def _answers(env: Mapping[str, str]) -> bool:
    if not shutil.which("docker", path=env.get("PATH")):
        return False
    try:
        return subprocess.run(["docker", "info"], env=env, capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
