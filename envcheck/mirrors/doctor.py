"""Find what no program reads, or is dangerous, in the named files and the settings of this machine and this user.

doctor.toml has the rules. They read a prepared file: comments are blanked and continued lines joined, without moving
any position.
"""

import bisect
import codecs
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck.errors import ConfigError, refuse
from envcheck.mirrors.net.credentials import token_path
from envcheck.mirrors.profiles.model import host_of, redacted

Level = Literal["danger", "unreal", "outdated"]
Kind = Literal["python", "json", "dockerfile", "requirements", "environment", "settings"]
_CONTINUED: Final = re.compile(r"\\[ \t]*\r?\n")
_COMMAND_END: Final = re.compile(r"&&|\|\|?|;|\n")
# A # starts a comment at the start of a line or after a blank, outside of quotes.
_COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
_STRING: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")
_TRIPLE: Final = re.compile(r"(?P<first>(?m:^)[ \t]*)?[rRuUbB]?(?P<quotes>\"{3}|'{3})[\s\S]*?(?:(?P=quotes)|$)")
# A tool in the file that verifies downloads with a hash or a signature.
_VERIFIED: Final = re.compile(
    r"\b(?:sha(?:1|256|384|512)sum|shasum|b2sum|gpgv?\b|minisign|cosign)|--checksum\b|--sha256\b"
)
_LOOPBACK: Final = r"(?:localhost|127\.|\[::1\]|0\.0\.0\.0|169\.254\.)"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of doctor.toml, which explains the fields."""

    id: str
    level: Level
    problem: str
    fix: str
    pattern: str = ""
    find: str = ""
    where: Literal["code", "text", "command", "download"] = "code"
    kinds: list[Kind] = []
    needs: str = ""
    unless: str = "(?!)"
    after: str = ""
    names: dict[str, str] = {}


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a machine: files below its root and a home, patterns below its root, and variables with paths."""

    machine: list[str]
    user: list[str]
    patterns: list[str]
    variables: list[str]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The content of doctor.toml."""

    forms: dict[str, str]
    rules: list[Rule]
    places: Places


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at one place; doctor.toml explains the levels."""

    id: str
    level: Level
    where: str
    line: int
    what: str
    fix: str


class Document(NamedTuple):
    """A file's name and content. A line of an environment is `NAME=value`."""

    name: str
    content: str
    kind: Kind


class PreparedDocument:
    """A document with its comments blanked and continued lines joined (`code`), its commands, and its lines."""

    def __init__(self, text: Document) -> None:
        self.kind, self.text, self.code = text.kind, text.content, _code(text)
        self._starts = [0, *(match.end() for match in re.finditer("\n", text.content))]
        self.commands = list(_commands(self.code))

    @property
    def verified_until(self) -> int:
        """Return the position up to which downloads are verified: in a Dockerfile the last check, elsewhere the end."""
        checks = [match.start() for match in _VERIFIED.finditer(self.code)]
        if checks and self.kind != "dockerfile":
            return len(self.code)  # the check is often in a function, which comes first
        return checks[-1] if checks else -1

    def line(self, at: int) -> int:
        """Return the line of a position, counted from 1."""
        return bisect.bisect_right(self._starts, at)


def kind_of(name: str) -> Kind:
    """Return the kind of a file by its name."""
    path = PurePath(name.lower())
    if path.suffix == ".py":
        return "python"
    if path.suffix == ".json":
        return "json"
    if path.name.startswith(("dockerfile", "containerfile")) or path.suffix == ".dockerfile":
        return "dockerfile"
    if path.suffix in {".txt", ".in"} and ("requirements" in path.name or "constraints" in path.name):
        return "requirements"
    return "settings"


def _code(text: Document) -> str:
    if text.kind in {"json", "environment"}:
        return text.content
    code = text.content
    if text.kind == "python":  # triple-quoted strings that begin a line are docstrings, as a rule
        code = _TRIPLE.sub(lambda match: match[0] if match["first"] is None else re.sub(r"[^\n]", " ", match[0]), code)
    code = _without_comments(code)
    return _CONTINUED.sub(lambda match: " " * len(match[0]), code)


