"""The doctor's rules: common mistakes in settings of mirrors and downloads, and their corrections.

W001 to W007, E101 and E102 come from instructions that are copied from site to site. A rule reads a prepared file:
comments are blanked and continued lines joined, without moving any position.
"""

from __future__ import annotations

import ast
import bisect
import heapq
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Final, Literal, NamedTuple

from envcheck.mirrors.profiles.model import host_of, redacted

Level = Literal["danger", "unreal", "outdated"]
Kind = Literal["python", "json", "dockerfile", "requirements", "environment", "settings"]
_CONTINUED: Final = re.compile(r"\\[ \t]*\r?\n")
_COMMAND_END: Final = re.compile(r"&&|\|\|?|;|\n")
# A # starts a comment at the start of a line or after a blank, outside of quotes.
_COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
_STRING: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")


# Position, problem and fix of each finding.
Matches = Iterator[tuple[int, str, str]]


class Document(NamedTuple):
    """A file's name and content. A line of an environment is `NAME=value`."""

    name: str
    content: str
    kind: Kind


class PreparedDocument:
    """A document with its comments blanked (`code`), its commands, and the line of each position."""

    def __init__(self, text: Document, code: str) -> None:
        self.kind = text.kind
        self.text = text.content
        self.code = code
        self._starts = [0, *(match.end() for match in re.finditer("\n", text.content))]
        self.commands = list(_commands(code))

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


def prepare(text: Document) -> PreparedDocument:
    """Return a document with comments blanked and continued lines joined."""
    if text.kind in {"json", "environment"}:
        return PreparedDocument(text, text.content)
    code = _without_docstrings(text.content) if text.kind == "python" else text.content
    code = _without_comments(code)
    return PreparedDocument(text, _CONTINUED.sub(lambda match: " " * len(match[0]), code))


def _without_comments(code: str) -> str:
    """Blank comments, except a quoted `#`. A string ends with its line, because quotes in prose may never close."""
    strings = [match.span() for match in _STRING.finditer(code)]
    starts = [start for start, _ in strings]

    def blank(match: re.Match[str]) -> str:
        before = bisect.bisect_right(starts, match.start()) - 1
        inside = before >= 0 and strings[before][1] > match.start()
        return match[0] if inside else " " * len(match[0])

    return _COMMENT.sub(blank, code)


def _without_docstrings(code: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    lines = code.splitlines(keepends=True)
    if code.count("\n") != sum(line.endswith("\n") for line in lines) or len(lines) - 1 > code.count("\n"):
        return code  # line endings that Python's parser does not know
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, min(node.end_lineno or node.lineno, len(lines))):
                ending = "\n" if lines[number].endswith("\n") else ""
                lines[number] = " " * (len(lines[number]) - len(ending)) + ending
    return "".join(lines)


def _commands(code: str) -> Iterator[tuple[int, str]]:
    at = 0
    # Ignore separators between quotes.
    for match in _COMMAND_END.finditer(_STRING.sub(lambda quoted: "x" * len(quoted[0]), code)):
        if code[at : match.start()].strip():
            yield at, code[at : match.start()]
        at = match.end()
    if code[at:].strip():
        yield at, code[at:]


