"""A report without names: hosts, users, UUIDs, serials, addresses and paths become pseudonyms, and no verdict changes.

Within one report a name has one pseudonym, numbered as names come; with a key it has the same one in every report of
that key (HMAC-SHA256), so that redacted reports can still be compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import platform
import pwd
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from envcheck.errors import EnvcheckError
from envcheck.reports.model import RunReport, rejudge

# What no name stands in; a check's id or a GPU's model may look like one.
_KEPT: Final = ("schema", "tool", "started", "ended", "mode", "plan", "verdict", "judged_by", "resumed", "timing")
_KEPT_KEYS: Final = ("id", "kind", "status", "unit", "code", "why", "image_id", "launcher", "arch", "system")
# Where versions and models stand: "570.124.06" there is a driver, whatever the host is called.
_TECHNICAL: Final = ("name", "arch_list", "torch", "cuda", "cudnn", "nccl", "python", "backend", "capability")
_UUID: Final = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:/\d+/\d+)?")
_HOME: Final = re.compile(r"/(?:home|Users)/([^/\s:'\"]+)")
_URL: Final = re.compile(r"\b(https?|ssh|tcp|git)://[^\s'\",;)]+")
_IMAGE: Final = re.compile(r"^([\w-]+(?:\.[\w-]+)*(?:\.[\w-]+|:\d+))/((?:[\w.-]+/)*)(?=[\w.-]+(?:[:@]|$))")
_ADDRESS: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?=[:/\]])|(?<=[\[@/])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IP4: Final = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)")
_IP6: Final = re.compile(
    r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}(?![\w:])|"
    r"(?<![\w:])(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,5})?::(?:[0-9a-fA-F]{1,4}:){0,5}[0-9a-fA-F]{1,4}(?![\w:])"
)
_MAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_AT: Final = re.compile(r"(?<=\w@)[\w-]+")
_PROCESS: Final = re.compile(r"(?<=\bname=)[^\s,;]+")
# Variables that steer torch, CUDA and NCCL; of any other the value says something of the site.
_STEERING: Final = re.compile(
    r"(NCCL|CUDA|CUBLAS|CUDNN|NVIDIA|TORCH|PYTORCH|TRITON|OMP|MKL|KMP|LD|UCX|FI|GLOO|COMPUTE|OPENCL|WORLD)(_|[A-Z]|$)"
)
_SWITCH: Final = re.compile(r"[\d.,:-]*|true|false|yes|no|on|off", re.IGNORECASE)
_PROSE: Final = ("summary", "remedy", "log", "reason", "resolution", "error", "chosen", "text", "culprit")
_RUNNING: Final = ("processes", "host.stuck_processes")
_HARDWARE: Final = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b|\b(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}\b")
_PATH: Final = re.compile(r"(?<![\w/.<])/(?!/)[^\s'\":;,()\[\]<>|]+")
_QUOTED: Final = re.compile(r"""(?<=')/[^'\n]*(?=')|(?<=")/[^"\n]*(?=")""")
_SYSTEM: Final = ("usr", "lib", "lib64", "proc", "sys", "dev", "etc", "run", "bin", "sbin")
# Below these the names are a site's own again.
_OWN: Final = ("/usr/local/", "/run/", "/etc/", "/dev/shm/")  # noqa: S108 (a prefix to look for)
# Parts of a path that say what a thing is, and not whose: checks look at them.
_COMMON: Final = re.compile(
    r"home|Users|user|\.dockerenv|opt|srv|mnt|tmp|var|bin|lib|lib64|share|local|include|python3?(\.\d+)*|(site|dist)-packages|\.?v?envs?|"
    r"\.local|\.cache|\.config|torch[\w.+-]*|nvidia|cuda[-\d.]*|stubs|compat|triton|envcheck[\w.-]*|x86_64-linux(-gnu)?|"
    r"aarch64-linux(-gnu)?|usr|run|media|etc|sbin|src|ptxas|nvcc|gcc|g\+\+|cc|c\+\+|nccl|ucx|openmpi|lib[\w+-]*\.so[\w.]*|pip\.conf|\.netrc|conda|(mini|ana)conda3|dir-\w+(\.\w+)?|user-\w+|"
    r"\w+\.d|\w+\.sock|nccl\.conf|hosts|hostname|resolv\.conf|ld\.so\.\w+|docker|containerd|cdi|daemon\.json|nvidia[\w.-]*|secrets|ssl|certs|systemd|udev|lock|dev|shm|"
    r"passwd|group|os-release|security|limits\.conf|fstab|machine-id|modprobe|modules|apt|pip|containers"
)
_SUFFIX: Final = re.compile(r"\.(py|so|json|conf|toml|yaml|txt|pth|img)$")
_WORDS: Final = re.compile(r"[\d.-]")
# What a GPU's pseudonym begins with where no key was given.
UNKEYED: Final = ("GPU-00000000-0000-0000-0000-", "MIG-00000000-0000-0000-0000-")
_IMAGES: Final = ("envcheck", "library", "nvidia", "pytorch", "nvcr.io")
_PSEUDONYM: Final = re.compile(r"(host|user|dir|url|ip)-\w+")
_LOOPBACK: Final = ("127.0.0.1", "0.0.0.0")  # noqa: S104 (not a valid image nameybody's)
_HOSTS: Final = ("host", "hostname", "node", "nodename", "slurmd_nodename", "node_name", "master_addr")
_NAMELESS: Final = ("root", "localhost", "nobody", "user", "none", "None")


class RedactError(EnvcheckError):
    """What was redacted would change (exit 3)."""


class Pseudonyms:
    """One pseudonym a name, by kind."""

    def __init__(self, key: str = "") -> None:
        self._key, self._known = key.encode(), dict[tuple[str, str], str]()
        self._by_kind: dict[str, list[str]] = {}

    def of(self, kind: str, name: str) -> str:
        """Return the name's pseudonym, e.g. host-1; of a UUID a UUID."""
        if (kind, name) not in self._known:
            self._known[kind, name] = self._new(kind, name)
            self._by_kind[kind] = sorted([*self.names(kind), name], key=len, reverse=True)
        return self._known[kind, name]

    def names(self, kind: str) -> list[str]:
        """Return the names known of a kind, the longest first."""
        return self._by_kind.get(kind, [])

    def _new(self, kind: str, name: str) -> str:
        number = len(self.names(kind)) + 1
        digest = hmac.new(self._key, f"{kind}:{name}".encode(), hashlib.sha256).hexdigest()
        if kind in ("GPU", "MIG"):
            d = digest if self._key else f"{number:032x}"
            return f"{kind}-{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:32]}"
        return f"{kind}-{digest[:10] if self._key else number}"


def know_this_machine(names: Pseudonyms) -> None:
    """Have this host and this user replaced wherever they stand."""
    host, users = platform.node(), [os.environ.get(name, "") for name in ("USER", "LOGNAME")]
    with contextlib.suppress(KeyError):
        users.append(pwd.getpwuid(os.getuid()).pw_name)
    for kind, name in (("host", host), ("host", host.partition(".")[0]), *(("user", user) for user in users)):
        if name and name not in _NAMELESS:
            names.of(kind, name)


def learn(report: RunReport, names: Pseudonyms) -> None:
    """Have the names of another report replaced, too."""
    for kind, name in _names(msgspec.to_builtins(report), ""):
        names.of(kind, name)


def line(text: str, names: Pseudonyms, typed: Iterable[str] = ()) -> str:
    """Return a line that is printed beside a report without names: this host's, this user's, paths and addresses.

    `typed` are parts of relative paths that the user typed.
    """
    know_this_machine(names)
    for match in _UUID.finditer(text):
        names.of(match[1], match[0])
    for word in sorted(typed, key=len, reverse=True):
        part = _part(word, names, word in names.names("user"))
        for form in {word, repr(word)[1:-1]}:
            text = part.join(re.split(rf"(?<![\w-]){re.escape(form)}(?![\w-])", text))
    return _text(text, "text", names)


def redact(report: RunReport, key: str = "", names: Pseudonyms | None = None) -> RunReport:
    """Return the report without names. Raises RedactError where any check would change then.

    `names` are pseudonyms that were given before, so that one name has one everywhere.
    """
    data, names = msgspec.to_builtins(report), names or Pseudonyms(key)
    learn(report, names)
    redacted_data = {part: value if part in _KEPT else _walk(value, part, names) for part, value in data.items()}
    redacted = msgspec.convert(redacted_data, RunReport)
    before, after = ({o.id: o.status for o in rejudge(version).report.outcomes} for version in (report, redacted))
    changed = sorted(identity for identity in before if after.get(identity) != before[identity])
    if changed:
        message = f"without names the verdict of {', '.join(changed)} would change"
        raise RedactError(message, fix="report this bug, and do not share this report")
    return redacted


def _names(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the names that stand where names stand; they are replaced wherever else they are too."""
    if isinstance(value, dict):
        for inner, held in value.items():
            yield from _names(held, _key(key, inner, value) if inner in ("value", "name") else inner)
            if "-" in inner and _UUID.fullmatch(inner):
                yield "GPU", inner
    elif isinstance(value, list):
        for item in value:
            yield from _names(item, key)
    elif isinstance(value, str) and value:
        if "-" in value:
            yield from ((match[1], match[0]) for match in _UUID.finditer(value))
        yield from (("user", match[1]) for match in _HOME.finditer(value) if match[1] not in _NAMELESS)
        kind = _kind(key)
        # A number under `node` is that of a NUMA node or of a place in a group.
        if kind and value not in _NAMELESS and not (kind == "host" and value.isdigit()) and not {"/", " "} & set(value):
            yield kind, value
            if kind == "host" and "." in value:
                yield kind, value.partition(".")[0]


def _kind(key: str) -> str:
    last = key.rpartition(".")[2].lower()
    if key == "host.name" or last in _HOSTS:
        return "host"
    if last in ("user", "logname", "username"):
        return "user"
    if "serial" in last:
        return "serial"
    if last == "uuid":
        return "GPU"
    return "boot" if last in ("boot", "boot_id", "machine_id") else ""


def _walk(value: Any, key: str, names: Pseudonyms) -> Any:
    if isinstance(value, dict):
        return {
            _text(inner, "", names) if inner.startswith("/") or _UUID.search(inner) else inner: _walk(
                held, _key(key, inner, value), names
            )
            for inner, held in value.items()
        }
    if isinstance(value, list):
        return [_walk(item, key, names) for item in value]
    return _text(value, key, names) if isinstance(value, str) and key not in _KEPT_KEYS else value


def _key(key: str, inner: str, held: dict[str, Any]) -> str:
    """Return what a value is called: a signal's as the signal, a process's name and a foreign variable as such."""
    if inner == "value":
        return key
    if key in _RUNNING and inner not in ("value", "pid"):
        return f"process.{inner}"
    if key == "env" and not {"value", "reason"} & set(held):
        return inner if _STEERING.match(inner) or _kind(inner) else f"variable.{inner}"
    return "host.name" if key == "host" and inner == "name" else inner


def _text(text: str, key: str, names: Pseudonyms) -> str:
    kind = _kind(key)
    if kind and text in names.names(kind):
        return names.of(kind, text)
    if key in ("process.name", "process.command", "process.user") and text:
        return names.of(key.partition(".")[2], text)
    for named_kind in ("GPU", "MIG", "serial", "boot"):
        for name in names.names(named_kind):
            text = text.replace(name, names.of(named_kind, name))
    # Most texts have none of these signs, and each pattern needs one of them.
    if "/" in text:
        text = _URL.sub(lambda match: f"{match[1]}://{names.of('url', match[0])}.example", text)
        text = _IMAGE.sub(lambda match: _registry(match, names), text)
        text = _QUOTED.sub(lambda match: _path(match[0], names), text)
        text = _PATH.sub(lambda match: _path(match[0], names), text)
    if ":" in text:
        text = _HARDWARE.sub(lambda match: names.of("address", match[0]), text)
    if "." in text:
        text = _ADDRESS.sub(lambda m: m[0] if m[0] in _LOOPBACK else names.of("ip", m[0]), text)
    if key in _TECHNICAL or key.startswith("driver."):
        return text
    text = _people(_addresses(text, key, names), key, names)
    if key.startswith("variable.") and "/" not in text and not _SWITCH.fullmatch(text):
        return names.of("value", text)
    return text


def _registry(match: re.Match[str], names: Pseudonyms) -> str:
    """Return an image's registry and its owners under their pseudonyms; what the image is called says what it is."""
    owners = [name if name in _IMAGES else names.of("owner", name) for name in match[2].split("/") if name]
    return "/".join([f"{names.of('registry', match[1])}.example", *owners, ""])


def _addresses(text: str, key: str, names: Pseudonyms) -> str:
    """Replace addresses in prose, and where the value is nothing else; elsewhere four numbers may be a version."""
    prose = key in _PROSE
    if prose and "@" in text:
        text = _MAIL.sub(lambda match: names.of("mail", match[0]), text)
    if prose and "=" in text:
        text = _PROCESS.sub(lambda match: names.of("process", match[0]), text)
    if "." in text and (prose or _IP4.fullmatch(text)):
        text = _IP4.sub(lambda m: m[0] if m[0] in _LOOPBACK else names.of("ip", m[0]), text)
    if ":" not in text:
        return text
    return _IP6.sub(lambda match: names.of("ip", match[0]) if match[0] != "::1" else match[0], text)


def _people(text: str, key: str, names: Pseudonyms) -> str:
    """Replace hosts and users as words; those that are common words only in prose, where no check looks."""
    prose = key in _PROSE
    if prose and "@" in text:
        text = _AT.sub(lambda match: names.of("host", match[0]), text)
    for kind in ("host", "user"):
        for name in names.names(kind):
            if prose or _WORDS.search(name):
                if name in text:
                    text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", names.of(kind, name), text)
                text = _siblings(text, name, names) if kind == "host" else text
    return text


def _siblings(text: str, host: str, names: Pseudonyms) -> str:
    """Replace the hosts that are called as this one but for their numbers, and lists of them: n[1-4]."""
    begin = re.split(r"\d", host, maxsplit=1)[0]
    if begin not in text or not re.search(r"[a-zA-Z].*\d", host) or _PSEUDONYM.fullmatch(host):
        return text
    alike = re.sub(r"\\?\d+", r"(?:\\d+|\\[[\\d,-]+\\])", re.escape(host))
    return re.sub(rf"(?<![\w.-]){alike}(?![\w-])", lambda match: names.of("host", match[0]), text)


def _path(path: str, names: Pseudonyms) -> str:
    root, *parts = path[1:].split("/")
    if root in _SYSTEM and not path.startswith(_OWN):
        return path
    users = names.names("user")
    return "/" + "/".join(_part(part, names, part in users) for part in (root, *parts))


def _part(part: str, names: Pseudonyms, user: bool) -> str:  # noqa: FBT001 (one caller)
    if user:
        return names.of("user", part)
    if not part or _COMMON.fullmatch(part):
        return part
    suffix = _SUFFIX.search(part)
    return names.of("dir", part) + (suffix[0] if suffix else "")
