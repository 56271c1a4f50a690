"""What was needed to build an image stays in it, and goes wherever the image goes.

Only names and paths are ever read out, never a value.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned
from envcheck.checks.env import image_config
from envcheck.checks.support import secret_patterns

CHECK = Check(promise="no credential lies in the environment's files, variables or history", level="static")

_SOURCE = "where git, pip, uv, conda, docker, apt, huggingface_hub, AWS, npm and kaggle keep theirs"
LIMIT = Limit(0, "credentials", _SOURCE, "equal")
FIX = "remove them (in an image: build without them, a later layer does not take them out) and revoke what was in there"
# Where credentials lie: under a home, for all users, where a variable says, and under Python's prefix; and the patterns
# that show one in such a file.
PLACES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def measure(rank: Rank) -> Measured:
    """Return the paths of files and the names of variables that hold credentials; no content."""
    environ = os.environ
    places = [(home / name, pattern) for home in _homes() for name, pattern in PLACES["home"]]
    places += [(Path(environ[name], below), pat) for name, below, pat in PLACES["variables"] if environ.get(name)]
    places += [(Path(sys.prefix, name), pattern) for name, pattern in PLACES["prefix"]]
    places += [(path, pat) for place, pat in PLACES["shared"] for path in sorted(Path("/").glob(place.lstrip("/")))]
    files = [str(path) for path, pattern in places if _holds(path, PLACES["patterns"][pattern])]
    return {
        "rank": rank.rank,
        "image": image_config.is_image(),
        "prefix": sys.prefix,
        "files": list(dict.fromkeys(files)),
        "variables": sorted(name for name, value in os.environ.items() if secret_patterns.variable(name, value)),
    }


def _homes() -> list[Path]:
    """Return the homes to look into: in an image everybody's, on a machine the user's own and root's."""
    homes = [Path(os.environ.get("HOME") or "/root"), *([Path("/root")] if os.access("/root", os.X_OK) else [])]
    homes += sorted(Path("/home").glob("*")) if image_config.is_image() else []
    return list(dict.fromkeys(homes))


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
        return undecided("the environment was not looked through", code="credentials.unmeasured")
    inside = [path for path in files if path.startswith(f"{entry.get('prefix')}/")]
    history = [str(place) for place in view.image.get("secrets") or []]
    if not files and not variables and not history:
        looked = f", nor in {view.image['history']} instructions of its history" if view.image else ""
        return passed(f"none found{looked}", value=0, limit=LIMIT)
    summary = "; ".join(filter(None, (", ".join(files), ", ".join(f"${name}" for name in variables), *history)))
    about: dict[str, Any] = {"fix": FIX, "value": len(files) + len(variables) + len(history), "limit": LIMIT}
    if entry.get("image") or inside or history:
        return failed(f"found {summary}", code="credentials.in-image", **about)
    return warned(
        f"this machine holds {summary}; do not copy them into an image", code="credentials.on-machine", **about
    )
