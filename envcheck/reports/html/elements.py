"""The parts that every page is made of: text that is safe, a document that fetches nothing, what may be too wide."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Final

from envcheck.printable import printable
from envcheck.reports.html.charts import Figure

_CSS: Final = Path(__file__).with_name("page.css")
# A drawing wider than this, in pixels, gets the page's whole width.
_COLUMN: Final = 560
# Nothing may be fetched, whatever a log smuggles in.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def text(content: object) -> str:
    """Return text that cannot be markup, without what a browser or a reader could take for more than text."""
    return escape(printable(str(content)), quote=True)


def document(title: str, body: str, footer: str, css: str = "") -> str:
    """Return a whole page; `css` follows the style that all pages share."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n"
        f"<style>\n{_CSS.read_text(encoding='utf-8')}{css}</style>\n</head>\n<body>\n"
        f"{body}<footer>{text(footer)}</footer>\n</body>\n</html>\n"
    )


def wide(inner: str, title: str) -> str:
    """Return what may be wider than the screen: it scrolls alone, by keyboard too."""
    return f'<div class="wide" role="region" aria-label="{text(title)}" tabindex="0">{inner}</div>'


def figure(drawn: Figure) -> str:
    """Return a drawing with its caption and its legend."""
    keys = "".join(f'<li><i class="key {kind}"></i>{text(name)}</li>' for kind, name in drawn.legend)
    legend = f'<ul class="legend">{keys}</ul>' if keys else ""
    caption = f"<figcaption>{text(drawn.caption)}</figcaption>"
    broad = ' class="broad"' if drawn.drawing.width > _COLUMN else ""
    return f"<figure{broad}>{caption}{wide(drawn.drawing.svg, drawn.caption)}{legend}</figure>\n"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return titles with their texts."""
    return f"<dl>{''.join(f'<dt>{text(title)}</dt><dd>{text(content)}</dd>' for title, content in pairs)}</dl>"


def status(word: str) -> str:
    """Return a status in its colour."""
    return f'<span class="status {word}">{word}</span>'
