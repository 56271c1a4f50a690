"""Tell a proposal of rows as Markdown, with the wheels that show each row: the text of a pull request."""

from __future__ import annotations

from collections.abc import Iterable

from envcheck.counting import counted
from envcheck.matrix.file.lint import Problem
from envcheck.matrix.file.refresh import Proposal, ProposedRow, RefreshSource, SeenWheel


def markdown(proposal: Proposal, source: RefreshSource, problems: Iterable[Problem]) -> str:
    """Return the page. `problems` are what the lint finds in the proposed matrix: a person's work."""
    lines = [f"{counted(len(proposal.rows), 'row')} proposed from {source.text}.", ""]
    if proposal.rows:
        lines += [
            "Every row says `verified: false`: an index lists the wheel, nobody has looked at what is in it.",
            "Confirm a row with a second source and take the flag away, or take the row out.",
            "",
            "| Row | Pythons | Wheels |",
            "|---|---|---|",
            *(_row(row) for row in proposal.rows),
            "",
        ]
    lines += _section("To do by hand", [f"{where}: {problem}" for where, problem in problems])
    lines += _section("Seen, not proposed", proposal.left_out)
    if proposal.rows:
        lines += ["<details><summary>Wheels and their sha256</summary>", "", "```"]
        lines += [f"{wheel.sha256 or 'no hash on the page':64}  {wheel.name}" for wheel in _wheels(proposal)]
        lines += ["```", "", "</details>", ""]
    return "\n".join(lines)


def _row(row: ProposedRow) -> str:
    return f"| {row.where} | {', '.join(row.pythons)} | {len(row.wheels)} |"


def _section(title: str, items: list[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {item}" for item in items), ""] if items else []


def _wheels(proposal: Proposal) -> list[SeenWheel]:
    return list(dict.fromkeys(wheel for row in proposal.rows for wheel in row.wheels))
