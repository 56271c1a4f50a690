"""Answer `resolve --with`: one cell, a release of every extension, how each binds, and what else could be done."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from envcheck.errors import ConfigError, refuse
from envcheck.matrix.extensions.file import Extensions
from envcheck.matrix.extensions.fit import INSTALLABLE, JIT, NOT_KNOWN, OK, PINS_CONFLICT, SOURCE_ONLY, Fit
from envcheck.matrix.extensions.joint import Answer, Rules, WantedExtension, every_choice, search
from envcheck.matrix.facts.lookup import Facts, glibc
from envcheck.matrix.facts.model import Cell, Matrix, branch, key
from envcheck.matrix.resolver.candidates import Alternative, thresholds
from envcheck.matrix.resolver.query import Query, requested_devices
from envcheck.matrix.resolver.resolve import Resolution, resolve

# How much alike two names are (difflib.get_close_matches) where one may be a slip of the other.
_NEAR: Final = 0.7


class ChosenExtension(msgspec.Struct, frozen=True, kw_only=True):
    """A release to install. `verdict` is ok, jit or source-only; `file` and `where` say which wheel, or which source.

    `channel` is pypi, pytorch, project, third-party, source, or torch for what is released with torch.
    `weak` names the facts with one weak source.
    """

    name: str
    version: str
    verdict: str
    reason: str
    channel: str
    file: str | None = None
    where: str | None = None
    sha256: str | None = None
    glibc: str | None = None
    verified: bool = True
    weak: list[str] = []


class RefusedExtension(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing that fails for an extension in a cell. `not_known`: of some release it is not known."""

    name: str
    word: str
    reason: str
    not_known: bool = False


class RefusedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell in which torch runs, but not all of the extensions."""

    cell: str
    verdict: str
    refused: list[RefusedExtension]


class ExtensionResolution(Resolution, frozen=True, kw_only=True):
    """A resolution with extensions. Where none fits, `cell` is None, and `refused` says why for the closest cell.

    `refused_cells` has the same for every other legal cell, if it was asked for. `commands` install the answer in an
    order that cannot move torch, and `build` is the command of an image of it; the caller fills them in.
    """

    extensions: list[ChosenExtension] = []
    refused: list[RefusedExtension] = []
    closest: str | None = None
    commands: list[str] = []
    build: list[str] = []
    refused_cells: list[RefusedCell] = []


# Python refuses to read numbers of thousands of digits.
_LONGEST: Final = 500


def wanted_extensions(extensions: Extensions, requirements: list[str]) -> list[WantedExtension]:
    """Return the extensions of PEP 508 requirements without extras, markers and URLs. Raises ConfigError."""
    requested: dict[str, WantedExtension] = {}
    for text in requirements:
        written_name, specifier = _name_and_specifier(text)
        name = re.sub(r"[-_.]+", "-", written_name).lower()
        extension = extensions.find(name)
        if extension is None:
            raise _unknown(extensions, name)
        if extension.name in requested:
            refuse(f"--with names {extension.name} twice", f'give one requirement: "{extension.name}>=…,<…"')
        requested[extension.name] = WantedExtension(extension, specifier)
    return list(requested.values())


def _name_and_specifier(text: str) -> tuple[str, str]:
    try:
        requirement = Requirement(text if len(text) <= _LONGEST else "")
    except InvalidRequirement:
        refuse(f"--with {text[:_LONGEST]!r} is not a requirement", 'write it as vllm or "vllm>=0.16,<0.20"')
    if requirement.extras or requirement.marker or requirement.url:
        refuse(
            f"--with {text!r}: extras, markers and URLs are not supported",
            f'write it as "{requirement.name}{requirement.specifier}"',
        )
    return requirement.name, str(requirement.specifier)


def _unknown(extensions: Extensions, name: str) -> ConfigError:
    if name == "torch":
        return ConfigError("--with torch: torch is what extensions are resolved for", fix="leave it out")
    names = [other for row in extensions.extensions for other in (row.name, *row.aliases)]
    import difflib  # noqa: PLC0415 (only for a name that is wrong)

    near = difflib.get_close_matches(name, names, n=3, cutoff=_NEAR)
    near += [other for other in names if name in other.split("-") and other not in near]
    message = f"--with {name}: no facts about this extension, so nothing is known about its wheels"
    known = f"did you mean {' or '.join(near[:3])}?" if near else f"those that are known: {', '.join(sorted(names))}."
    return ConfigError(message, fix=f"{known} Your own: --extensions FILE")


def resolve_with(
    matrix: Matrix,
    extensions: Extensions,
    plain: Resolution,
    requested: list[WantedExtension],
    *,
    third_party: bool = False,
    every_cell: bool = False,
    base_cuda: str | None = None,
    notes: list[str] | None = None,
) -> ExtensionResolution:
    """Return the best cell of `plain`, the answer without extensions, in which all `wanted` fit, or why there is none.

    `base_cuda` and `notes` are those that `plain` was made with.

    What is not known about a wheel never counts as fitting. `third_party` allows wheels of other authors.
    """
    rules = Rules(Facts(matrix), extensions, third_party=third_party)
    best = search(rules, plain, requested) if plain.legal else None
    if best is None:
        of_torch = f" (without {', '.join(want.extension.name for want in requested)})"
        offers = (msgspec.structs.replace(one, change=one.change + of_torch) for one in plain.alternatives)
        return _extended(plain, alternatives=[*offers])
    cell = best.choice.place.cell
    more: dict[str, object] = {
        "alternatives": alternatives_with(rules, plain, requested, best),
        "refused_cells": [
            RefusedCell(cell=str(each.choice.place.cell), verdict=each.verdict, refused=_refusals(requested, each))
            for each in (every_choice(rules, plain, requested) if every_cell else ())
            if not each.choice.complete and each.choice.place.cell != cell
        ],
    }
    if not best.choice.complete:
        first = _refusals(requested, best)
        spans = ", ".join(
            f"{row.name} {row.releases[0].version} - {row.releases[-1].version}"
            for row in (want.extension for want in requested)
            if row.releases
        )
        more["notes"] = [*plain.notes, f"on record are {spans}: of other releases nothing is known"]
        nothing: dict[str, object] = {"cell": None, "published": None, "buildable": None, "install": [], "index": ""}
        more |= {
            "verdict": first[0].word,
            "reasons": [f"{each.name}: {each.word}: {each.reason}" for each in first],
            "refused": first,
            "closest": str(cell),
        }
        return _extended(plain, **nothing, **more)
    pinned = plain.query.replace(torch=f"=={cell.torch}", variant=cell.variant, cuda=None, python=cell.python)
    only = resolve(matrix, pinned, base_cuda=base_cuda, read_here=plain.read_here, notes=notes)
    chosen = [_chosen(want, fit) for want, fit in zip(requested, best.choice.fits, strict=True)]
    weak = list(dict.fromkeys([*only.weak, *(fact for each in chosen for fact in each.weak)]))
    more |= {"query": plain.query, "verified": not weak, "weak": weak, "extensions": chosen}
    return _extended(only, ranked=plain.ranked, rejected=plain.rejected, **more)


def _extended(plain: Resolution, **changes: object) -> ExtensionResolution:
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return ExtensionResolution(**{**fields, **changes})


def _chosen(want: WantedExtension, fit: Fit) -> ChosenExtension:
    wheel, source = fit.wheel, fit.release.built_from
    return ChosenExtension(
        name=want.extension.name,
        version=fit.release.version,
        verdict=fit.word,
        reason=f"{fit.reason}; wheel for {fit.tag}" if fit.word == OK and fit.tag else fit.reason,
        channel=wheel.channel if wheel else "torch" if fit.word == OK else "source",
        file=fit.file,
        where=wheel.where if wheel else source.where if source else None,
        sha256=wheel.sha256.get(fit.file or "") if wheel else None,
        glibc=wheel.glibc if wheel else None,
        verified=not fit.weak,
        weak=list(fit.weak),
    )


def glibc_notes(matrix: Matrix, answer: ExtensionResolution, here: str | None) -> Iterator[str]:
    """Say which glibc the wheels need, and what the node, or else the base of an image, has.

    `here` is the glibc of the node that the question is about; None where that is another one, or has no glibc.
    """
    cell = Cell.parse(answer.cell or "")
    base = glibc(matrix, cell.python) if cell else None
    needs = {each.glibc: f"{each.name} {each.version}" for each in answer.extensions if each.glibc}
    if not needs or not (base or here):
        return
    most = max(needs, key=key)
    has = f"this node has {here}" if here else f"the base image has {base}"
    if here and key(here) < key(most):
        has += f": pip takes no such wheel here; an image has {base or 'its own'}"
    yield f"the wheels need glibc {most} ({needs[most]}); {has}"


def _refusals(requested: list[WantedExtension], answer: Answer) -> list[RefusedExtension]:
    choice = answer.choice
    refused = [
        RefusedExtension(
            name=want.extension.name,
            word=fit.word,
            reason=fit.reason,
            not_known=fit.word == NOT_KNOWN or fit.others_unknown,
        )
        for want, fit in zip(requested, choice.fits, strict=True)
        if fit.word not in INSTALLABLE
    ]
    if refused:
        return refused
    names = " + ".join(want.extension.name for want in requested)
    return [RefusedExtension(name=names, word=PINS_CONFLICT, reason=choice.clash)]


_PAIR: Final = 2


class _Offers:
    """A question to repeat with one thing changed, and the answer that a change must improve."""

    def __init__(self, rules: Rules, plain: Resolution, requested: list[WantedExtension], best: Answer) -> None:
        self.rules, self.plain, self.wanted, self.best = rules, plain, requested, best

    def answer(self, requested: list[WantedExtension], query: Query | None = None) -> Answer | None:
        """Return the complete answer to a changed question, or None."""
        plain = self.plain if query is None else resolve(self.rules.facts.matrix, query)
        answer = search(self.rules, plain, requested) if plain.legal else None
        return answer if answer is not None and answer.choice.complete else None


def alternatives_with(
    rules: Rules, plain: Resolution, requested: list[WantedExtension], best: Answer
) -> list[Alternative]:
    """Return the alternatives, smallest change first; for an answer with all its wheels, only a newer torch."""
    search_for = _Offers(rules, plain, requested, best)
    if best.choice.complete and best.choice.rank(rules) == 0:
        return [*_without_one(search_for)]
    offers = [
        *_without_one(search_for),
        *_others_instead(search_for),
        *_queries(search_for),
        *_third_party(search_for),
        *_from_source(search_for),
    ]
    if not best.choice.complete and len(requested) > 1:
        offers += _environments(search_for)
    return list({each.change: each for each in offers}.values())


def _offer(requested: list[WantedExtension], answer: Answer, change: str) -> Alternative:
    versions = ", ".join(
        f"{want.extension.name} {fit.release.version}{'' if fit.word == OK else f' ({fit.word})'}"
        for want, fit in zip(requested, answer.choice.fits, strict=True)
    )
    return Alternative(cell=str(answer.choice.place.cell), change=f"{change}: {versions}", verdict=answer.verdict)


def _without_one(offers: _Offers) -> Iterator[Alternative]:
    """Offer to drop an extension for a better rank; from the best rank for a newer torch, which it has no wheel for."""
    best = offers.best.choice
    if len(offers.wanted) == 1 or (best.clash and len(offers.wanted) == _PAIR):
        return  # to drop one of two that exclude each other is what `_environments` offers
    for want in offers.wanted:
        remaining = [other for other in offers.wanted if other is not want]
        answer = offers.answer(remaining)
        if answer is None:
            continue
        rank, newer = answer.choice.rank(offers.rules), key(answer.choice.place.cell.torch) > key(best.place.cell.torch)
        least = best.rank(offers.rules)
        if not best.complete or rank < least or (rank == least == 0 and newer):
            names = {other.extension.name for other in remaining}
            also = [name for name in want.extension.instead if name in names]
            kernels = f" ({also[0]} brings such kernels of its own)" if also else ""
            yield _offer(remaining, answer, f"without {want.extension.name}{kernels}")


def _others_instead(offers: _Offers) -> Iterator[Alternative]:
    names = {want.extension.name for want in offers.wanted}
    for at, want in enumerate(offers.wanted):
        for name in want.extension.instead:
            extension = offers.rules.extensions.find(name)
            if extension is None or name in names:
                continue
            changed = [*offers.wanted[:at], WantedExtension(extension), *offers.wanted[at + 1 :]]
            answer = offers.answer(changed)
            if answer is not None and answer.choice.rank(offers.rules) == 0:
                yield _offer(changed, answer, f"{name} instead of {want.extension.name}")
                break


def _queries(offers: _Offers) -> Iterator[Alternative]:
    query = offers.plain.query
    worst = offers.best.choice.rank(offers.rules) if offers.best.choice.complete else None
    drivers = _drivers(offers, query.driver) if query.driver else []
    for questions in (
        {f"driver >= {version}": query.replace(driver=version) for version in drivers},
        {"another Python": query.replace(python=None)},
        {"another torch": query.replace(torch=None)},
        {"another variant": query.replace(variant=None, cuda=None)},
    ):
        for change, question in questions.items():
            answer = offers.answer(offers.wanted, question) if question != query else None
            if answer is not None and (worst is None or answer.choice.rank(offers.rules) < worst):
                yield _offer(offers.wanted, answer, change)
                break


def _drivers(offers: _Offers, driver: str) -> list[str]:
    """Return the first newer driver of each branch at which a verdict can change."""
    devices = requested_devices(offers.rules.facts, offers.plain.query)
    newer = [version for version in thresholds(offers.rules.facts, devices) if key(version) > key(driver)]
    first = {branch(version): version for version in reversed(newer)}
    return sorted(first.values(), key=key)


def _third_party(offers: _Offers) -> Iterator[Alternative]:
    if offers.rules.third_party:
        return
    rules = Rules(offers.rules.facts, offers.rules.extensions, third_party=True)
    answer = search(rules, offers.plain, offers.wanted)
    if answer is None or not answer.choice.complete:
        return
    if any(each.wheel is not None and each.wheel.channel == "third-party" for each in answer.choice.fits):
        yield _offer(offers.wanted, answer, "with --third-party (another author's binaries)")


def _from_source(offers: _Offers) -> Iterator[Alternative]:
    """Say how to build what has no wheel; the answer itself is that build."""
    for want, fit in zip(offers.wanted, offers.best.choice.fits, strict=True):
        if offers.best.choice.complete and fit.word == SOURCE_ONLY:
            yield _offer(offers.wanted, offers.best, f"build {want.extension.name} in `devel`")


def _environments(offers: _Offers) -> Iterator[Alternative]:
    for want in offers.wanted:
        answer = offers.answer([want])
        if answer is not None and all(fit.word in (OK, JIT) for fit in answer.choice.fits):
            yield _offer([want], answer, "an environment of its own")