def _without_comments(code: str) -> str:
    """Blank comments, except a quoted `#`. A string ends with its line, because quotes in prose may never close."""
    strings = [match.span() for match in _STRING.finditer(code)]
    starts = [start for start, _ in strings]

    def blank(match: re.Match[str]) -> str:
        before = bisect.bisect_right(starts, match.start()) - 1
        inside = before >= 0 and strings[before][1] > match.start()
        return match[0] if inside else " " * len(match[0])

    return _COMMENT.sub(blank, code)


def _commands(code: str) -> Iterator[tuple[int, str]]:
    at = 0
    # Ignore separators between quotes.
    for match in _COMMAND_END.finditer(_STRING.sub(lambda quoted: "x" * len(quoted[0]), code)):
        if code[at : match.start()].strip():
            yield at, code[at : match.start()]
        at = match.end()
    if code[at:].strip():
        yield at, code[at:]


@functools.cache
def _table() -> Table:
    return msgspec.toml.decode(Path(__file__).with_name("doctor.toml").read_bytes(), type=Table)


@functools.cache
def rules() -> list[Rule]:
    """Return the rules, one for each variable where a row names several."""
    return [_for_variable(row, *pair) for row in _table().rules for pair in (row.names or {"": ""}).items()]


def _for_variable(row: Rule, name: str, instead: str) -> Rule:
    def filled(pattern: str) -> str:
        pattern = pattern.replace("NAME>", f"{name}>").replace("<loopback>", _LOOPBACK)
        forms = _table().forms
        return re.sub(r"<(set|read) ([^>]+)>", lambda match: forms[match[1]].replace("NAME", match[2]), pattern)

    patterns = {key: filled(getattr(row, key)) for key in ("pattern", "needs", "unless", "after")}
    if not name:
        return msgspec.structs.replace(row, **patterns)
    problem, fix = row.problem.replace("NAME", name), row.fix.replace("INSTEAD", instead)
    return msgspec.structs.replace(row, **patterns, problem=problem, fix=fix, names={name: instead})


# Position of each match, and what its texts name.
Matches = Iterator[tuple[int, dict[str, str]]]


def _matches(rule: Rule, source: PreparedDocument) -> Matches:
    if (rule.kinds and source.kind not in rule.kinds) or not all(name in source.text for name in rule.names):
        return
    start = re.search(rule.after, source.code)
    if start is None or not re.search(rule.needs, source.code) or re.search(rule.unless, source.code):
        return
    if rule.find:
        yield from _FINDERS[rule.find](source)
        return
    parts = [(start.end(), (source.text if rule.where == "text" else source.code)[start.end() :])]
    if rule.where in {"command", "download"}:
        verified = source.verified_until if rule.where == "download" else -1
        parts = [(at, command) for at, command in source.commands if at > verified]
    for at, part in parts:
        for match in re.finditer(rule.pattern, part):
            groups = {key: value or "" for key, value in match.groupdict().items()}
            yield at + match.start("at" if "at" in groups else 0), {"match": match[0], **groups}


def examine(documents: Iterable[Document]) -> list[DoctorFinding]:
    """Return the findings in each document, by line, without duplicates of one line."""
    findings: dict[tuple[str, int, str, str], DoctorFinding] = {}
    for document in documents:
        source = PreparedDocument(document)
        for rule in rules():
            for at, named in _matches(rule, source):
                what, fix, line = rule.problem.format(**named), rule.fix.format(**named), source.line(at)
                finding = DoctorFinding(
                    id=rule.id, level=rule.level, where=document.name, line=line, what=what, fix=fix
                )
                findings.setdefault((document.name, line, rule.id, what), finding)
    return sorted(findings.values(), key=lambda finding: (finding.where, finding.line, finding.id))


_IN_URL: Final = re.compile(
    r"(?i)\b(?P<scheme>[a-z][a-z0-9+.-]{1,10})://(?P<user>[^\s/@:\"'<>]{1,200})(?P<password>:[^\s/@\"'<>]{0,300})?@(?P<host>[\w.\[\]-]+)"
)
_EXAMPLE: Final = re.compile(r"(?i):?(?:user(?:name)?|pass(?:word|wd)?|token|secret|x+|\*+|\.+|<.*>)$")


