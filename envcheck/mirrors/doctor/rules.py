"""The doctor's rules: what people set or type for mirrors and downloads that is not so, and what is.

Seen in the wild; W001 to W007, E101 and E102 are the mistakes of documents that are copied from site to site.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from envcheck.mirrors.doctor.document import Source
from envcheck.mirrors.doctor.known_variables import IGNORED, OUTDATED, TORCH
from envcheck.mirrors.doctor.model_urls import url_for_a_model
from envcheck.mirrors.doctor.secrets import SECRETS
from envcheck.mirrors.profiles.model import host_of, redacted

Found = Iterator[tuple[int, str, str]]


class Rule(NamedTuple):
    """A rule finds (position, what is wrong, what to do)."""

    id: str
    level: Literal["danger", "unreal", "outdated"]
    find: Callable[[Source], Found]


_FETCH: Final = "fetch it with `envcheck fetch URL --sha256 HASH`"
# A file that holds what it downloads against a hash or a signature, by whatever tool.
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


def _pattern(pattern: str, what: str, fix: str) -> Callable[[Source], Found]:
    compiled = re.compile(pattern)

    def find(source: Source) -> Found:
        yield from ((found.start(), what, fix) for found in compiled.finditer(source.code))

    return find


def assigned(name: str) -> str:
    """Return the pattern of a variable being given a value: in a shell, a Dockerfile, YAML, JSON, TOML or Python."""
    return (
        rf"(?<![\w$%{{.-]){name}(?:[\"']\])?\s*(?:=(?!=)|:\s)|\b(?:ENV|ARG|setenv|set\s+-gx|set\s+-x)\s+{name}\b"
        # A table of names, as {"HF_MIRROR": "HF_ENDPOINT"}, gives no value.
        rf"|(?<=[\"']){name}[\"']\s*:[ \t]*(?![\"'][A-Z_]+[\"'])\S"
        rf"|\bname:[ \t]*[\"']?{name}[\"']?[ \t]*\r?\n[ \t]{{0,40}}value:"
        rf"|(?:setdefault|putenv)\(\s*[\"']{name}[\"']"
    )


def _unread(names: dict[str, str]) -> Callable[[Source], Found]:
    """Find variables that are set and that nothing reads; one that the same file hands on by name is its own affair."""
    compiled = {
        name: (
            re.compile(assigned(name)),
            re.compile(
                rf"\$\{{?{name}\b|%{name}%|(?:getenv|environ\.get)\(\s*[\"']{name}\b|environ\[[\"']{name}[\"']\](?!\s*=[^=])"
                rf"|\benv\.{name}\b|\bvars\.{name}\b"
            ),
        )
        for name in names
    }

    def find(source: Source) -> Found:
        for name, (setting, reading) in compiled.items():
            if not reading.search(source.code):
                for found in setting.finditer(source.code):
                    yield found.start(), f"nothing reads {name}", f"set {names[name]} instead"

    return find


def _outdated(source: Source) -> Found:
    for name, instead in OUTDATED.items():
        for found in re.finditer(assigned(name), source.code):
            yield found.start(), f"{name} is read no more, or not for long", instead


def _verified(source: Source) -> int:
    """Return up to where what is downloaded is held against a hash: in a Dockerfile to the last check."""
    checks = [found.start() for found in _VERIFIED.finditer(source.code)]
    if checks and source.kind != "dockerfile":
        return len(source.code)  # often by a function, which comes first
    return checks[-1] if checks else -1


def _plaintext(source: Source) -> Found:
    """Find plain http that no hash or signature makes harmless: apt's sources are signed, some files verify."""
    verified = _verified(source)
    for at, command in source.commands:
        fetched = re.search(r"\b(?:wget|curl|aria2c)\b", command) is not None
        if not _CLIENTS.search(command) or _APT.search(command) or (fetched and at <= verified):
            continue
        for found in _PLAIN.finditer(command):
            if not re.search(r"(?i)prox(?:y|ies)\S*\s*[=:]?\s*[\"']?$|no_proxy", command[: found.start()]):
                host = host_of(redacted(found[0])).rpartition("@")[2]
                yield at + found.start(), f"plain http to {host}: whoever is on the way can change it", "use https://"


def _extra_index(source: Source) -> Found:
    pattern = re.compile(r"(?i)(?:--)?extra[-_]index[-_]url\b[^\n]*(?:\n[ \t]+(?:https?:|\$)[^\n]*)*")
    for found in pattern.finditer(source.code):
        start = source.code.rfind("\n", 0, found.start()) + 1
        scope = source.code if source.kind == "requirements" else source.code[start : found.end()]
        if re.search(r"(?i)\btorch\b|\btorch[=<>~\[]|/whl\b|pytorch|\btorch(?:vision|audio)\b", scope):
            yield (
                found.start(),
                "an extra index for torch is pooled with the first, without order: another build or project may win",
                "give torch a command of its own with one --index-url, or in uv an [[index]] with explicit = true",
            )


