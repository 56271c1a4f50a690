# ruff: noqa: INP001, T201 (a script of a build)
"""torch_symbols.py DIRECTORY: exit 1, naming each one, if wheels there need what neither torch nor the system has.

Runs where the wheel was compiled, beside the torch that it was compiled against. Nothing of the wheel is loaded.
"""

import importlib.metadata
import sys
import tempfile
import zipfile
from pathlib import Path

# envcheck's own environment in an image; on a machine, the directory that holds the package is beside this script.
for place in (*Path("/opt/envcheck/lib").glob("python*/site-packages"), Path(__file__).parent):
    sys.path.append(str(place))

from envcheck.checks.extensions import installed  # noqa: E402 (found on the path above)
from envcheck.checks.support.package_files import key  # noqa: E402


def main(directory: str) -> int:
    """Compare, and name on stderr what is missing."""
    torch = installed.torch_root()
    if torch is None:
        print("envcheck: built: this Python has no torch to compare with", file=sys.stderr)
        return 1
    missing = 0
    for wheel in sorted(Path(directory).glob("*.whl")):
        with tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
            found = importlib.metadata.distributions(path=[scratch])
            extensions = installed.extensions({key(dist.metadata["Name"]): dist for dist in found})
            undefined = installed.undefined_symbols(extensions, torch)
            brought = installed.brought_libraries(torch)
            for extension in extensions:
                for symbol in sorted(undefined[extension.name]):
                    print(f"envcheck: built: undefined symbol {symbol}", file=sys.stderr)
                    missing += 1
                for library in extension.libraries:
                    for name in installed.missing_libraries(extension, library, brought):
                        print(f"envcheck: built: {library.name} needs {name}", file=sys.stderr)
                        missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