IGNORED: Final = {
    "HF_MIRROR": "HF_ENDPOINT",
    "HF_MIRROR_URL": "HF_ENDPOINT",
    "HUGGINGFACE_MIRROR": "HF_ENDPOINT",
    "HUGGINGFACE_ENDPOINT": "HF_ENDPOINT",
    "HF_HUB_ENDPOINT": "HF_ENDPOINT",
    "PIP_MIRROR": "PIP_INDEX_URL",
    "PYPI_MIRROR": "PIP_INDEX_URL",
    "PIP_INDEX": "PIP_INDEX_URL",
    "UV_MIRROR": "UV_DEFAULT_INDEX",
    "CONDA_MIRROR": "channel_alias in .condarc",
    "NPM_MIRROR": "NPM_CONFIG_REGISTRY",
    "TORCH_CACHE": "TORCH_HOME",
}
TORCH: Final = {
    "PYTORCH_MIRROR": "an index for torch: --index-url in pip, [[index]] in uv.toml",
    "TORCH_MIRROR": "an index for torch: --index-url in pip, [[index]] in uv.toml",
    "PYTORCH_INDEX": "an index for torch: --index-url in pip, [[index]] in uv.toml",
}
OUTDATED: Final = {
    "HF_HUB_ENABLE_HF_TRANSFER": "remove it: huggingface_hub no longer has hf_transfer; see `envcheck fetch`",
    "TRANSFORMERS_CACHE": "set HF_HOME",
    "PYTORCH_TRANSFORMERS_CACHE": "set HF_HOME",
    "PYTORCH_PRETRAINED_BERT_CACHE": "set HF_HOME",
    "HUGGINGFACE_HUB_CACHE": "set HF_HUB_CACHE",
    "HUGGING_FACE_HUB_TOKEN": "set HF_TOKEN",
    "TRANSFORMERS_OFFLINE": "set HF_HUB_OFFLINE=1",
    "UV_INDEX_URL": "set UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL": "set UV_INDEX",
}


_IN_URL: Final = re.compile(
    r"(?i)\b(?P<scheme>[a-z][a-z0-9+.-]{1,10})://(?P<user>[^\s/@:\"'<>]{1,200})(?P<password>:[^\s/@\"'<>]{0,300})?@(?P<host>[\w.\[\]-]+)"
)
_TOKEN: Final = re.compile(r"\b(?:(?:hf|npm|gh[pousr])_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|pypi-[\w-]{50,})")
_BUILD_ARGUMENT: Final = re.compile(
    r"(?im)^[ \t]*(?:ENV|ARG)\s+(?P<name>\w*(?:TOKEN|PASSWORD|PASSWD|SECRET|API_KEY))\b"
)
_EXAMPLE: Final = re.compile(r"(?i):?(?:user(?:name)?|pass(?:word|wd)?|token|secret|x+|\*+|\.+|<.*>)$")


def _in_url(source: PreparedDocument) -> Matches:
    for match in _IN_URL.finditer(source.text):
        password = match["password"] or ""
        in_comment = source.code[match.start() : match.end()].isspace()
        if not password and match["scheme"].lower() not in {"http", "https"}:
            continue
        if in_comment and _EXAMPLE.match(password or match["user"]):
            continue
        problem = f"a user or password in the URL of {match['host']}: logs, locks and image layers will contain it"
        fix = "move it to ~/.netrc (mode 600) or a build secret, and name that in a profile (`netrc:`, `credentials:`)"
        yield match.start(), problem, fix


def _token(source: PreparedDocument) -> Matches:
    for match in _TOKEN.finditer(source.text):
        if source.kind == "environment" or re.fullmatch(r"[a-z]+[_-](.)\1*", match[0]):
            continue  # a token belongs in an environment; xxxx is an example
        fix = "revoke the token, and pass the new one in a file or a variable"
        yield match.start(), "the file contains a token", fix


def _build_argument(source: PreparedDocument) -> Matches:
    if source.kind != "dockerfile":
        return
    for match in _BUILD_ARGUMENT.finditer(source.code):
        fix = f"RUN --mount=type=secret,id={match['name'].lower()},env={match['name']} ..."
        yield match.start(), f"{match['name']} in ENV or ARG stays in the image's history", fix


_FIX: Final = "pass OWNER/NAME and set HF_ENDPOINT; or run `envcheck fetch --model` and pass the directory"
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


def url_for_a_model(source: PreparedDocument) -> Matches:
    """Find calls with a URL instead of a repository's name; a variable has the value that was set last."""
    urls: dict[str, bool] = {}
    steps = heapq.merge(_ASSIGNED.finditer(source.code), _CALLED.finditer(source.code), key=lambda match: match.start())
    for match in steps:
        is_url = _is_url(match["value"], urls)
        if match.re is _ASSIGNED:
            urls[match["name"]] = is_url
        elif is_url:
            yield match.start(), "a URL in the place of a repository's name or a directory", _FIX