def _pooled(source: Source) -> Found:
    for found in re.finditer(r"\bunsafe-(?:best|first)-match\b", source.code):
        what = f"{found[0]} pools all indexes: whoever has a higher version under a name wins"
        yield found.start(), what, "leave it out: uv's own strategy stays with the first index that has a name"


def _unchecked(source: Source) -> Found:
    verified = _verified(source)
    for at, command in ((at, command) for at, command in source.commands if at > verified):
        # -nc is another option: it leaves alone what is there.
        option = r"(?:-(?:[a-zA-Z]*[a-mo-zA-Z])?c[a-zA-Z]*|--continue)"
        wget = re.search(rf"\bwget\b(?=.{{0,999}}?[\s\"']{option}(?:[\s\"']|$))", command, re.DOTALL)
        if wget:
            yield at + wget.start(), "wget -c takes whatever part is there for the right one, and ends with 0", _FETCH
        curl = re.search(r"\bcurl\b.{0,999}?\s(?:-[a-zA-Z]*C|--continue-at)[ =]?-(?:\s|$)", command, re.DOTALL)
        if curl:
            yield at + curl.start(), "curl -C - takes whatever part is there for the right one", _FETCH
        aria = re.search(r"\baria2c[\"',]*\s+(?:[\"'$-]|\S*://)", command)
        if aria:
            fix = f"{_FETCH}; or add --checksum=sha-256=HASH, and no more than -x8"
            yield at + aria.start(), "aria2c without --checksum holds nothing against a hash", fix


def _lines_dataset(source: Source) -> Found:
    for found in re.finditer(r"\bLineByLineTextDataset\s*\((?P<inside>[^()]{0,400})", source.code):
        url = re.search(r"[\"']https?://", found["inside"])
        what = "its file_path is a local file's, not a URL" if url else "it is removed from transformers"
        yield found.start(), f"LineByLineTextDataset: {what}", 'use datasets: load_dataset("text", data_files=...)'


def _token_to_endpoint(source: Source) -> Found:
    endpoint = re.search(rf"(?:{assigned('HF_ENDPOINT')})[^\n]*", source.code)
    token = re.search(assigned("(?:HF_TOKEN|HUGGING_FACE_HUB_TOKEN)"), source.code)
    if (
        endpoint
        and token
        and "HF_HUB_DISABLE_IMPLICIT_TOKEN" not in source.code
        and "huggingface.co" not in endpoint[0]
    ):
        fix = "set HF_HUB_DISABLE_IMPLICIT_TOKEN=1, unless the mirror is your own and may have it"
        yield token.start(), "the token is sent to whatever HF_ENDPOINT names", fix


def _xet(source: Source) -> Found:
    endpoint = re.search(rf"(?:{assigned('HF_ENDPOINT')})[^\n]*", source.code)
    if endpoint and "HF_HUB_DISABLE_XET" not in source.code and "huggingface.co" not in endpoint[0]:
        what = "xet's data ignores HF_ENDPOINT: large files go past the mirror"
        yield endpoint.start(), what, "set HF_HUB_DISABLE_XET=1 beside it (huggingface_hub#4475)"


def _too_late(source: Source) -> Found:
    # `import huggingface_hub` alone loads nothing of it yet.
    lazy = r"(?!huggingface_hub[ \t]*(?:$|#|;|,|as\b))"
    imported = re.search(rf"(?m)^[ \t]*(?:from\s+|import\s+{lazy})(?P<name>{_HUBS})\b", source.code)
    if source.kind != "python" or imported is None:
        return
    for found in re.compile(assigned("(?:HF_ENDPOINT|HF_HOME|HF_HUB_OFFLINE)")).finditer(source.code, imported.end()):
        what = f"set after {imported['name']} was imported, which is when it is read: it does nothing"
        yield found.start(), what, "set it before the first import, or outside of Python"


def _torch_backend(source: Source) -> Found:
    mirrored = re.search(rf"{assigned('UV_(?:DEFAULT_)?INDEX(?:_URL)?')}|\[\[(?:tool\.uv\.)?index\]\]", source.code)
    for at, command in source.commands:
        found = re.search(r"--torch-backend\b|\bUV_TORCH_BACKEND\b|^\s*torch-backend\s*=", command)
        beside = re.search(r"--(?:default-index|index-url|index)\b", command)
        if found and (mirrored or beside) and not command.lstrip().startswith("unset "):
            what = "torch-backend goes to PyTorch's own host whatever index is set"
            yield at + found.start(), what, "leave it out, and give torch the mirror's index: /whl/cu128"


