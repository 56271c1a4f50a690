"""A report as one HTML page."""

from __future__ import annotations

from typing import Final

from envcheck.reports.formats.registry import Format
from envcheck.reports.html.page import page

FORMAT: Final = Format(page, suffix=".html")