def _is_url(value: str, urls: dict[str, bool]) -> bool:
    named = _VARIABLE.match(value)
    return _URL.match(value) is not None or (named is not None and urls.get(named["bare"] or named["put"], False))


class DoctorRule(NamedTuple):
    """A rule. `find` yields (position, problem, fix)."""

    id: str
    level: Level
    find: Callable[[PreparedDocument], Matches]


_FETCH: Final = "use `envcheck fetch URL --sha256 HASH`"
# A tool in the file that verifies downloads with a hash or a signature.
_VERIFIED: Final = re.compile(
    r"\b(?:sha(?:1|256|384|512)sum|shasum|b2sum|gpgv?\b|minisign|cosign)|--checksum\b|--sha256\b"
)
_LOOPBACK: Final = r"(?:localhost|127\.|\[::1\]|0\.0\.0\.0|169\.254\.)"
_PLAIN: Final = re.compile(rf"(?<![\w])http://(?!{_LOOPBACK})[^\s\"'<>|;]+")
_CLIENTS: Final = re.compile(
    r"(?i)index|find-links|[\s\"']-[if][\s\"']|endpoint|registry|channel|mirror|\bwget\b|\bcurl\b|\baria2c\b|\bgit\s+clone\b|^\s*url\s*="
    r"|\bpip3?[\s\"',]+install\b|^\s*ADD\s|\burlretrieve\b|\bload_state_dict_from_url\b|\bdownload_url"
    r"|\brequests\.get\([^()\n]{0,300}\.(?:bin|pth?|ckpt|safetensors|whl|zip|tar|gz|parquet)\b"
)
_APT: Final = re.compile(r"(?m)^\s*(?:deb|deb-src|URIs:)\s|sources\.list|apt-key|apt-add-repository")
_HUBS: Final = r"huggingface_hub|transformers|datasets|diffusers|sentence_transformers|peft|accelerate|vllm"


def _pattern(pattern: str, problem: str, fix: str) -> Callable[[PreparedDocument], Matches]:
    compiled = re.compile(pattern)

    def find(source: PreparedDocument) -> Matches:
        yield from ((match.start(), problem, fix) for match in compiled.finditer(source.code))

    return find


def assignment_pattern(name: str) -> str:
    """Return a pattern for an assignment of a variable in a shell, a Dockerfile, YAML, JSON, TOML or Python."""
    return (
        rf"(?<![\w$%{{.-]){name}(?:[\"']\])?\s*(?:=(?!=)|:\s)|\b(?:ENV|ARG|setenv|set\s+-gx|set\s+-x)\s+{name}\b"
        # A table of names, such as {"HF_MIRROR": "HF_ENDPOINT"}, assigns no value.
        rf"|(?<=[\"']){name}[\"']\s*:[ \t]*(?![\"'][A-Z_]+[\"'])\S"
        rf"|\bname:[ \t]*[\"']?{name}[\"']?[ \t]*\r?\n[ \t]{{0,40}}value:"
        rf"|(?:setdefault|putenv)\(\s*[\"']{name}[\"']"
    )


def _ignored_variables(names: dict[str, str]) -> Callable[[PreparedDocument], Matches]:
    """Find variables that are set but that no program reads, unless the same file reads them."""
    compiled = {
        name: (
            re.compile(assignment_pattern(name)),
            re.compile(
                rf"\$\{{?{name}\b|%{name}%|(?:getenv|environ\.get)\(\s*[\"']{name}\b|environ\[[\"']{name}[\"']\](?!\s*=[^=])"
                rf"|\benv\.{name}\b|\bvars\.{name}\b"
            ),
        )
        for name in names
    }

    def find(source: PreparedDocument) -> Matches:
        for name, (setting, reading) in compiled.items():
            if not reading.search(source.code):
                for match in setting.finditer(source.code):
                    yield match.start(), f"no program reads {name}", f"set {names[name]} instead"

    return find


def _outdated(source: PreparedDocument) -> Matches:
    for name, instead in OUTDATED.items():
        for match in re.finditer(assignment_pattern(name), source.code):
            yield match.start(), f"{name} is deprecated or has no effect", instead


