"""Where nodes of one kind differ in their configuration: the majority of the group, and who has something else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from envcheck.fleet.hostlist import natural
from envcheck.fleet.summary.model import ConfigurationDrift

ABSENT: Final = "not set"
_HALF: Final = 0.5


def drift(
    group: int, configurations: Mapping[str, Sequence[str]], contents: Mapping[str, Mapping[str, str]]
) -> Iterator[ConfigurationDrift]:
    """Yield the signals in which the nodes of a group differ.

    `configurations` are the nodes by what is equal among them, the key of `contents`: most nodes share one. A signal
    that a node does not have counts only if it is one that somebody sets (env.*): what was not read is no difference.
    """
    signals = dict.fromkeys(signal for content in contents.values() for signal in content)
    for signal in signals:
        nodes: dict[str, list[str]] = defaultdict(list)
        for key, members in configurations.items():
            value = contents[key].get(signal, ABSENT if signal.startswith("env.") else None)
            if value is not None:
                nodes[value] += members
        if len(nodes) > 1:
            yield compared(group, signal, nodes)


def compared(group: int, signal: str, nodes: Mapping[str, Sequence[str]]) -> ConfigurationDrift:
    """Return how the nodes differ in a signal; `nodes` are those of each value."""
    counts = Counter({value: len(members) for value, members in nodes.items()})
    [(most, count)] = counts.most_common(1)
    share = count / counts.total()
    others = {
        value: sorted(members, key=natural) for value, members in nodes.items() if value != most or share <= _HALF
    }
    return ConfigurationDrift(
        group=group,
        signal=signal,
        majority=most if share > _HALF else None,
        share=round(share, 4),
        others=dict(sorted(others.items(), key=lambda item: (len(item[1]), item[0]))),
    )
