# ruff: noqa: INP001 (a script of a build)
"""Print the bytes of each Python package of an image as one JSON line, by what its RECORD lists; Python >= 3.9."""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

sizes = {}
for place in Path("/opt").glob("*/lib/python3*/site-packages"):
    for package in distributions(path=[str(place)]):
        paths = {path.locate() for path in package.files or []}
        name = f"{package.metadata['Name']}=={package.version}"
        sizes[name] = sizes.get(name, 0) + sum(path.stat().st_size for path in paths if path.is_file())
sys.stdout.write(f"envcheck-size: {json.dumps(sizes)}\n")
