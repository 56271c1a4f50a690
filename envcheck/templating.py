"""The one place that knows Jinja: templates/ to text. Pure: the same context gives the same text."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping
from typing import Any

import jinja2

from envcheck.data import data_path


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Return templates/`template` with the context put in; a name the context lacks is an error of ours."""
    return _environment().get_template(template).render(context)


@functools.lru_cache
def _environment() -> jinja2.Environment:
    # A Dockerfile is no HTML: escaping would break it.
    environment = jinja2.Environment(  # noqa: S701
        loader=jinja2.FileSystemLoader(data_path("templates")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = _quoted
    environment.filters["shell"] = shlex.quote
    environment.filters["yaml"] = json.dumps  # a JSON string is a YAML one, and ASCII alone
    return environment


def _quoted(value: str | list[str]) -> str:
    """Return a Dockerfile word, or a list of them, in double quotes, nothing in it expanded."""
    return json.dumps(value, ensure_ascii=False).replace("$", "\\$")
