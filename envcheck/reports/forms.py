"""The forms a report can be told in, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from envcheck.reports.junit import junit
from envcheck.reports.markdown import markdown
from envcheck.reports.model import RunReport
from envcheck.reports.page import page
from envcheck.reports.prometheus import prometheus

FORMS: Final[dict[str, Callable[[RunReport], str]]] = {
    "junit": junit,
    "prometheus": prometheus,
    "html": page,
    "markdown": markdown,
}
