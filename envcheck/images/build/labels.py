"""Read a built image back: it says of itself what its spec promises, or it gets no tag."""

from __future__ import annotations

from collections.abc import Mapping

from envcheck.errors import PromiseError
from envcheck.images.spec import LABEL_PREFIX, ImageSpec


def lies(spec: ImageSpec, labels: Mapping[str, str]) -> list[str]:
    """Return each promise the labels break, one line each; an absent label breaks its promise."""
    found = ((name, promised, labels.get(f"{LABEL_PREFIX}{name}")) for name, promised in spec.promises.items())
    return [
        f"{LABEL_PREFIX}{name} is {said if said is not None else 'absent'}, expected {promised}"
        for name, promised, said in found
        if said != promised
    ]


def demand(spec: ImageSpec, labels: Mapping[str, str], image: str) -> None:
    """Raise PromiseError naming every label of `image` that is not what the spec promises."""
    found = lies(spec, labels)
    if found:
        message = f"{image} is not {spec.tag}: {'; '.join(found)}"
        raise PromiseError(message, fix="it was not tagged; build again from this checkout")