def _verified_until(source: PreparedDocument) -> int:
    """Return the position up to which downloads are verified: in a Dockerfile the last check, elsewhere the end."""
    checks = [match.start() for match in _VERIFIED.finditer(source.code)]
    if checks and source.kind != "dockerfile":
        return len(source.code)  # the check is often in a function, which comes first
    return checks[-1] if checks else -1


def _plaintext(source: PreparedDocument) -> Matches:
    """Find plain http without a hash or signature. apt's sources are signed, and some files verify downloads."""
    verified = _verified_until(source)
    for at, command in source.commands:
        fetched = re.search(r"\b(?:wget|curl|aria2c)\b", command) is not None
        if not _CLIENTS.search(command) or _APT.search(command) or (fetched and at <= verified):
            continue
        for match in _PLAIN.finditer(command):
            if not re.search(r"(?i)prox(?:y|ies)\S*\s*[=:]?\s*[\"']?$|no_proxy", command[: match.start()]):
                host = host_of(redacted(match[0])).rpartition("@")[2]
                problem = f"plain http to {host}: anyone on the network path can change the data"
                yield at + match.start(), problem, "use https://"


def _extra_index(source: PreparedDocument) -> Matches:
    pattern = re.compile(r"(?i)(?:--)?extra[-_]index[-_]url\b[^\n]*(?:\n[ \t]+(?:https?:|\$)[^\n]*)*")
    for match in pattern.finditer(source.code):
        start = source.code.rfind("\n", 0, match.start()) + 1
        scope = source.code if source.kind == "requirements" else source.code[start : match.end()]
        if re.search(r"(?i)\btorch\b|\btorch[=<>~\[]|/whl\b|pytorch|\btorch(?:vision|audio)\b", scope):
            problem = "pip mixes an extra index for torch with the first, without order, and may take another project"
            fix = "install torch in a separate command with one --index-url, or in uv from an explicit [[index]]"
            yield match.start(), problem, fix


def _unsafe_match(source: PreparedDocument) -> Matches:
    for match in re.finditer(r"\bunsafe-(?:best|first)-match\b", source.code):
        problem = f"{match[0]} mixes all indexes: the highest version of a name wins, from any of them"
        yield match.start(), problem, "remove it: by default uv uses only the first index that has the name"


def _unchecked_downloads(source: PreparedDocument) -> Matches:
    verified = _verified_until(source)
    for at, command in ((at, command) for at, command in source.commands if at > verified):
        # -nc is another option, which keeps existing files.
        option = r"(?:-(?:[a-zA-Z]*[a-mo-zA-Z])?c[a-zA-Z]*|--continue)"
        wget = re.search(rf"\bwget\b(?=.{{0,999}}?[\s\"']{option}(?:[\s\"']|$))", command, re.DOTALL)
        if wget:
            problem = "wget -c resumes any existing partial file without a check, and exits with 0"
            yield at + wget.start(), problem, _FETCH
        curl = re.search(r"\bcurl\b.{0,999}?\s(?:-[a-zA-Z]*C|--continue-at)[ =]?-(?:\s|$)", command, re.DOTALL)
        if curl:
            yield at + curl.start(), "curl -C - resumes any existing partial file without a check", _FETCH
        aria = re.search(r"\baria2c[\"',]*\s+(?:[\"'$-]|\S*://)", command)
        if aria:
            fix = f"{_FETCH}; or add --checksum=sha-256=HASH, and at most -x8"
            yield at + aria.start(), "aria2c without --checksum verifies no hash", fix


def _lines_dataset(source: PreparedDocument) -> Matches:
    for match in re.finditer(r"\bLineByLineTextDataset\s*\((?P<inside>[^()]{0,400})", source.code):
        url = re.search(r"[\"']https?://", match["inside"])
        problem = "file_path must be a local file, not a URL" if url else "removed from transformers"
        yield match.start(), f"LineByLineTextDataset: {problem}", 'use datasets: load_dataset("text", data_files=...)'


