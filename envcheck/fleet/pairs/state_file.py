"""The results so far, in a file that is whole after every test: a run that was killed goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import fold
from envcheck.fleet.pairs.model import GroupResult, GroupTest
from envcheck.fleet.pairs.session import Fleet
from envcheck.struct_types import know_types

SCHEMA: Final = "envcheck/fleet-pairs-state/1"
_FIX: Final = "remove the file to begin anew, or give --state another one"


class PairsState(msgspec.Struct):
    """What the state file holds: which fleet, how its tests start, and the results by the key of their test."""

    nodes: str
    mode: str
    domains: dict[str, str]
    commands: list[str]
    schema: Literal["envcheck/fleet-pairs-state/1"] = SCHEMA
    over: bool = False
    results: dict[str, GroupResult] = {}


know_types(PairsState)


def begin(path: Path, fleet: Fleet, commands: list[str]) -> PairsState:
    """Return the state of an earlier run of the same tests that is not over, else an empty one.

    Raise ConfigError where the file is not a state, or one of other nodes or commands.
    """
    fresh = PairsState(fold(fleet.nodes), fleet.mode, dict(fleet.domains), commands)
    if not path.exists():
        return fresh
    try:
        state = msgspec.json.decode(safe_files.read_whole(path), type=PairsState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{path} is not a state of `fleet pairs`: {error}"
        raise ConfigError(message, fix=_FIX) from error
    if state.over:
        return fresh
    if (state.nodes, state.mode, state.domains, state.commands) != (
        fresh.nodes,
        fresh.mode,
        fresh.domains,
        fresh.commands,
    ):
        message = f"{path} has the results of other nodes, domains, mode or commands: {state.nodes[:60]}, {state.mode}"
        raise ConfigError(message, fix=_FIX)
    return state


def add(path: Path, state: PairsState, test: GroupTest, result: GroupResult) -> None:
    """Keep a result."""
    state.results[test.key] = result
    write(path, state)


def write(path: Path, state: PairsState) -> None:
    """Replace the file, whole or not at all."""
    safe_files.replace(path, msgspec.json.encode(state))