def _pip_for_uv(source: Source) -> Found:
    uv = re.search(r"\buv\s+(?:pip|sync|add|lock|run|tool)\b", source.code)
    if uv is None or re.search(r"\bUV_(?:DEFAULT_)?INDEX|--default-index|--index|uv\.toml|\s-i\s", source.code):
        return
    for found in re.finditer(rf"\bpip3?\s+config\s+set\b|{assigned('PIP_INDEX_URL')}|/pip\.conf\b", source.code):
        yield found.start(), "uv, which is used here, reads none of pip's settings", "set UV_DEFAULT_INDEX too"


# Bases whose sources still are one file.
_OLDER: Final = re.compile(
    r"(?im)^[ \t]*FROM\s+\S*(?:bionic|focal|jammy|buster|bullseye|ubuntu\S{0,3}(?:18|20|22)\.04)"
)


def _old_sources(source: Source) -> Found:
    for at, command in source.commands:
        found = re.search(r"\bsed\b.{0,999}?\s/etc/apt/sources\.list(?![.\w])", command, re.DOTALL)
        if found and "sources.list.d" not in source.code and not _OLDER.search(source.code):
            what = "images since bookworm and noble have no /etc/apt/sources.list: sed fails, or changes nothing"
            yield at + found.start(), what, "write a deb822 file: `envcheck mirror show PROFILE --format apt`"


_TLS: Final = (
    rf"--trusted-host(?!\s*=?\s*[\"']?{_LOOPBACK})|(?m:^|\\n)[ \t]*trusted-host[ \t]*=(?!\s*{_LOOPBACK})"
    rf"|{assigned('PIP_TRUSTED_HOST')}"
    rf"|allow-insecure-host|{assigned('UV_INSECURE_HOST')}|strict-ssl[\s=]+[\"']?false|ssl_verify:?\s+(?:[Ff]alse|no)\b"
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

RULES: Final = (
    Rule("W001", "unreal", _unread(IGNORED)),
    Rule("W002", "unreal", _unread(TORCH)),
    Rule("W003", "danger", _unchecked),
    Rule("W004", "danger", _extra_index),
    Rule("W004", "danger", _pooled),
    Rule("W005", "danger", _plaintext),
    Rule("W006", "unreal", _lines_dataset),
    Rule("W007", "outdated", _outdated),
    Rule(
        "W007",
        "outdated",
        _pattern(
            r"\b(?:resume_download|local_dir_use_symlinks)\s*=|--(?:resume-download|local-dir-use-symlinks)\b",
            "an argument without effect, or gone",
            "leave it out",
        ),
    ),
    Rule("W007", "outdated", _pattern(r"\buse_auth_token\s*=", "use_auth_token is removed", "write token=")),
    Rule("W007", "outdated", _pattern(r"\bhuggingface-cli\b", "huggingface-cli is retired", "write hf")),
    Rule(
        "W008",
        "unreal",
        _pattern(
            r"\btorch_stable\.html", "torch_stable.html lists nothing newer than CUDA 12.1", "use the index /whl/cu128"
        ),
    ),
    Rule("W009", "danger", _token_to_endpoint),
    Rule(
        "W010",
        "danger",
        _pattern(
            _TLS, "the server's certificate is not checked", "trust the site's CA: SSL_CERT_FILE, or `ca:` in a profile"
        ),
    ),
    Rule(
        "W010",
        "danger",
        _pattern(_UNSIGNED, "apt's signatures are not checked", "name the archive's key: Signed-By in a deb822 file"),
    ),
    Rule("W011", "unreal", _xet),
    Rule("W012", "unreal", _torch_backend),
    Rule(
        "W013",
        "unreal",
        _pattern(r"/pytorch/simple\b", "PyTorch's index is no /simple", "it is /whl/cu128, a directory a variant"),
    ),
    Rule("W014", "unreal", _pip_for_uv),
    Rule("W015", "unreal", _too_late),
    Rule("W016", "unreal", _old_sources),
    Rule("E101", "unreal", url_for_a_model),
    Rule(
        "E102",
        "unreal",
        _pattern(
            r"--mirror-url\b",
            "wget has no --mirror-url (--mirror means recursive)",
            "fetch it with `envcheck fetch URL --sha256 HASH --mirror PROFILE`",
        ),
    ),
    *(Rule(*row) for row in SECRETS),
)