def _token_to_endpoint(source: PreparedDocument) -> Matches:
    endpoint = re.search(rf"(?:{assignment_pattern('HF_ENDPOINT')})[^\n]*", source.code)
    if endpoint is None or "huggingface.co" in endpoint[0]:
        return
    token = re.search(assignment_pattern("(?:HF_TOKEN|HUGGING_FACE_HUB_TOKEN)"), source.code)
    if token and "HF_HUB_DISABLE_IMPLICIT_TOKEN" not in source.code:
        fix = "set HF_HUB_DISABLE_IMPLICIT_TOKEN=1, unless your own mirror may have the token"
        yield token.start(), "the token is sent to the host in HF_ENDPOINT", fix


def _xet(source: PreparedDocument) -> Matches:
    endpoint = re.search(rf"(?:{assignment_pattern('HF_ENDPOINT')})[^\n]*", source.code)
    if endpoint and "HF_HUB_DISABLE_XET" not in source.code and "huggingface.co" not in endpoint[0]:
        problem = "xet ignores HF_ENDPOINT: large files do not come from the mirror"
        yield endpoint.start(), problem, "set HF_HUB_DISABLE_XET=1 beside it (huggingface_hub#4475)"


def _too_late(source: PreparedDocument) -> Matches:
    # `import huggingface_hub` alone does not read the variables yet.
    lazy = r"(?!huggingface_hub[ \t]*(?:$|#|;|,|as\b))"
    imported = re.search(rf"(?m)^[ \t]*(?:from\s+|import\s+{lazy})(?P<name>{_HUBS})\b", source.code)
    if source.kind != "python" or imported is None:
        return
    for match in re.compile(assignment_pattern("(?:HF_ENDPOINT|HF_HOME|HF_HUB_OFFLINE)")).finditer(
        source.code, imported.end()
    ):
        problem = f"set after the import of {imported['name']}, which reads it: the setting has no effect"
        yield match.start(), problem, "set it before the import, or outside of Python"


def _torch_backend(source: PreparedDocument) -> Matches:
    mirrored = re.search(
        rf"{assignment_pattern('UV_(?:DEFAULT_)?INDEX(?:_URL)?')}|\[\[(?:tool\.uv\.)?index\]\]", source.code
    )
    for at, command in source.commands:
        match = re.search(r"--torch-backend\b|\bUV_TORCH_BACKEND\b|^\s*torch-backend\s*=", command)
        beside = re.search(r"--(?:default-index|index-url|index)\b", command)
        if match and (mirrored or beside) and not command.lstrip().startswith("unset "):
            problem = "torch-backend uses PyTorch's own host and ignores the index setting"
            yield at + match.start(), problem, "remove it, and install torch from the mirror's index, e.g. /whl/cu128"


def _pip_for_uv(source: PreparedDocument) -> Matches:
    uv = re.search(r"\buv\s+(?:pip|sync|add|lock|run|tool)\b", source.code)
    if uv is None or re.search(r"\bUV_(?:DEFAULT_)?INDEX|--default-index|--index|uv\.toml|\s-i\s", source.code):
        return
    for match in re.finditer(
        rf"\bpip3?\s+config\s+set\b|{assignment_pattern('PIP_INDEX_URL')}|/pip\.conf\b", source.code
    ):
        yield match.start(), "the file uses uv, which does not read pip's settings", "set UV_DEFAULT_INDEX too"


# Bases whose sources are still one file.
_OLDER: Final = re.compile(
    r"(?im)^[ \t]*FROM\s+\S*(?:bionic|focal|jammy|buster|bullseye|ubuntu\S{0,3}(?:18|20|22)\.04)"
)


def _old_sources(source: PreparedDocument) -> Matches:
    for at, command in source.commands:
        match = re.search(r"\bsed\b.{0,999}?\s/etc/apt/sources\.list(?![.\w])", command, re.DOTALL)
        if match and "sources.list.d" not in source.code and not _OLDER.search(source.code):
            problem = "images since bookworm and noble have no /etc/apt/sources.list: sed fails or has no effect"
            yield at + match.start(), problem, "write a deb822 file: `envcheck mirror show PROFILE --format apt`"


