"""Find what else could be done: drop an extension, take another one, or change the driver, the Python or the torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envcheck.matrix.extensions.fit import JIT, OK, SOURCE_ONLY
from envcheck.matrix.extensions.joint import Rules, WantedExtension
from envcheck.matrix.extensions.search import Answer, search
from envcheck.matrix.facts.versions import branch, key
from envcheck.matrix.resolver.alternatives import Alternative, thresholds
from envcheck.matrix.resolver.query import Query, requested_devices
from envcheck.matrix.resolver.resolve import Resolution, resolve

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
    """Return the alternatives with their verdicts, the smallest change first.

    An answer of which every wheel is served by an index or the project needs none but what gives a newer torch.
    """
    search_for = _Offers(rules, plain, requested, best)
    if best.choice.complete and best.choice.rank(rules) == 0:
        return _unique([*_newer_without_one(search_for)])
    offers = [
        *_without_one(search_for),
        *_others_instead(search_for),
        *_queries(search_for),
        *_third_party(search_for),
        *_from_source(search_for),
    ]
    if not best.choice.complete and len(requested) > 1:
        offers += _environments(search_for)
    return _unique(offers)


def _unique(alternatives: list[Alternative]) -> list[Alternative]:
    return list({each.change: each for each in alternatives}.values())


def _offer(requested: list[WantedExtension], answer: Answer, change: str) -> Alternative:
    parts = zip(requested, answer.choice.fits, strict=True)
    versions = ", ".join(f"{want.extension.name} {fit.release.version}{_soft(fit.word)}" for want, fit in parts)
    return Alternative(cell=str(answer.choice.place.cell), change=f"{change}: {versions}", verdict=answer.verdict)


def _soft(word: str) -> str:
    return f" ({word})" if word in (SOURCE_ONLY, JIT) else ""


def _newer_without_one(offers: _Offers) -> Iterator[Alternative]:
    """Offer to drop an extension for a newer torch: mostly it is the one with compiled wheels for old torches only."""
    best = offers.best.choice.place.cell.torch
    for want, remaining, answer in _each_dropped(offers):
        if key(answer.choice.place.cell.torch) > key(best) and answer.choice.rank(offers.rules) == 0:
            yield _offer(remaining, answer, f"without {want.extension.name}{_kernels(want, remaining)}")


def _without_one(offers: _Offers) -> Iterator[Alternative]:
    if offers.best.choice.clash and len(offers.wanted) == _PAIR:
        return  # to drop one of two that exclude each other is what `_environments` offers
    for want, remaining, answer in _each_dropped(offers):
        if not offers.best.choice.complete or answer.choice.rank(offers.rules) < offers.best.choice.rank(offers.rules):
            yield _offer(remaining, answer, f"without {want.extension.name}{_kernels(want, remaining)}")


def _each_dropped(offers: _Offers) -> Iterator[tuple[WantedExtension, list[WantedExtension], Answer]]:
    for want in offers.wanted if len(offers.wanted) > 1 else []:
        remaining = [other for other in offers.wanted if other is not want]
        answer = offers.answer(remaining)
        if answer is not None:
            yield want, remaining, answer


def _kernels(want: WantedExtension, remaining: list[WantedExtension]) -> str:
    names = {other.extension.name for other in remaining}
    also = [name for name in want.extension.instead if name in names]
    return f" ({also[0]} brings such kernels of its own)" if also else ""


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
    """Offer a newer driver, then another Python, then another torch or variant."""
    query = offers.plain.query
    worst = offers.best.choice.rank(offers.rules) if offers.best.choice.complete else None
    changed: list[tuple[str, Query]] = []
    if query.driver is not None:
        drivers = _drivers(offers, query.driver)
        changed += [(f"driver >= {version}", query.replace(driver=version)) for version in drivers]
    if query.python is not None:
        changed.append(("another Python", query.replace(python=None)))
    if query.torch is not None:
        changed.append(("another torch", query.replace(torch=None)))
    if query.variant is not None or query.cuda is not None:
        changed.append(("another variant", query.replace(variant=None, cuda=None)))
    done: set[str] = set()
    for change, question in changed:
        kind = change.split(maxsplit=1)[0]
        answer = None if kind == "driver" and kind in done else offers.answer(offers.wanted, question)
        if answer is not None and (worst is None or answer.choice.rank(offers.rules) < worst):
            done.add(kind)
            yield _offer(offers.wanted, answer, change)


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
    """Offer an environment for each extension where they exclude each other."""
    for want in offers.wanted:
        answer = offers.answer([want])
        if answer is not None and all(fit.word in (OK, JIT) for fit in answer.choice.fits):
            yield _offer([want], answer, "an environment of its own")