def _login_in_url(source: PreparedDocument) -> Matches:
    """Find users and passwords in URLs, but for examples in comments."""
    for match in _IN_URL.finditer(source.text):
        password = match["password"] or ""
        in_comment = source.code[match.start() : match.end()].isspace()
        if not password and match["scheme"].lower() not in {"http", "https"}:
            continue
        if not (in_comment and _EXAMPLE.match(password or match["user"])):
            yield match.start(), {"host": match["host"]}


_ASSIGNED: Final = re.compile(
    r"(?m)(?:^|;)[ \t]*(?P<name>[A-Za-z_][\w.]{0,60})[ \t]*(?::[^=\n]{1,60})?=(?!=)[ \t]*(?P<value>[^\n]{0,300})"
)
_CALLED: Final = re.compile(
    r"\b(?:(?:from_pretrained|snapshot_download|hf_hub_download)\(\s*(?:\w+\s*=\s*)?"
    r"|pipeline\([^()\n]{0,200}?\bmodel\s*=\s*)(?P<value>[^\n]{0,300})"
)
_URL: Final = re.compile(r"(?:os\.(?:environ\.get|getenv)\(\s*[\"']\w+[\"']\s*,\s*)?[rbfuRBFU]{0,2}[\"']+https?://")
# A variable alone, before an operator, or at the start of an f-string.
_VARIABLE: Final = re.compile(
    r"(?P<bare>[A-Za-z_][\w.]*)\s*(?:[,)+;#]|$)|[rR]?[fF][rR]?[\"']+\{(?P<put>[A-Za-z_]\w*)(?:\.rstrip\([^()]*\))?\}"
)


def _url_for_a_model(source: PreparedDocument) -> Matches:
    """Find calls with a URL instead of a repository's name; a variable has the value that was set last."""
    urls: dict[str, bool] = {}
    steps = [*_ASSIGNED.finditer(source.code), *_CALLED.finditer(source.code)]
    for match in sorted(steps, key=lambda match: match.start()):
        named = _VARIABLE.match(match["value"])
        is_url = bool(_URL.match(match["value"])) or (named and urls.get(named["bare"] or named["put"])) or False
        if match.re is _ASSIGNED:
            urls[match["name"]] = is_url
        elif is_url:
            yield match.start(), {}


_PLAIN: Final = re.compile(rf"(?<![\w])http://(?!{_LOOPBACK})[^\s\"'<>|;]+")
_CLIENTS: Final = re.compile(
    r"(?i)index|find-links|[\s\"']-[if][\s\"']|endpoint|registry|channel|mirror|\bwget\b|\bcurl\b|\baria2c\b|\bgit\s+clone\b|^\s*url\s*="
    r"|\bpip3?[\s\"',]+install\b|^\s*ADD\s|\burlretrieve\b|\bload_state_dict_from_url\b|\bdownload_url"
    r"|\brequests\.get\([^()\n]{0,300}\.(?:bin|pth?|ckpt|safetensors|whl|zip|tar|gz|parquet)\b"
)
_APT: Final = re.compile(r"(?m)^\s*(?:deb|deb-src|URIs:)\s|sources\.list|apt-key|apt-add-repository")


def _plain_http(source: PreparedDocument) -> Matches:
    """Find plain http without a hash or signature. apt's sources are signed, and some files verify downloads."""
    for at, command in source.commands:
        fetched = re.search(r"\b(?:wget|curl|aria2c)\b", command) is not None
        if not _CLIENTS.search(command) or _APT.search(command) or (fetched and at <= source.verified_until):
            continue
        for match in _PLAIN.finditer(command):
            if not re.search(r"(?i)prox(?:y|ies)\S*\s*[=:]?\s*[\"']?$|no_proxy", command[: match.start()]):
                yield at + match.start(), {"host": host_of(redacted(match[0])).rpartition("@")[2]}


_EXTRA: Final = re.compile(r"(?i)(?:--)?extra[-_]index[-_]url\b[^\n]*(?:\n[ \t]+(?:https?:|\$)[^\n]*)*")
_TORCH: Final = re.compile(r"(?i)\btorch\b|\btorch[=<>~\[]|/whl\b|pytorch|\btorch(?:vision|audio)\b")


