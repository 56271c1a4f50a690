"""Answer `resolve --with`: one cell, a release of every extension, how each binds, and what else could be done."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.matrix.extensions.fit import INSTALLABLE, NOT_KNOWN, OK, PINS_CONFLICT, Fit
from envcheck.matrix.extensions.joint import Rules, WantedExtension
from envcheck.matrix.extensions.model import Extensions
from envcheck.matrix.extensions.offers import alternatives_with
from envcheck.matrix.extensions.search import Answer, every_choice, search
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.alternatives import Alternative
from envcheck.matrix.resolver.resolve import Resolution, resolve

# How much alike two names are (difflib.get_close_matches) where one may be a slip of the other.
_NEAR: Final = 0.8
_BARE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class ChosenExtension(msgspec.Struct, frozen=True, kw_only=True):
    """A release to install. `verdict` is ok, jit or source-only; `file` and `where` say which wheel, or which source.

    `channel` is pypi, pytorch, project, third-party or source. `weak` names the facts with one weak source.
    """

    name: str
    version: str
    verdict: str
    reason: str
    channel: str
    file: str | None = None
    where: str | None = None
    sha256: str | None = None
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
    order that cannot move torch; the caller fills them in.
    """

    extensions: list[ChosenExtension] = []
    refused: list[RefusedExtension] = []
    closest: str | None = None
    commands: list[str] = []
    refused_cells: list[RefusedCell] = []


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
            message = f"--with names {extension.name} twice"
            raise ConfigError(message, fix=f'give one requirement: "{extension.name}>=…,<…"')
        requested[extension.name] = WantedExtension(extension, specifier)
    return list(requested.values())


def _name_and_specifier(text: str) -> tuple[str, str]:
    bare = _BARE_NAME.fullmatch(text.strip())
    if bare is not None:
        return text.strip(), ""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 (a bare name needs no parser)

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        message = f"--with {text!r} is not a requirement"
        raise ConfigError(message, fix='write it as vllm or "vllm>=0.16,<0.20"') from error
    if requirement.extras or requirement.marker or requirement.url:
        message = f"--with {text!r}: extras, markers and URLs are not supported"
        raise ConfigError(message, fix=f'write it as "{requirement.name}{requirement.specifier}"')
    return requirement.name, str(requirement.specifier)


def _unknown(extensions: Extensions, name: str) -> ConfigError:
    if name == "torch":
        return ConfigError("--with torch: torch is what extensions are resolved for", fix="leave it out")
    names = [other for row in extensions.extensions for other in (row.name, *row.aliases)]
    import difflib  # noqa: PLC0415 (only for a name that is wrong)

    near = difflib.get_close_matches(name, names, n=3, cutoff=_NEAR)
    near += [other for other in names if name in other.split("-") and other not in near]
    hint = f"did you mean {' or '.join(near[:3])}? " if near else ""
    message = f"--with {name}: no facts about this extension, so nothing is known about its wheels"
    known = f"those that are known: {', '.join(sorted(names))}; your own: --extensions FILE"
    return ConfigError(message, fix=f"{hint}{known}")


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
        return _extended(plain)
    alternatives = alternatives_with(rules, plain, requested, best)
    refused = [*_refused_cells(rules, plain, requested, best)] if every_cell else []
    if not best.choice.complete:
        return _none_fits(plain, requested, best, alternatives, refused)
    cell = best.choice.place.cell
    pinned = plain.query.replace(torch=f"=={cell.torch}", variant=cell.variant, cuda=None, python=cell.python)
    only = resolve(matrix, pinned, base_cuda=base_cuda, read_here=plain.read_here, notes=notes)
    return _fits(plain, only, requested, best, alternatives, refused)


def _extended(plain: Resolution, **changes: object) -> ExtensionResolution:
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return ExtensionResolution(**{**fields, **changes})


def _fits(
    plain: Resolution,
    only: Resolution,
    requested: list[WantedExtension],
    best: Answer,
    alternatives: list[Alternative],
    refused: list[RefusedCell],
) -> ExtensionResolution:
    chosen = [_chosen(want, fit) for want, fit in zip(requested, best.choice.fits, strict=True)]
    weak = list(dict.fromkeys([*only.weak, *(fact for each in chosen for fact in each.weak)]))
    return _extended(
        only,
        query=plain.query,
        alternatives=alternatives,
        verified=not weak,
        weak=weak,
        ranked=plain.ranked,
        rejected=plain.rejected,
        extensions=chosen,
        refused_cells=refused,
    )


def _chosen(want: WantedExtension, fit: Fit) -> ChosenExtension:
    wheel, source = fit.wheel, fit.release.built_from
    return ChosenExtension(
        name=want.extension.name,
        version=fit.release.version,
        verdict=fit.word,
        reason=fit.reason if fit.word != OK else f"{fit.reason}; wheel for {fit.tag}",
        channel=wheel.channel if wheel else "source",
        file=fit.file,
        where=wheel.where if wheel else source.where if source else None,
        sha256=wheel.sha256.get(fit.file or "") if wheel else None,
        verified=not fit.weak,
        weak=list(fit.weak),
    )


def _none_fits(
    plain: Resolution,
    requested: list[WantedExtension],
    best: Answer,
    alternatives: list[Alternative],
    refused: list[RefusedCell],
) -> ExtensionResolution:
    first = _refusals(requested, best)
    return _extended(
        plain,
        verdict=first[0].word,
        cell=None,
        reasons=[f"{each.name}: {each.word}: {each.reason}" for each in first],
        alternatives=alternatives,
        published=None,
        buildable=None,
        install=[],
        index="",
        refused=first,
        closest=str(best.choice.place.cell),
        refused_cells=refused,
    )


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


def _refused_cells(
    rules: Rules, plain: Resolution, requested: list[WantedExtension], best: Answer
) -> list[RefusedCell]:
    return [
        RefusedCell(cell=str(each.choice.place.cell), verdict=each.verdict, refused=_refusals(requested, each))
        for each in every_choice(rules, plain, requested)
        if not each.choice.complete and each.choice.place.cell != best.choice.place.cell
    ]
