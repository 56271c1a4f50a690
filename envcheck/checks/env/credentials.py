"""What was needed to build an image stays in it, and goes wherever the image goes.

Seen in the wild: a .netrc of the build host, a pip.conf with user and password, a Hugging Face token under ~/.cache, an
AWS key in ENV. Only names and paths are ever read out, never a value.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import envcheck
from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned

CHECK = Check(promise="no credential lies in the environment's files or variables", level="static")

LIMIT = Limit(
    0, "credentials", "where git, pip, uv, conda, docker, huggingface_hub, AWS and kaggle keep theirs", "equal"
)
FIX = "remove them (in an image: build without them, a later layer does not take them out) and revoke what was in there"
# A credential by being there, under a home.
FILES = (
    ".netrc",
    ".git-credentials",
    ".pypirc",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    ".aws/credentials",
    ".config/gcloud/application_default_credentials.json",
    ".kaggle/kaggle.json",
    ".local/share/uv/credentials/credentials.toml",
    ".ssh/id_rsa",
    ".ssh/id_ed25519",
    ".ssh/id_ecdsa",
)
# A credential where this is in it.
PATTERNS = (
    (".config/pip/pip.conf", "//[^/@\\s]+:[^/@\\s]+@"),
    (".pip/pip.conf", "//[^/@\\s]+:[^/@\\s]+@"),
    (".config/uv/uv.toml", "//[^/@\\s]+:[^/@\\s]+@"),
    (".condarc", "//[^/@\\s]+:[^/@\\s]+@|/t/[^/\\s]+/"),
    (".docker/config.json", '"auth"\\s*:\\s*"[^"]'),
)
SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)S?(?:_|$)", re.IGNORECASE
)
NO_SECRET = re.compile(r"TOKENIZERS|_FILE$|_PATH$|_DIR$", re.IGNORECASE)
IN_URL = re.compile(r"//[^/@\s]+:[^/@\s]+@")
STAGED = "/run/envcheck/"


def measure(rank: Rank) -> Measured:
    """Return the paths of files and the names of variables that hold credentials; no content."""
    home = Path(os.environ.get("HOME") or "/root")
    homes = list(dict.fromkeys([home, Path("/root")] if os.access("/root", os.X_OK) else [home]))
    own = Path(sys.prefix)
    shared = [(Path("/etc/pip.conf"), PATTERNS[0][1]), (own / "pip.conf", PATTERNS[0][1])]
    shared += [(Path("/etc/uv/uv.toml"), PATTERNS[2][1]), (own / "uv.toml", PATTERNS[2][1])]
    return {
        "rank": rank.rank,
        "image": envcheck.__file__.startswith(STAGED),
        "prefix": sys.prefix,
        "files": [*_kept(homes), *(str(p) for p, pattern in shared if _holds(p, pattern))],
        "variables": sorted(name for name, value in os.environ.items() if _secret(name, value)),
    }


def _kept(homes: list[Path]) -> list[str]:
    there = [home / name for home in homes for name in FILES if _holds(home / name, r"\S")]
    return [str(p) for p in there] + [str(home / n) for home in homes for n, p in PATTERNS if _holds(home / n, p)]


def _holds(path: Path, pattern: str) -> bool:
    try:
        return re.search(pattern, path.read_text(errors="replace")) is not None
    except OSError:
        return False


def _secret(name: str, value: str) -> bool:
    by_name = bool(value.strip()) and SECRET_NAME.search(name) is not None and NO_SECRET.search(name) is None
    return by_name or IN_URL.search(value) is not None


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail for an image, which is handed on; warn for a machine, whose user may well have a .netrc."""
    entry = ranks[0] if ranks else {}
    files, variables = entry.get("files"), entry.get("variables")
    if not isinstance(files, list) or not isinstance(variables, list):
        return undecided("the environment was not looked through", fix="see the check's log")
    inside = [path for path in files if path.startswith(f"{entry.get('prefix')}/")]
    if not files and not variables:
        return passed("none found", value=0, unit=LIMIT.unit, limit=LIMIT)
    told = "; ".join(filter(None, (", ".join(files), ", ".join(f"${name}" for name in variables))))
    count = len(files) + len(variables)
    if entry.get("image") or inside:
        return failed(f"found {told}", fix=FIX, value=count, unit=LIMIT.unit, limit=LIMIT)
    why = f"this machine holds {told}; do not copy them into an image"
    return warned(why, fix=FIX, value=count, unit=LIMIT.unit, limit=LIMIT)
