"""Which tag of a wheel a Python takes."""

from __future__ import annotations

from collections.abc import Sequence

from envcheck.matrix.facts.versions import python_key


def best_tag(tags: Sequence[str], python: str) -> str | None:
    """Return the best of a wheel's tags ("cp312-cp312") that a Python ("3.12", "3.13t") takes; None if it takes none.

    abi3 counts upward, never for a free-threaded Python.
    """
    plain = python.removesuffix("t").replace(".", "")
    exact = f"cp{plain}-cp{plain}{'t' if python.endswith('t') else ''}"
    if exact in tags:
        return exact
    return next((tag for tag in tags if _takes(tag, python)), None)


def _takes(tag: str, python: str) -> bool:
    interpreter, abi = tag.split("-")
    digits = interpreter[2:]
    least = f"{digits[0]}.{digits[1:] or '0'}"
    if abi == "abi3":
        return not python.endswith("t") and python_key(least) <= python_key(python)
    return abi == "none" and interpreter.startswith("py") and python_key(least) <= python_key(python)
