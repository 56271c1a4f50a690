"""Memory that forgets one bit in a trillion, in the one place where nobody looked.

Patterns are written over nearly all free memory, and then read back: zeros, ones, alternating bits, each word's own
address, random words; at last the alternating bits are inverted word by word upwards and back downwards (moving
inversions, as memtest86 and DCGM's memtest do).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.support import gpu_speed, process_group
from envcheck.counting import counted

CHECK = Check(
    promise="every free word of memory holds each pattern that is written into it",
    level="full",
    seconds=15.0,
    cpu_seconds=0.3,
    timeout=300.0,
    ranks=0,
)

# Of what is free on a GPU, what is written and compared with together; the rest is for torch's own temporaries.
SHARE = 0.9
MIB = 1 << 20
CHUNK = {"cuda": 256 * MIB, "cpu": MIB}
CPU_BYTES = 8 * MIB
WORD = 8
LIMIT = Limit(0, "words", "what is read back is what was written", "at most")
TESTED = Limit(0.75, "of the GPU's memory", "NVIDIA/DCGM nvvs: its memory test has to get 75 % of a GPU's memory")
_FIX = "take this GPU out and test it alone (`dcgmi diag -r 4`); rows that stay wrong after a reset mean replace it"
LITERAL = {"zeros": 0, "ones": -1, "0x55": 0x5555555555555555, "0xaa": ~0x5555555555555555}
Fill = Callable[[Any, int], None]


def measure(rank: Rank) -> Measured:
    """Write and read back every pattern; say how much was tested and what was wrong in each pass."""
    import torch

    device = process_group.device_of(rank)
    free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (CPU_BYTES, CPU_BYTES)
    chunks = _chunks(torch, device, int(free * SHARE))
    scratch = chunks.pop()
    passes = {name: _pass(chunks, scratch, fill) for name, fill in fills(torch).items()}
    passes["moving inversions"] = _inversions(chunks, scratch)
    return {
        **process_group.standing(rank, scratch),
        "tested": sum(chunk.numel() for chunk in chunks) * WORD,
        "total": total,
        "passes": passes,
    }


def _chunks(torch: Any, device: Any, amount: int) -> list[Any]:
    size, chunks = CHUNK[device.type], list[Any]()
    while len(chunks) * size < max(amount, 2 * size):
        more = _allocated(torch, device, size // WORD, needed=len(chunks) < 2)  # noqa: PLR2004 (as promised)
        if more is None:
            return chunks
        chunks.append(more)
    return chunks


def _allocated(torch: Any, device: Any, words: int, *, needed: bool) -> Any:
    try:
        return torch.empty(words, dtype=torch.int64, device=device)
    except torch.cuda.OutOfMemoryError:  # others took what was free a moment ago
        if needed:
            raise
        return None


def fills(torch: Any) -> dict[str, Fill]:
    """Return what fills the n-th chunk, by the pattern's name; the same words each time it is called."""

    def address(chunk: Any, number: int) -> None:
        torch.arange(number * chunk.numel(), (number + 1) * chunk.numel(), out=chunk)

    def noise(chunk: Any, number: int) -> None:
        chunk.random_(-(2**63), 2**63 - 1, generator=torch.Generator(device=chunk.device).manual_seed(number))

    constant = {name: lambda chunk, _, word=word: chunk.fill_(word) for name, word in LITERAL.items()}
    return {**constant, "address": address, "random": noise}


def _pass(chunks: list[Any], scratch: Any, fill: Fill) -> Measured:
    for number, chunk in enumerate(chunks):
        fill(chunk, number)
    counts: Measured = {"wrong": 0, "first": None}
    for number, chunk in enumerate(chunks):
        fill(scratch, number)
        _compare(counts, chunk, scratch, number)
    return counts


def _inversions(chunks: list[Any], scratch: Any) -> Measured:
    counts: Measured = {"wrong": 0, "first": None}
    word, order = 0x5555555555555555, list(enumerate(chunks))
    for chunk in chunks:
        chunk.fill_(word)
    for walk in (order, order[::-1]):
        scratch.fill_(word)
        word = ~word
        for number, chunk in walk:
            _compare(counts, chunk, scratch, number)
            chunk.fill_(word)
    scratch.fill_(word)
    for number, chunk in order:
        _compare(counts, chunk, scratch, number)
    return counts


def _compare(counts: Measured, chunk: Any, expected: Any, number: int) -> None:
    """Count the words that are not as expected, and keep the first: its offset in bytes, its address, its bits."""
    differs = chunk != expected
    wrong = int(differs.sum())
    if wrong and counts["first"] is None:
        index = int(differs.nonzero()[0])
        flipped = (int(chunk[index]) ^ int(expected[index])) & (2**64 - 1)
        at = {"offset": (number * chunk.numel() + index) * WORD, "address": hex(chunk.data_ptr() + index * WORD)}
        counts["first"] = {**at, "xor": f"0x{flipped:016x}"}
    counts["wrong"] += wrong


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each GPU, the pattern, the first wrong word and its bits; warn where little of a GPU was free."""
    owed = [*fills(None), "moving inversions"]
    findings = [finding for entry in ranks for finding in _findings(entry, owed)]
    if findings:
        return worst(findings, otherwise=findings[0])
    tested = {str(entry["rank"]): entry["tested"] for entry in ranks}
    held = f"{sum(tested.values()) / MIB:,.0f} MiB on {counted(len(ranks), 'rank')} held {len(owed)} patterns"
    return (_little(ranks) if view.mode == "gpu" else None) or passed(held, value=0, limit=LIMIT, tested=tested)


def _findings(entry: Measured, owed: list[str]) -> Iterator[Outcome]:
    passes = entry.get("passes") or {}
    missing = [name for name in owed if not process_group.finite((passes.get(name) or {}).get("wrong"))]
    if missing or not process_group.positive(entry.get("tested")):
        summary = f"rank {entry['rank']} tested no {', '.join(missing) or 'memory'}"
        yield undecided(summary, fix="see the log", code="memory.untested", culprit=process_group.name(entry))
    wrong = {name: passes[name] for name in owed if name not in missing and passes[name]["wrong"] != 0}
    if wrong:
        yield _wrong(entry, wrong)


def _wrong(entry: Measured, wrong: dict[str, Measured]) -> Outcome:
    pattern, counts = next(iter(wrong.items()))
    first, count = counts.get("first") or {}, sum(counts["wrong"] for counts in wrong.values())
    place = f"byte {first.get('offset')} (address {first.get('address')}), bits {first.get('xor')}"
    summary = f"{process_group.name(entry)}: {count} words came back wrong, the first under {pattern}: {place}"
    judged: dict[str, Any] = {"value": count, "limit": LIMIT, **gpu_speed.about(entry)}
    return failed(summary, fix=_FIX, code="memory.wrong", passes=wrong, **judged)


def _little(ranks: Ranks) -> process_group.Problem:
    for entry in ranks:
        total: Any = entry.get("total")
        share = entry["tested"] / total if process_group.positive(total) else 0.0
        if share < TESTED.value:
            summary = f"{process_group.name(entry)}: {share:.0%} of its memory was free to be tested"
            fix = "end what holds memory on this GPU (nvidia-smi), and run it again"
            judged: dict[str, Any] = {"value": round(share, 4), "limit": TESTED, **gpu_speed.about(entry)}
            return warned(summary, fix=fix, code="memory.little-free", **judged)
    return None