def _extra_index(source: PreparedDocument) -> Matches:
    """Find an extra index where torch is installed: in the same line, or anywhere in a list of requirements."""
    for match in _EXTRA.finditer(source.code):
        start = source.code.rfind("\n", 0, match.start()) + 1
        scope = source.code if source.kind == "requirements" else source.code[start : match.end()]
        if _TORCH.search(scope):
            yield match.start(), {}


def _starred_hosts(source: PreparedDocument) -> Matches:
    """Find an entry `*.x` of NO_PROXY beside which neither `x` nor `.x` stands."""
    name = _table().forms["set"].replace("NAME", "(?:NO_PROXY|no_proxy)")
    value = r"[ \t=,]{0,9}[\"']?(?P<value>(?:[^\s\"';&|]|(?<=,)[ \t])*)"
    for match in re.finditer(name + value, source.code):
        entries = {entry.lstrip(".") for entry in re.split(r"[\s,]+", match["value"])}
        for star in re.finditer(r"(?<![^\s,])\*\.([\w.-]*\w)", match["value"]):
            if star[1] not in entries:
                yield match.start("value") + star.start(), {"value": star[1]}


def _broken_json(source: PreparedDocument) -> Matches:
    """Find where a file is not JSON."""
    try:
        json.loads(source.text)
    except (ValueError, RecursionError) as error:
        yield getattr(error, "pos", 0), {"why": getattr(error, "msg", "too deep")}


_FINDERS: Final = {
    "broken_json": _broken_json,
    "extra_index": _extra_index,
    "login_in_url": _login_in_url,
    "plain_http": _plain_http,
    "starred_hosts": _starred_hosts,
    "url_for_a_model": _url_for_a_model,
}


# Settings are small: do not read larger files, which were named by mistake.
LARGEST: Final = 2 << 20
_EXPECTED_FILES: Final = "name Dockerfiles, scripts, requirements and settings"


class Texts(NamedTuple):
    """Documents, and an error for each file that is not text, is too large, or cannot be read."""

    documents: list[Document]
    errors: list[ConfigError]


def read_files(paths: Iterable[Path]) -> Texts:
    """Return the files at these paths."""
    texts = Texts([], [])
    for path in paths:
        try:
            texts.documents.append(Document(str(path), _decoded(path), kind_of(path.name)))
        except ConfigError as error:  # noqa: PERF203 (files are few)
            texts.errors.append(error)
        except OSError as error:
            texts.errors.append(ConfigError(f"{path}: {error.strerror}", fix="make the file readable for this user"))
    return texts


def _decoded(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)  # a pipe has no size to check before
    if len(content) > LARGEST:
        refuse(f"{path} has more than {LARGEST >> 20} MiB", _EXPECTED_FILES)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        refuse(f"{path} is not a text file", _EXPECTED_FILES)
    return content.decode("utf-8-sig", "replace")


def read_machine(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Texts:
    """Return the environment and the settings of this machine and user that are there."""
    environ = os.environ if environ is None else environ
    places, home = _table().places, Path(environ.get("HOME") or root / "root")
    paths = [root / name for name in places.machine]
    paths += [path for pattern in places.patterns for path in sorted(root.glob(pattern))]
    # A home that cannot be entered is one error, not one for each file.
    closed = home.exists() and not os.access(home, os.X_OK, effective_ids=True)
    paths += [home] if closed else [home / name for name in places.user]
    paths += [Path(environ[name]) for name in places.variables if environ.get(name, os.devnull) != os.devnull]
    texts = read_files(path for path in dict.fromkeys(paths) if not _is_absent(path))
    return Texts([_environment(environ), *texts.documents], texts.errors)


def _is_absent(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:
        return False


def _environment(environ: Mapping[str, str]) -> Document:
    # A token of `hf auth login` is sent like HF_TOKEN; its file is not read.
    kept = environ.get("HOME") and os.access(token_path(environ), os.R_OK, effective_ids=True)
    variables = {**({"HF_TOKEN": "kept"} if kept else {}), **environ}
    lines = [f"{name}={' '.join(value.split())}" for name, value in sorted(variables.items())]
    return Document("environment", "\n".join(lines), "environment")
