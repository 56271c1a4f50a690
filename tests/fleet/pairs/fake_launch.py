"""A launch command for tests: writes the report of each node, made from a recorded one, as the nodes' runs would.

    python fake_launch.py REPORT FAULTS NODES envcheck run ... --output DIR/

FAULTS is a JSON file {"slow": [nodes], "dead": [nodes], "log": FILE, "hang": [nodes]}.
"""

import datetime as dt
import json
import sys
import time
from pathlib import Path
from typing import Any

from envcheck.fleet.hostlist import unfold


def main(report: str, faults_file: str, listed: str, *command: str) -> None:
    """Write DIR/NODE.json for each node that is not dead."""
    faults: dict[str, Any] = json.loads(Path(faults_file).read_text(encoding="utf-8"))
    nodes, folder = unfold(listed), Path(command[command.index("--output") + 1])
    with Path(faults["log"]).open("a", encoding="utf-8") as log:
        log.write(f"{'quick' if 'quick' in command else 'group'} {listed}\n")
    if set(nodes) & set(faults.get("hang", [])) and "quick" not in command:
        time.sleep(60)
    slow = bool({*nodes} & {*faults.get("slow", [])}) and "quick" not in command
    for node in nodes:
        if node not in faults.get("dead", []):
            content = made(json.loads(Path(report).read_text(encoding="utf-8")), node, 190.0 if slow else 380.0)
            (folder / f"{node}.json").write_text(json.dumps(content), encoding="utf-8")


def made(report: dict[str, Any], node: str, value: float) -> dict[str, Any]:
    """Return the report as of this node and this moment, with the speed of its group."""
    now = dt.datetime.now(dt.timezone.utc).isoformat()
    report |= {"started": now, "ended": now}
    report["host"]["name"] = report["host"]["place"]["node"] = node
    speed = {"id": "all-reduce-bandwidth", "kind": "env", "status": "pass", "value": value, "unit": "GB/s"}
    report["outcomes"] = [o for o in report["outcomes"] if o["id"] != "all-reduce-bandwidth"] + [speed]
    return report


if __name__ == "__main__":
    main(*sys.argv[1:])
