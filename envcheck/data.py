"""The files that ship with envcheck, in the checkout or the wheel's `_data`: where they are, and templates filled."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck.errors import refuse

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """Return the shipped `matrix.yaml`, `templates` or `images`, preferring the wheel's copy."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.exists() else _PACKAGE.parent / name


def own_images(instead: str = "--images DIR") -> Path:
    """Return the images/ that may be written: the checkout's. An installed package's own data is left as it is."""
    if (_PACKAGE / "_data").exists():
        why = "this envcheck is installed, its images/ are not yours to change"
        refuse(why, f"give {instead}, or work in a checkout")
    return data_path("images")


def state_path(*parts: str) -> Path:
    """Return a path below where environments and logs are kept: $ENVCHECK_HOME, else the user's data directory."""
    home = os.environ.get("ENVCHECK_HOME")
    if home:
        return Path(home, *parts)
    return xdg("XDG_DATA_HOME", ".local/share").joinpath("envcheck", *parts)


def xdg(variable: str, default: str) -> Path:
    """Return one of the user's base directories; a relative one is to be ignored (XDG Base Directory, 0.8)."""
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / default


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Return templates/`template` with the context put in; a name the context lacks is an error of ours."""
    text: str = _environment().get_template(template).render(context)
    return text


@functools.lru_cache
def _environment() -> Any:
    import json  # noqa: PLC0415 (a question that fills no template needs none)
    import shlex  # noqa: PLC0415

    import jinja2  # noqa: PLC0415 (the envcheck of an image comes without it)

    # A Dockerfile is no HTML: escaping would break it.
    environment = jinja2.Environment(  # noqa: S701
        loader=jinja2.FileSystemLoader(data_path("templates")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    # A Dockerfile word, or a list of them, in double quotes, nothing in it expanded.
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False).replace("$", "\\$")
    environment.filters["shell"] = shlex.quote
    environment.filters["yaml"] = json.dumps  # a JSON string is a YAML one, and ASCII alone
    return environment
