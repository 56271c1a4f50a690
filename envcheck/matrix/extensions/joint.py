"""Choose one release of every extension for a cell, such that all their requirements hold together."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envcheck.matrix.extensions.file import Extension, ExtensionRelease, Extensions
from envcheck.matrix.extensions.fit import (
    INSTALLABLE,
    NOT_KNOWN,
    OK,
    ORDER,
    PINS_CONFLICT,
    CellOnHost,
    Fit,
    fit,
    meets,
    satisfiable,
)
from envcheck.matrix.facts.lookup import Device, Facts, glibc
from envcheck.matrix.facts.model import Cell, Matrix, key
from envcheck.matrix.resolver.query import requested_devices
from envcheck.matrix.resolver.resolve import Resolution
from envcheck.matrix.resolver.verdict import FORWARD

# What a PyTorch index serves beside torch for each variant: a pin of these does not bind a cell to PyPI's wheel.
_BESIDE_TORCH = frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton"})


class WantedExtension(NamedTuple):
    """An extension to install, and the specifier that its version must meet."""

    extension: Extension
    specifier: str = ""

    def __str__(self) -> str:
        """Return it as a requirement: vllm>=0.16."""
        return f"{self.extension.name}{self.specifier}"


class Rules:
    """What does not change from cell to cell, and what was already judged."""

    def __init__(self, facts: Facts, extensions: Extensions, *, third_party: bool) -> None:
        self.facts, self.extensions, self.third_party = facts, extensions, third_party
        self._releases: dict[tuple[str, str], list[ExtensionRelease]] = {}
        self._fits: dict[tuple[str, str, Cell, bool, bool], Fit] = {}

    def releases(self, want: WantedExtension) -> list[ExtensionRelease]:
        """Return the releases that meet the specifier, newest first; pre-releases where it names one, or all are."""
        at = (want.extension.name, want.specifier)
        if at not in self._releases:
            versions = {Version(release.version): release for release in want.extension.releases}
            early = all(v.is_prerelease for v in versions) or SpecifierSet(want.specifier).prereleases
            allowed = sorted((v for v in versions if early or not v.is_prerelease), reverse=True)
            self._releases[at] = [versions[v] for v in allowed if meets(versions[v].version, want.specifier)]
        return self._releases[at]

    def fit(self, name: str, release: ExtensionRelease, place: CellOnHost, *, third_party: bool) -> Fit:
        """Return the judgement on a release; the second time from memory. Host and GPUs of `place` never change."""
        at = (name, release.version, place.cell, place.native, third_party)
        if at not in self._fits:
            self._fits[at] = fit(self.facts, name, release, place, third_party=third_party)
        return self._fits[at]


class Choice(NamedTuple):
    """What was found for one cell: one installable release of each extension, or the first thing that fails for each.

    `fits` are in the order of the question. `clash` says which requirements exclude each other.
    """

    place: CellOnHost
    fits: list[Fit]
    clash: str = ""

    @property
    def complete(self) -> bool:
        """Whether all can be installed together."""
        return not self.clash and all(each.word in INSTALLABLE for each in self.fits)

    def rank(self, rules: Rules) -> int:
        """Return the rank of the worst: 0 is best."""
        return max((ranked(rules, each) for each in self.fits), default=0)

    @property
    def closeness(self) -> tuple[int, int]:
        """How close an incomplete choice came: how many extensions fit, and how late the first refusal is."""
        refused = [ORDER.index(each.word) for each in self.fits if each.word not in INSTALLABLE]
        if not refused:
            return (len(self.fits), ORDER.index(PINS_CONFLICT))
        return (len(self.fits) - len(refused), min(refused))


def choose(rules: Rules, requested: list[WantedExtension], place: CellOnHost) -> Choice:
    """Return the best releases for a cell: the lowest rank first, then the newest of each extension."""
    judged = [_judged(rules, want, place) for want in requested]
    options = [[each for each in fits if each.word in INSTALLABLE] for fits in judged]
    if not all(options):
        return Choice(place, [_first(fits) for fits in judged])
    for most in sorted({ranked(rules, each) for fits in options for each in fits}):
        allowed = [[each for each in fits if ranked(rules, each) <= most] for fits in options]
        chosen = _compatible(requested, allowed, place, []) if all(allowed) else None
        if chosen is not None:
            return Choice(place, chosen)
    newest = [fits[0] for fits in options]
    return Choice(place, newest, clash(requested, newest, place) or "their requirements exclude each other")


def ranked(rules: Rules, each: Fit) -> int:
    """Return the rank of a release; where other authors' wheels are allowed, all wheels rank the same."""
    return 0 if rules.third_party and each.word == OK else each.rank


