"""Search the legal cells for the best one in which all wanted extensions can be installed together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from envcheck.matrix.extensions.fit import CellOnHost
from envcheck.matrix.extensions.joint import Choice, Rules, WantedExtension, choose
from envcheck.matrix.extensions.specifiers import newest_first
from envcheck.matrix.facts.c_libraries import glibc
from envcheck.matrix.facts.lookup import Device
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.facts.versions import key
from envcheck.matrix.resolver.query import requested_devices
from envcheck.matrix.resolver.resolve import Resolution
from envcheck.matrix.resolver.verdict import FORWARD, OK


class Answer(NamedTuple):
    """The best choice and its cell's verdict; `choice.complete` is false where nothing fits. None without a cell."""

    choice: Choice
    verdict: str


def search(rules: Rules, answer: Resolution, requested: list[WantedExtension]) -> Answer | None:
    """Return the best choice among the legal cells of `answer`, else the one that came closest.

    Cells that run as they are come before those that need cuda-compat; then the rank of the worst extension decides,
    then PyPI's variant, the newest torch, the newest extensions. Where other authors' wheels are allowed, the newest
    torch comes before PyPI's variant.
    """
    complete: list[tuple[tuple[int, int], Answer]] = []
    closest: Answer | None = None
    for at, group in enumerate(_groups(rules, answer)):
        answers = [Answer(choose(rules, requested, place), verdict) for place, verdict in group]
        fitting = [each for each in answers if each.choice.complete]
        if fitting:
            best = min(fitting, key=lambda each: _age(rules, requested, each.choice))
            rank = (int(best.verdict == FORWARD), best.choice.rank(rules))
            if rank == (0, 0):
                return best
            complete.append(((*rank, at)[:2], best))
        for each in answers:
            if closest is None or each.choice.closeness > closest.choice.closeness:
                closest = each
    return min(complete, key=lambda row: row[0])[1] if complete else closest


def every_choice(rules: Rules, answer: Resolution, requested: list[WantedExtension]) -> Iterator[Answer]:
    """Return the choice for each legal cell, best cells first."""
    for group in _groups(rules, answer):
        for place, verdict in group:
            yield Answer(choose(rules, requested, place), verdict)


def _age(rules: Rules, requested: list[WantedExtension], choice: Choice) -> tuple[int, list[int]]:
    versions = [newest_first(release.version for release in rules.releases(want)) for want in requested]
    return choice.rank(rules), [
        each.index(fit.release.version) for each, fit in zip(versions, choice.fits, strict=True)
    ]


def _groups(rules: Rules, answer: Resolution) -> Iterator[list[tuple[CellOnHost, str]]]:
    """Yield the cells of one torch and variant together, in the order of preference; their Pythons best first."""
    matrix = rules.facts.matrix
    cells = [(cell, row.verdict) for row in answer.ranked if (cell := Cell.parse(row.cell)) is not None]

    def order(row: tuple[Cell, str]) -> tuple[object, ...]:
        cell, verdict = row
        release = matrix.release(cell.torch)
        other = release is None or release.pypi.get(answer.arch) != cell.variant
        newest = tuple(-field for field in key(cell.torch))
        return (verdict == FORWARD, newest, other) if rules.third_party else (verdict == FORWARD, other, newest)

    devices = tuple(requested_devices(rules.facts, answer.query))
    for _, group in itertools.groupby(sorted(cells, key=order), key=lambda row: (row[0].torch, row[0].variant)):
        yield [(_place(matrix, cell, verdict, answer, devices), verdict) for cell, verdict in group]


def _place(matrix: Matrix, cell: Cell, verdict: str, answer: Resolution, devices: tuple[Device, ...]) -> CellOnHost:
    release = matrix.release(cell.torch)
    variants = release.variants if release else []
    variant = release.variant(cell.variant) if release else None
    return CellOnHost(
        cell,
        answer.arch,
        variant.cuda if variant else None,
        native=verdict == OK,
        # A Python without a base of ours runs on a distribution that is not known: the oldest base counts.
        glibc=glibc(matrix, cell.python),
        # All variants of a torch release are built with one triton.
        triton=next((each.triton for each in variants if each.triton), None),
        devices=devices,
    )
