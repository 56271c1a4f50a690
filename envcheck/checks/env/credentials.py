"""What was needed to build an image stays in it, and goes wherever the image goes.

Seen in the wild: a .netrc of the build host, a pip.conf with user and password, a Hugging Face token under ~/.cache, an
AWS key in ENV, a token given as ARG, which the image's history shows to whoever has the image. Only names and paths are
ever read out, never a value.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned
from envcheck.checks.env import image_config
from envcheck.checks.support import secret_patterns

CHECK = Check(promise="no credential lies in the environment's files, variables or history", level="static")

LIMIT = Limit(
    0,
    "credentials",
    "where git, pip, uv, conda, docker, apt, huggingface_hub, AWS, npm and kaggle keep theirs",
    "equal",
)
FIX = "remove them (in an image: build without them, a later layer does not take them out) and revoke what was in there"
# A credential by being there, under a home.
FILES = (
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".pypirc",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    ".aws/credentials",
    ".azure/msal_token_cache.json",
    ".config/gcloud/application_default_credentials.json",
    ".config/rclone/rclone.conf",
    ".kaggle/kaggle.json",
    ".modelscope/credentials/session",
    ".cargo/credentials.toml",
    ".local/share/uv/credentials/credentials.toml",
    ".ssh/id_rsa",
    ".ssh/id_ed25519",
    ".ssh/id_ecdsa",
)
_ANY = r"\S"
_URL = secret_patterns.IN_URL.pattern
_AUTH = r'"(?:auth|identitytoken|password)"\s*:\s*"[^"]'
# A credential where this is in it: under a home, ...
PATTERNS = (
    (".config/pip/pip.conf", _URL),
    (".pip/pip.conf", _URL),
    (".config/uv/uv.toml", _URL),
    (".condarc", _URL + "|/t/[^/\\s]+/"),
    (".gitconfig", _URL + "|(?i:authorization:)"),
    (".npmrc", r"_(?:authToken|auth|password)\s*=\s*[^\s$]"),
    (".docker/config.json", _AUTH),
    (".config/containers/auth.json", _AUTH),
)
# ... and for all users.
SHARED = (
    ("/etc/pip.conf", _URL),
    ("/etc/xdg/pip/pip.conf", _URL),
    ("/etc/uv/uv.toml", _URL),
    ("/etc/gitconfig", _URL + "|(?i:authorization:)"),
    ("/etc/apt/auth.conf", _ANY),
    ("/etc/apt/auth.conf.d/*", _ANY),
    ("/etc/apt/apt.conf.d/*", _URL),
    ("/etc/apt/sources.list", _URL),
    ("/etc/apt/sources.list.d/*", _URL),
)
# Where a variable says that such a file is.
NAMED = (
    ("NETRC", _ANY),
    ("PIP_CONFIG_FILE", _URL),
    ("UV_CONFIG_FILE", _URL),
    ("HF_TOKEN_PATH", _ANY),
    ("AWS_SHARED_CREDENTIALS_FILE", _ANY),
    ("GOOGLE_APPLICATION_CREDENTIALS", _ANY),
    ("NPM_CONFIG_USERCONFIG", PATTERNS[5][1]),
)


def measure(rank: Rank) -> Measured:
    """Return the paths of files and the names of variables that hold credentials; no content."""
    named = [(Path(os.environ[name]), pattern) for name, pattern in NAMED if os.environ.get(name)]
    named += [
        (Path(os.environ[n], f), _ANY)
        for n, f in (("HF_HOME", "token"), ("HF_HOME", "stored_tokens"))
        if n in os.environ
    ]
    own = [
        (Path(sys.prefix, "pip.conf"), _URL),
        (Path(sys.prefix, "uv.toml"), _URL),
        (Path(sys.prefix, ".condarc"), PATTERNS[3][1]),
    ]
    shared = [(path, pattern) for place, pattern in SHARED for path in sorted(Path("/").glob(place.lstrip("/")))]
    places = [*_kept(_homes()), *(str(path) for path, pattern in (*named, *own, *shared) if _holds(path, pattern))]
    return {
        "rank": rank.rank,
        "image": image_config.is_image(),
        "prefix": sys.prefix,
        "files": list(dict.fromkeys(places)),
        "variables": sorted(name for name, value in os.environ.items() if secret_patterns.variable(name, value)),
    }


def _homes() -> list[Path]:
    """Return the homes to look into: in an image everybody's, on a machine the user's own and root's."""
    homes = [Path(os.environ.get("HOME") or "/root"), *([Path("/root")] if os.access("/root", os.X_OK) else [])]
    homes += sorted(Path("/home").glob("*")) if image_config.is_image() else []
    return list(dict.fromkeys(homes))


def _kept(homes: Iterable[Path]) -> list[str]:
    places = [(name, _ANY) for name in FILES] + list(PATTERNS)
    return [str(home / name) for home in homes for name, pattern in places if _holds(home / name, pattern)]


def _holds(path: Path, pattern: str) -> bool:
    try:
        return re.search(pattern, path.read_text(errors="replace")) is not None
    except OSError:
        return False


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail for an image, which is handed on; warn for a machine, whose user may well have a .netrc."""
    entry = ranks[0] if ranks else {}
    files, variables = entry.get("files"), entry.get("variables")
    if not isinstance(files, list) or not isinstance(variables, list):
        return undecided(
            "the environment was not looked through", fix="see the check's log", code="credentials.unmeasured"
        )
    inside = [path for path in files if path.startswith(f"{entry.get('prefix')}/")]
    history = [str(place) for place in view.image.get("secrets") or []]
    if not files and not variables and not history:
        looked = f", nor in {view.image['history']} instructions of its history" if view.image else ""
        return passed(f"none found{looked}", value=0, unit=LIMIT.unit, limit=LIMIT)
    summary = "; ".join(filter(None, (", ".join(files), ", ".join(f"${name}" for name in variables), *history)))
    count = len(files) + len(variables) + len(history)
    if entry.get("image") or inside or history:
        return failed(
            f"found {summary}", fix=FIX, value=count, unit=LIMIT.unit, limit=LIMIT, code="credentials.in-image"
        )
    why = f"this machine holds {summary}; do not copy them into an image"
    return warned(why, fix=FIX, value=count, unit=LIMIT.unit, limit=LIMIT, code="credentials.on-machine")