_TLS: Final = (
    rf"--trusted-host(?!\s*=?\s*[\"']?{_LOOPBACK})|(?m:^|\\n)[ \t]*trusted-host[ \t]*=(?!\s*{_LOOPBACK})"
    rf"|{assignment_pattern('PIP_TRUSTED_HOST')}"
    rf"|allow-insecure-host|{assignment_pattern('UV_INSECURE_HOST')}|strict-ssl[\s=]+[\"']?false|ssl_verify:?\s+(?:[Ff]alse|no)\b"
    r"|\bpip3?\s+config\s+set\s+\S*trusted-host\b|--no-check-certificate|--check-certificate=false|\bcurl\b[^\n;&|]{0,999}?\s(?:--insecure\b|-[a-zA-Z]*k[a-zA-Z]*\b)"
    r"|\bNODE_TLS_REJECT_UNAUTHORIZED\s*=\s*[\"']?0|\bGIT_SSL_NO_VERIFY\b|http\.sslVerify[\s=]+false"
    r"|\bverify\s*=\s*False\b|CURL_CA_BUNDLE[\"'\]]*\s*=\s*[\"']{2}|Verify-Peer(?:\s+|=)[\"']?false"
    r"|\bcheck_certificate\s*=\s*off|\b_create_unverified_context\b|\bPYTHONHTTPSVERIFY\s*=\s*[\"']?0"
)
_UNSIGNED: Final = (
    r"\[[^\]\n]{0,200}\btrusted=yes\b|(?mi:^[ \t]*trusted:[ \t]*yes\b)"
    r"|--allow-(?:unauthenticated|insecure-repositories)\b"
    r"|\bAllow(?:Unauthenticated|InsecureRepositories)[\s=]+[\"']?(?:true|1|yes)\b"
)

# One row a pattern: id, level, pattern, problem, fix.
_PATTERNS: Final[tuple[tuple[str, Level, str, str, str], ...]] = (
    (
        "W007",
        "outdated",
        r"\b(?:resume_download|local_dir_use_symlinks)\s*=|--(?:resume-download|local-dir-use-symlinks)\b",
        "an argument that has no effect or is removed",
        "remove it",
    ),
    ("W007", "outdated", r"\buse_auth_token\s*=", "use_auth_token is removed", "write token="),
    ("W007", "outdated", r"\bhuggingface-cli\b", "huggingface-cli is retired", "write hf"),
    ("W008", "unreal", r"\btorch_stable\.html", "it lists nothing newer than CUDA 12.1", "use the index /whl/cu128"),
    ("W010", "danger", _TLS, "the server's certificate is not checked", "trust the site's CA: SSL_CERT_FILE or `ca:`"),
    ("W010", "danger", _UNSIGNED, "apt's signatures are not checked", "name the archive's key: Signed-By"),
    ("W013", "unreal", r"/pytorch/simple\b", "PyTorch's index is not at /simple", "use /whl/cu128"),
    ("E102", "unreal", r"--mirror-url\b", "wget has no --mirror-url", _FETCH),
)

RULES: Final = (
    *(DoctorRule(key, level, _pattern(pattern, problem, fix)) for key, level, pattern, problem, fix in _PATTERNS),
    DoctorRule("W001", "unreal", _ignored_variables(IGNORED)),
    DoctorRule("W002", "unreal", _ignored_variables(TORCH)),
    DoctorRule("W003", "danger", _unchecked_downloads),
    DoctorRule("W004", "danger", _extra_index),
    DoctorRule("W004", "danger", _unsafe_match),
    DoctorRule("W005", "danger", _plaintext),
    DoctorRule("W006", "unreal", _lines_dataset),
    DoctorRule("W007", "outdated", _outdated),
    DoctorRule("W009", "danger", _token_to_endpoint),
    DoctorRule("W011", "unreal", _xet),
    DoctorRule("W012", "unreal", _torch_backend),
    DoctorRule("W014", "unreal", _pip_for_uv),
    DoctorRule("W015", "unreal", _too_late),
    DoctorRule("W016", "unreal", _old_sources),
    DoctorRule("E101", "unreal", url_for_a_model),
    DoctorRule("E103", "danger", _in_url),
    DoctorRule("E104", "danger", _token),
    DoctorRule("E105", "danger", _build_argument),
)
