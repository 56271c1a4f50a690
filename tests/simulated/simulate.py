"""envcheck, on a machine with simulated GPUs: SIMULATED_GPUS=2 python tests/simulated/simulate.py run --python PYTHON.

A simulated GPU proves that the code runs to its end and judges, and nothing about hardware. See site/simulated/gpu.py
for what can be set.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

SITE = Path(__file__).resolve().with_name("site")


def main() -> None:
    """Have envcheck find a driver; what asks it, and every torch, are Pythons that start with `site` on their path."""
    collect: Any = importlib.import_module("envcheck.node.collect")
    find = collect.find_library
    library = Path("/usr/lib/libnvidia-ml.so.580.95.05")

    def discover(name: str, **places: Any) -> Any:
        return library if name.startswith("libnvidia-ml") else find(name, **places)

    collect.find_library = discover
    importlib.import_module("envcheck.cli").main()


if __name__ == "__main__":
    sys.path.insert(0, str(SITE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    main()
