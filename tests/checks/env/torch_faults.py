"""Faults that tests put into torch: a few lines that patch it in the ranks of one check.

One run of the command has all of a file's faults beside each other, forked from one import of torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """What is patched before the check measures, in which check, and what its summary or findings say."""

    check: str
    patch: str
    expected_message: str


def replaced(check: str, name: str, made: str, message: str, before: str = "") -> Fault:
    """Return the fault of a function that is another one; `honest` is what it was."""
    return Fault(check, f"{before}\nhonest = {name}\n{name} = {made}", message)


def around(check: str, name: str, body: str, message: str, given: str = "*a, **k", before: str = "") -> Fault:
    """Return the fault of a function that does this with what it is given; `honest` is what it was."""
    lying = f"def lying({given}):\n{textwrap.indent(body, '    ')}\n{name} = lying"
    return Fault(check, f"{before}\nhonest = {name}\n{lying}", message)


SITE = '''"""A fault that tests put in."""

from envcheck.checks.env import {module} as sound

CHECK, judge = sound.CHECK, sound.judge


def measure(rank):
    import torch
    import torch.nn.parallel, torch.optim, torch.utils.data, torch.utils.data.distributed
{patch}
    return sound.measure(rank)
'''


def write(directory: Path, faults: Mapping[str, Fault]) -> list[str]:
    """Write a check `fault-NAME` for each fault, and return the options that run these alone."""
    (directory / "env").mkdir()
    for name, fault in faults.items():
        text = SITE.format(module=fault.check.replace("-", "_"), patch=textwrap.indent(fault.patch, "    "))
        (directory / "env" / f"fault_{name.replace('-', '_')}.py").write_text(text)
    return ["--checks", str(directory), *(word for name in faults for word in ("--only", f"fault-{name}"))]


def outcomes(python: Path, once: Callable[..., Path], name: str, faults: Mapping[str, Fault]) -> dict[str, Any]:
    """Run every fault in one command; return the outcomes by fault."""

    def run(directory: Path) -> None:
        command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(python), "--nproc", "2"]
        command += [*write(directory, faults), "--output", str(directory / "report.json")]
        completed = subprocess.run(command, capture_output=True, check=False, text=True)
        (directory / "code").write_text(f"{completed.returncode} {completed.stderr}")

    directory = once(name, run)
    assert (directory / "code").read_text().split()[0] == "1", (directory / "code").read_text()
    rows = json.loads((directory / "report.json").read_bytes())["outcomes"]
    return {row["id"].removeprefix("fault-"): row for row in rows}


def is_found(row: Mapping[str, Any], fault: Fault) -> bool:
    """Tell whether a check failed for the fault, and says what to do."""
    assert row["status"] == "fail", row["summary"]
    message = [row["summary"], *(finding["summary"] for finding in row.get("findings") or [])]
    assert any(fault.expected_message in text for text in message), message[:5]
    return bool(row["remedy"])
