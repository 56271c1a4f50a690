"""Read what a Dockerfile, a script, requirements, pyproject.toml, uv.lock or environment.yml pins."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envcheck.matrix.pinned import Index, Pin, PinnedFile
from envcheck.mirrors.doctor import Document, PreparedDocument

# No requirement is longer; Python refuses to read numbers of thousands of digits.
_LONGEST: Final = 500
_LONGEST_URL: Final = 2000
_LINUX: Final = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
# Options and variables of pip and uv with an index: whether it comes beside others.
_BESIDE: Final = {"--extra-index-url": True, "-f": True, "--find-links": True}
_INDEX: Final = {"-i": False, "--index-url": False, "--default-index": False, "--index": False} | _BESIDE
_VARIABLES: Final = dict.fromkeys(
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL"), False
) | dict.fromkeys(("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_FIND_LINKS"), True)
_PIP: Final = re.compile(r"\bpip3?(?:\.\d+)?\s+(?:install|download|wheel)\b|\buv\s+add\b")
_CONDA: Final = re.compile(r"\b(?:conda|mamba|micromamba)\s+(?:install|create)\b")
_WORD: Final = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'])+")
_SET: Final = re.compile(r"(?<![\w$-])(?P<name>[A-Za-z_]\w*)=[\"']?(?P<value>[^\s\"'$;]+)")
_ENV: Final = re.compile(r"(?im)^[ \t]*ENV[ \t]+(?P<name>[a-z_]\w*)[ \t]+[\"']?(?P<value>[^\s\"'$;\\]+)")
_USED: Final = re.compile(r"\$\{?(?P<name>\w+)(?::?-(?P<default>[^}]*))?\}?")
_FROM: Final = re.compile(
    r"(?im)^[ \t]*FROM:?\s+(?:--platform=\S+\s+)?(?P<image>\S+)(?!\S|[ \t]+import\b)(?:[ \t]+AS[ \t]+(?P<stage>\S+))?"
)
_TORCH_IMAGE: Final = re.compile(r"pytorch/pytorch:(\d+\.\d+\.\d+)-cuda(\d+)\.(\d+)-")
_OTHER_SETTINGS: Final = re.compile(r"(?i)pip3?\s+config\b|pip\.conf|uv\.toml|torch[-_]backend|(?:PIP|UV)_CONFIG_FILE")
_SPEC: Final = re.compile(
    r"(?:(?P<channel>[\w-]+)::)?(?P<name>[\w.-]+)\s*(?P<sign>[=<>!~]*)\s*(?P<version>[0-9.]{0,20})"
)
# A wheel of a project's own releases, whose name says for which torch it is.
_WHEEL: Final = re.compile(r"https?://\S+/(?P<name>\w+)-[^/\s]*?(?P<torch>(?:torch|pt)\d\.?\d+)[^/\s]*\.whl")
_OF_OTHERS: Final = re.compile(r"-(?:win|macosx)[\w.]*\.whl$")
_ITEM: Final = re.compile(r"(?P<indent>\s*)-\s+(?P<value>.*)")
# The key of a list (an extra, a group), or a string that is no value of a key.
_QUOTED: Final = re.compile(
    r"(?m)^[ \t]*[\"']?(?P<key>[\w-]+)[\"']?[ \t]*=[ \t]*\["
    r"|(?<![=\s])\s*(?:\"(?P<one>[A-Za-z][^\"\n]*)\"|'(?P<two>[A-Za-z][^'\n]*)')"
)
_UV_INDEX: Final = re.compile(r"(?m)^\[\[tool\.(?:uv\.index|poetry\.source)\]\][^\[]*")
_POETRY: Final = re.compile(r"(?ms)^\[tool\.poetry\.(?:group\.[\w-]+\.)?dependencies\]$.*?(?=^\[|\Z)")
_POETRY_ROW: Final = re.compile(
    r"(?m)^(?P<name>[A-Za-z][\w.-]*)\s*=\s*(?:[\"'](?P<version>[^\"']*)|(?P<rows>\{.*\}|\[[^\]]*\]))"
)
# Such a row of Poetry is for some Pythons alone, or no release of an index.
_NOT_ALWAYS: Final = ("python", "url", "path", "git", "file")
_EXPLICIT: Final = re.compile(r"(?m)^(?:explicit\s*=\s*true|priority\s*=\s*[\"']explicit)")
_OVERRIDES: Final = re.compile(
    r"(?m)^(?:build-)?(?:override|constraint)-dependencies\s*=\s*\[(?:[^\]\"']|\"[^\"\n]*\"|'[^'\n]*'){0,4000}\]"
)
_UV_SOURCE: Final = re.compile(r"(?m)^(?P<name>[\w-]+)\s*=\s*(?P<value>\{[^}\n]*\}|\[\s*\{[^\]]*\])")
_UV_SOURCES: Final = re.compile(r"(?ms)^\[tool\.uv\.sources\]$.*?(?=^\[|\Z)")
_UV_SOURCE_TABLE: Final = re.compile(r"(?m)^\[tool\.uv\.sources\.[\"']?(?P<name>[\w.-]+)[\"']?\](?P<value>[^\[]*)")
_ELSEWHERE: Final = re.compile(r"(?m)^(?:\[tool\.uv\.workspace\]|dynamic\s*=\s*\[[^\]]*dependencies)")
_LOCKED: Final = re.compile(
    r"(?m)^name = \"(?P<name>[^\"]+)\"\nversion = \"(?P<version>[^\"]+)\"\n"
    r"source = \{ registry = \"(?P<url>[^\"]*)\" \}\n(?P<markers>resolution-markers = \[[^\]]*\])?"
)

_Lines = Iterable[tuple[int, str]]


def read(document: Document, arch: str = "x86_64") -> PinnedFile:
    """Return what a file pins for Linux on a machine of this architecture."""
    name, source = PurePath(document.name).name.lower(), PreparedDocument(document)
    if name.endswith(("pyproject.toml", "uv.lock")):
        file = _toml(source, arch)
    elif name.endswith((".yml", ".yaml")) and re.search(r"(?m)^dependencies:", source.code):
        file = _environment(source)
    elif document.kind == "requirements" or (
        name.endswith((".txt", ".in", "requirements.lock", "requirements-dev.lock")) and not _PIP.search(source.code)
    ):
        file = PinnedFile(pins=tuple(_requirements([*enumerate(source.code.split("\n"), 1)])))
    else:
        file = _commands(source)
    return file._replace(pins=tuple(pin for pin in file.pins if _on_linux(pin.marker, arch)))


def _pin(line: int, text: str, **more: Any) -> Pin | None:
    """Return the pin that a requirement is, or None for other text."""
    if built := _WHEEL.search(text[:_LONGEST_URL]):
        more["marker"] = text[built.end() : built.end() + _LONGEST].partition(";")[2].strip()
        pin = Pin(line=line, text=text, name=canonicalize_name(built["name"]), local=built["torch"], **more)
        return None if _OF_OTHERS.search(built[0]) else pin
    try:
        wanted = Requirement(text[:_LONGEST])
    except (InvalidRequirement, RecursionError):  # a marker can be nested hundreds deep
        return None
    exact = re.fullmatch(r"(?P<public>==[^+,]+)\+(?P<local>[\w.]+)", str(wanted.specifier))
    more |= {"specifier": exact["public"], "local": exact["local"]} if exact else {"specifier": str(wanted.specifier)}
    more |= {"text": text.partition(";")[0].strip(), "marker": str(wanted.marker or "")}
    return None if wanted.url else Pin(line=line, name=canonicalize_name(wanted.name), **more)


def _on_linux(marker: str, arch: str, extra: str = "") -> bool:
    """Return whether a marker is true on Linux with any Python; which Python is used is not known here."""
    machine = _LINUX | {"platform_machine": arch, "extra": extra}
    try:
        return not marker or ("python" not in marker and Marker(marker).evaluate(machine))
    except (ValueError, RecursionError):
        return False


def _requirements(lines: _Lines, group: int = 0) -> Iterator[Pin]:
    options = [re.split(r"[=\s]+", line.strip(), maxsplit=1) for _, line in lines if line.lstrip().startswith("-")]
    indexes = tuple(Index(option[1], _INDEX[option[0]]) for option in options if option[0] in _INDEX and option[1:])
    texts = ((at, line.partition(" --")[0].strip("\\ \t\r")) for at, line in lines)
    yield from filter(None, (_pin(at, text, indexes=indexes, group=group, own_line=True) for at, text in texts))


def _commands(source: PreparedDocument) -> PinnedFile:
    """Read the commands of a Dockerfile or script. A variable counts where the file gives it one value."""
    values: dict[str, set[str]] = {}
    for match in (*_SET.finditer(source.code), *_ENV.finditer(source.code)):
        values.setdefault(match["name"], set()).add(match["value"])
    known = {name: next(iter(each)) for name, each in values.items() if len(each) == 1}

    def filled(text: str) -> str:
        return _USED.sub(lambda used: known.get(used["name"]) or used["default"] or used[0], text)

    stages = [*_FROM.finditer(source.code)]
    bases = tuple((source.line(each.start("image")), filled(each["image"])) for each in stages)
    named = [name for name in _VARIABLES if re.search(rf"\b{name}\b", source.code)]
    settings = [Index(known.get(name, ""), _VARIABLES[name]) for name in named]
    settings += [Index("")] if _OTHER_SETTINGS.search(source.code) else []
    # An image of PyTorch has a torch; where that came from is no question.
    torches = [(line, _TORCH_IMAGE.search(image)) for line, image in bases]
    pins = [_pin(line, f"torch=={of[1]}+cu{of[2]}{of[3]}", indexes=(Index(""),)) for line, of in torches if of]
    for group, (at, command) in enumerate(source.commands, 1):
        start = _PIP.search(command) or _CONDA.search(command)
        words = [
            (source.line(at + word.start()), filled(re.sub("[\"']", "", word[0])))
            for word in (_WORD.finditer(command, start.end()) if start else ())
        ]
        pins += _installed(words, settings, group, conda=start is not None and start.re is _CONDA)
    # Which stage runs a command is not known.
    below = {image for _, image in bases} - {each["stage"] for each in stages}
    pythons = {found and found[1] for found in (re.search(r"(?:^|/)python:(3\.\d+)", image) for image in below)}
    python = next(iter(pythons)) if len(pythons) == 1 else None
    return PinnedFile(tuple(filter(None, pins)), bases, f"=={python}.*" if python else "")


def _installed(words: _Lines, settings: list[Index], group: int, *, conda: bool) -> Iterator[Pin | None]:
    given: list[Index] = []
    channels: list[str] = []
    wanted: list[tuple[int, str]] = []
    option = ""
    for line, word in words:
        name, _, value = word.partition("=") if word.startswith("-") else (option, "", word)
        option = name if not value else ""
        if conda and name in {"-c", "--channel"} and value:
            channels.append(value)
        elif name in _INDEX and value:
            given.append(Index("" if "$" in value else value, _INDEX[name]))
        elif value:
            wanted.append((line, word))
    indexes = (*given, *(index for index in settings if index.extra or all(one.extra for one in given)))
    for line, text in wanted:
        more: dict[str, Any] = {"indexes": indexes, "group": group, "sure": True}
        yield _conda(line, text, channels, group) if conda else _pin(line, text, **more)


def _conda(line: int, text: str, channels: list[str], group: int = 0) -> Pin | None:
    spec = _SPEC.match(text)
    if spec is None:
        return None
    loose = spec["sign"] == "=" and re.fullmatch(r"\d+(\.\d+)?", spec["version"])
    sign = spec["sign"] if spec["sign"] not in {"", "="} else "=="
    specifier = f"{sign}{spec['version']}{'.*' if loose else ''}" if spec["version"] else ""
    name = "torch" if spec["name"] == "pytorch" else spec["name"]
    used = (spec["channel"],) if spec["channel"] else tuple(channels)
    pin = _pin(line, f"{name}{specifier}", channels=used, group=group)
    return replace(pin, text=text) if pin and "cpu" in text[spec.end() :] else pin  # a build without CUDA


def _environment(source: PreparedDocument) -> PinnedFile:
    channels: list[str] = []
    rows: list[tuple[int, str]] = []
    pip: list[tuple[int, str]] = []
    section, below = "", -1
    for number, line in enumerate(source.code.split("\n"), 1):
        item = _ITEM.match(line)
        if item is None:
            section = line.partition(":")[0] if line[:1].isalpha() else section
            channels += re.findall(r"[\w-]+", line.partition("[")[2]) if section == "channels" else []
        elif section == "channels":
            channels.append(item["value"].strip("\"' \r"))
        elif section == "dependencies" and item["value"].strip() == "pip:":
            below = len(item["indent"])
        elif section == "dependencies":
            (pip if 0 <= below < len(item["indent"]) else rows).append((number, item["value"].strip("\"' \r")))
    pins = [pin for number, text in rows if (pin := _conda(number, text, channels))]
    python = next((pin.specifier for pin in pins if pin.name == "python"), "")
    return PinnedFile((*pins, *_requirements(pip, 1)), (), re.sub(r"==(3\.\d+).*", r"==\1.*", python))


def _toml(source: PreparedDocument, arch: str) -> PinnedFile:
    """Read pyproject.toml or uv.lock by lines: a finding names one, and a broken table is uv's to say."""
    # What is written over the requirements of others is meant so, and they count no more.
    blocks = " ".join(found[0] for found in _OVERRIDES.finditer(source.code) if found[0].startswith("override"))
    over = {canonicalize_name(name) for name in re.findall(r"[\"']([A-Za-z][\w.-]*)", blocks)}
    code = _OVERRIDES.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source.code)
    tables = [table[0] for table in _UV_INDEX.finditer(code)]
    urls = {_value(table, "name"): _value(table, "url") for table in tables}
    general = [_value(table, "url") for table in tables if not _EXPLICIT.search(table)]
    everywhere = tuple(Index(url, extra=True) for url in general if url)
    rows_of = [(t["name"], re.findall(r"\{[^}]*\}", t["value"])) for t in _UV_SOURCE.finditer(code)]
    rows_of += [(table["name"], [table["value"]]) for table in _UV_SOURCE_TABLE.finditer(code)]
    sources = {str(canonicalize_name(name)): rows for name, rows in rows_of}
    locked = [*_LOCKED.finditer(code)]
    pins = [
        _pin(source.line(table.start()), _value(table["value"], "url"), extra=_extra(table["value"]))
        for table in _UV_SOURCE.finditer(code)
        if not locked and not re.search("marker|python", table["value"])
    ]
    extra = ""
    for text in () if locked else _QUOTED.finditer(code):
        extra = text["key"] or extra
        pin = _pin(source.line(text.start()), text["one"] or text["two"] or "")
        if pin and (pin.specifier or pin.name in sources):
            rows = [row for row in sources.get(pin.name, []) if _on_linux(_value(row, "marker"), arch, extra)]
            mine = [row for row in rows if (_extra(row) or extra) == extra]
            # Where all rows are of other extras, the one that is installed decides.
            used = (Index(urls.get(_value(mine[0], "index"), "") if mine else ""),) if rows else everywhere
            pins.append(replace(pin, indexes=used, extra=extra))
    for table in _POETRY.finditer(code):
        for row in _POETRY_ROW.finditer(code, table.start(), table.end()):
            rows = [each for each in re.findall(r"\{[^}]*\}", row["rows"] or "{}") if _of_machine(each, arch)]
            keys = next(iter(rows), "")
            specifier, named = _of_poetry(row["version"] or _value(keys, "version")), _value(keys, "source")
            used = tuple(Index(url) for url in [urls.get(named, "")] if url) if named else everywhere
            pins += [_pin(source.line(row.start()), f"{row['name']}{specifier}", indexes=used)] if rows else []
    for row in locked:
        markers = re.findall(r"\"(.+)\"", row["markers"] or "")
        if not markers or any(_on_linux(marker, arch) for marker in markers):
            at, index = source.line(row.start()), Index(row["url"])
            pins.append(_pin(at, f"{row['name']}=={row['version']}", indexes=(index,), sure=True))
    poetry = next((pin.specifier for pin in pins if pin and pin.name == "python"), "")
    python = _pin(1, f"python{_value(code, 'requires-python') or poetry}")
    # A workspace's are for its members too (pollen-robotics/microduck_rl#2).
    places = [] if _ELSEWHERE.search(code) else [*_UV_SOURCES.finditer(code)]
    rows_given = [t for place in places for t in _UV_SOURCE.finditer(code, place.start(), place.end())]
    given = [row for row in rows_given if _value(row["value"], "index")]
    # A name may be written with other signs than its requirement: flash_attn.
    required = {canonicalize_name(name) for name in re.findall(r"[\"']([A-Za-z][\w.-]*)", source.code)}
    lines = {t["name"]: source.line(t.start()) for t in given if canonicalize_name(t["name"]) not in required}
    counted = tuple(pin for pin in pins if pin and pin.name not in over)
    return PinnedFile(counted, (), python.specifier if python else "", lines)


