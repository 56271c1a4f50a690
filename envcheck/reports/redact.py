"""A report without names: hosts, users, UUIDs, serials, addresses and paths become pseudonyms, and no verdict changes.

Within one report a name has one pseudonym, numbered as names come; with a key it has the same one in every report of
that key (HMAC-SHA256), so that redacted reports can still be compared. names.yaml says what is taken for a name.
"""

import contextlib
import functools
import hashlib
import hmac
import os
import platform
import pwd
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from envcheck.errors import EnvcheckError
from envcheck.reports.model import RunReport, rejudge

# What a GPU's pseudonym begins with where no key was given.
UNKEYED: Final = ("GPU-00000000-0000-0000-0000-", "MIG-00000000-0000-0000-0000-")
_UUID: Final = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:/\d+/\d+)?")
_HOME: Final = re.compile(r"/(?:home|Users)/([^/\s:'\"]+)")
_PSEUDONYM: Final = re.compile(r"(host|user|dir|url|ip)-\w+")
_WORDS: Final = re.compile(r"[\d.-]")


class RedactError(EnvcheckError):
    """What was redacted would change (exit 3)."""


@functools.cache
def _table() -> Any:
    """Return names.yaml, which says what each of its entries means; nobody reads it who redacts nothing."""
    return msgspec.yaml.decode(Path(__file__).with_name("names.yaml").read_bytes())


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
        if name and name not in _table()["nameless"]:
            names.of(kind, name)


def learn(report: RunReport, names: Pseudonyms) -> None:
    """Have the names that stand where names stand in a report replaced wherever else they are, too."""

    def each(key: str, text: str) -> str:
        kind = _kind(key)
        for match in _UUID.finditer(text):
            names.of(match[1], match[0])
        found = [("user", match[1]) for match in _HOME.finditer(text)]
        # A number under `node` is that of a NUMA node or of a place in a group.
        if kind and not (kind == "host" and text.isdigit()) and not {"/", " "} & set(text):
            found += [(kind, text), *([(kind, text.partition(".")[0])] if kind == "host" else [])]
        for named, name in found:
            if name and name not in _table()["nameless"]:
                names.of(named, name)
        return text

    _walk(msgspec.to_builtins(report), "", each)


def line(text: str, names: Pseudonyms, typed: Iterable[str] = ()) -> str:
    """Return a line that is printed beside a report without names; `typed` are parts of paths that the user typed."""
    know_this_machine(names)
    for match in _UUID.finditer(text):
        names.of(match[1], match[0])
    for word in sorted(typed, key=len, reverse=True):
        part = _part(word, names)
        for form in {word, repr(word)[1:-1]}:
            text = part.join(re.split(rf"(?<![\w-]){re.escape(form)}(?![\w-])", text))
    return _text(text, "text", names)


def redact(report: RunReport, key: str = "", names: Pseudonyms | None = None) -> RunReport:
    """Return the report without names, as `names` has them; RedactError where any check would change."""
    data, names = msgspec.to_builtins(report), names or Pseudonyms(key)
    learn(report, names)

    def each(key: str, text: str) -> str:
        return text if key in _table()["kept_keys"] else _text(text, key, names)

    data = {part: value if part in _table()["kept"] else _walk(value, part, each) for part, value in data.items()}
    redacted = msgspec.convert(data, RunReport)
    before, after = ({o.id: o.status for o in rejudge(version).report.outcomes} for version in (report, redacted))
    changed = sorted(identity for identity in before if after.get(identity) != before[identity])
    if changed:
        message = f"without names the verdict of {', '.join(changed)} would change"
        raise RedactError(message, fix="report this bug, and do not share this report")
    return redacted


def _walk(value: Any, key: str, each: Callable[[str, str], str]) -> Any:
    """Return the value with each text, and each key that is a path or a UUID, as `each` has it for its key."""
    if isinstance(value, dict):
        renamed = {inner: each("", inner) if inner.startswith("/") or _UUID.search(inner) else inner for inner in value}
        return {renamed[inner]: _walk(held, _key(key, inner, value), each) for inner, held in value.items()}
    if isinstance(value, list):
        return [_walk(item, key, each) for item in value]
    return each(key, value) if isinstance(value, str) else value


def _key(key: str, inner: str, held: dict[str, Any]) -> str:
    """Return what a value is called: a signal's as the signal, a process's name and a foreign variable as such."""
    if inner == "value":
        return key
    if key in ("processes", "host.stuck_processes") and inner != "pid":
        return f"process.{inner}"
    if key == "env" and not {"value", "reason"} & set(held):
        return inner if re.match(_table()["steering"], inner) or _kind(inner) else f"variable.{inner}"
    return "host.name" if key == "host" and inner == "name" else inner


@functools.cache
def _kind(key: str) -> str:
    last = key.rpartition(".")[2].lower()
    kinds = {name: kind for kind, keys in _table()["kinds"].items() for name in keys}
    return "host" if key == "host.name" else "serial" if "serial" in last else kinds.get(last, "")


def _text(text: str, key: str, names: Pseudonyms) -> str:
    kind = _kind(key)
    if kind and text in names.names(kind):
        return names.of(kind, text)
    if key in ("process.name", "process.command", "process.user") and text:
        return names.of(key.partition(".")[2], text)
    for exact in ("GPU", "MIG", "serial", "boot"):
        for name in names.names(exact):
            text = text.replace(name, names.of(exact, name))
    prose, technical = key in _table()["prose"], key in _table()["technical"] or key.startswith("driver.")
    for pattern in _table()["patterns"]:
        where = pattern.get("where", "")
        if pattern["sign"] in text and (not where or prose or (where == "plain" and not technical)):
            text = re.sub(pattern["form"], functools.partial(_replaced, pattern["put"], names), text)
    text = text if technical else _people(text, names, prose=prose)
    if key.startswith("variable.") and "/" not in text and not re.fullmatch(_table()["switch"], text):
        return names.of("value", text)
    return text


def _replaced(put: str, names: Pseudonyms, match: re.Match[str]) -> str:
    found = {"_url": _url, "_registry": _registry, "_path": _path}.get(put)
    if found:
        return found(match, names)
    return match[0] if match[0] in _table()["loopback"] else names.of(put, match[0])


def _url(match: re.Match[str], names: Pseudonyms) -> str:
    return f"{match[1]}://{names.of('url', match[0])}.example"


def _registry(match: re.Match[str], names: Pseudonyms) -> str:
    """Return an image's registry and its owners under their pseudonyms; what the image is called says what it is."""
    owners = [name if name in _table()["images"] else names.of("owner", name) for name in match[2].split("/") if name]
    return "/".join([f"{names.of('registry', match[1])}.example", *owners, ""])


def _path(match: re.Match[str], names: Pseudonyms) -> str:
    root, *parts = match[0][1:].split("/")
    if root in _table()["system"] and not match[0].startswith(tuple(_table()["own"])):
        return match[0]
    return "/" + "/".join(_part(part, names) for part in (root, *parts))


def _part(part: str, names: Pseudonyms) -> str:
    if part in names.names("user"):
        return names.of("user", part)
    if not part or re.fullmatch("|".join(_table()["common"]), part):
        return part
    suffix = re.search(_table()["suffix"], part)
    return names.of("dir", part) + (suffix[0] if suffix else "")


def _people(text: str, names: Pseudonyms, *, prose: bool) -> str:
    """Replace hosts and users as words; those that are common words only in prose, where no check looks."""
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