def _judged(rules: Rules, want: WantedExtension, place: CellOnHost) -> list[Fit]:
    name = want.extension.name
    companion = _companion(rules.facts.matrix, want, place)
    if companion is not None:
        return [companion]
    releases = rules.releases(want)
    if not releases:
        nothing = ExtensionRelease(version="", source=["none"])
        return [Fit(nothing, NOT_KNOWN, f"no release of {want} is on record")]
    fits = [rules.fit(name, release, place, third_party=rules.third_party) for release in releases]
    return [_with_dependencies(rules, name, each, place) for each in fits]


def _companion(matrix: Matrix, want: WantedExtension, place: CellOnHost) -> Fit | None:
    """Return the torchvision or torchaudio that is released with a cell's torch, as the plain answer installs it."""
    torch = matrix.release(place.cell.torch)
    own = {"torchvision": torch.torchvision, "torchaudio": torch.torchaudio} if torch else {}
    version = own.get(want.extension.name)
    if torch is None or version is None or not meets(version, want.specifier):
        return None
    known = (release for release in want.extension.releases if release.version == version)
    release = next(known, ExtensionRelease(version=version, requires={"torch": f"=={torch.torch}"}, source=["matrix"]))
    return Fit(release, OK, f"released with torch {torch.torch}, whose index has it for {place.cell.variant}")


def _first(fits: list[Fit]) -> Fit:
    """Return the release to install, else the closest, whose reason names what is not known; newest of equals."""
    unknown = [each for each in fits if each.word == NOT_KNOWN]
    if fits[0].word == NOT_KNOWN and not any(each.word in INSTALLABLE for each in fits):
        return fits[0]
    closest = max((each for each in fits if each.word != NOT_KNOWN), key=lambda each: ORDER.index(each.word))
    if not unknown or closest.word in INSTALLABLE:
        return closest
    return closest._replace(reason=f"{closest.reason}; not known: {unknown[0].reason}", others_unknown=True)


def _with_dependencies(rules: Rules, name: str, each: Fit, place: CellOnHost) -> Fit:
    """Refuse a release that needs another extension of the table, of which no allowed release can fit the cell.

    What is not known about such a dependency does not refuse: the last word on dependencies has the installer.
    """
    if each.word not in INSTALLABLE:
        return each
    for other, specifier in each.release.requires.items():
        extension = rules.extensions.find(other)
        if extension is None or other in _BESIDE_TORCH:
            continue
        fits = [
            rules.fit(other, release, place, third_party=False)
            for release in rules.releases(WantedExtension(extension, specifier))
        ]
        if fits and all(one.word not in INSTALLABLE and one.word != NOT_KNOWN for one in fits):
            closest = _first(fits)
            label = f"{name} {each.release.version}"
            return each._replace(word=closest.word, reason=f"{label} needs {other}{specifier}, and {closest.reason}")
    return each


def _compatible(
    requested: list[WantedExtension], options: list[list[Fit]], place: CellOnHost, chosen: list[Fit]
) -> list[Fit] | None:
    if len(chosen) == len(options):
        return chosen
    for each in options[len(chosen)]:
        more = [*chosen, each]
        if not clash(requested, more, place):
            combination = _compatible(requested, options, place, more)
            if combination is not None:
                return combination
    return None


def clash(requested: list[WantedExtension], chosen: list[Fit], place: CellOnHost) -> str:
    """Return the first package on which the requirements of the chosen releases exclude each other; "" for none."""
    fixed = {"torch": f"=={place.cell.torch}"} | ({"triton": f"=={place.triton}"} if place.triton else {})
    by_package: dict[str, dict[str, str]] = {name: {"torch's wheel": version} for name, version in fixed.items()}
    for want, each in zip(requested, chosen, strict=False):
        label = f"{want.extension.name} {each.release.version}"
        by_package.setdefault(want.extension.name, {})["the question"] = f"=={each.release.version}"
        for package, specifier in each.release.requires.items():
            by_package.setdefault(package, {})[label] = specifier
    for package, needs in by_package.items():
        if not satisfiable(frozenset(needs.values())):
            return ", ".join(f"{who} needs {package}{specifier}" for who, specifier in needs.items() if specifier)
    return ""


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
    return choice.rank(rules), [
        rules.releases(want).index(fit.release) if fit.release in rules.releases(want) else 0
        for want, fit in zip(requested, choice.fits, strict=True)
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