def _of_machine(row: str, arch: str) -> bool:
    """Return whether a row of Poetry is a release for Linux on this architecture, whatever the Python."""
    system = _value(row, "platform") in {"", "linux"} and _on_linux(_value(row, "markers"), arch)
    return system and not any(_value(row, key) for key in _NOT_ALWAYS)


def _of_poetry(version: str) -> str:
    """Return a version of Poetry as PEP 440 has it; what is neither is left to be no requirement."""
    found = re.fullmatch(r"(?P<sign>[\^~])(?P<from>[0-9]{1,4}(?:\.[0-9]{1,4}){0,3})(\+[\w.]+)?", version)
    if not found:
        return f"=={version}" if version[:1].isdigit() else version.removeprefix("*")
    fields = [int(field) for field in found["from"].split(".")]
    last = len(fields) - 1
    at = min(1, last) if found["sign"] == "~" else next((i for i, field in enumerate(fields) if field), last)
    return f">={found['from']},<{'.'.join(map(str, [*fields[:at], fields[at] + 1]))}"


def _extra(row: str) -> str:
    return _value(row, "extra") or _value(row, "group")


def _value(text: str, name: str) -> str:
    found = re.search(rf"(?<![\w-]){name}[\"']?\s*=\s*(?:\"(?P<one>[^\"\n]*)\"|'(?P<two>[^'\n]*)')", text)
    return (found["one"] or found["two"] or "") if found else ""
