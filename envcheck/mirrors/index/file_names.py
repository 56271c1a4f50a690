"""Parse names of wheels and sdists from pages and bundles, which are not trusted: a name could cost time or memory."""

from __future__ import annotations

import math
from typing import Final

from packaging.tags import Tag
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

# Bytes of a file's name (linux/limits.h).
NAME_MAX: Final = 255
# A wheel's name encodes a set of tags: `py2.py3-none-any` is two. A name of 250 bytes could encode 64 000.
_MOST_TAGS: Final = 200


def parse_file_name(name: str) -> tuple[str, Version, frozenset[Tag]]:
    """Return project, version and, for a wheel, the tags. Raises ValueError if it is not the name of either."""
    if len(name.encode("utf-8", "replace")) > NAME_MAX:
        message = f"a name of more than {NAME_MAX} bytes"
        raise ValueError(message)
    if not name.endswith(".whl"):
        project, version = parse_sdist_filename(name)
        return project, version, frozenset()
    if math.prod(part.count(".") + 1 for part in name.removesuffix(".whl").split("-")[-3:]) > _MOST_TAGS:
        message = f"a name that stands for more than {_MOST_TAGS} tags"
        raise ValueError(message)
    project, version, _, tags = parse_wheel_filename(name)
    return project, version, tags
