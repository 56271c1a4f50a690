"""How `make docs` turns docs/ into pages: a link or an anchor that leads nowhere is an error (sphinx-build -W)."""

from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "envcheck"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
# Headings to this depth can be linked to, as on GitHub.
myst_heading_anchors = 4
html_sidebars = {"**": ["about.html", "searchfield.html"]}
# index.md lists the pages with plain links, which GitHub shows too.
suppress_warnings = ["toc.not_included"]


def setup(app: "Sphinx") -> None:
    """Show diagrams as their source: drawing them needs a script from another host."""
    app.add_lexer("mermaid", TextLexer)
