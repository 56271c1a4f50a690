"""Requirements with hashes, however their lines are broken."""

from __future__ import annotations

import pytest

from envcheck.errors import ConfigError
from envcheck.images.locks.lockfile import parse_requirements

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    "text",
    [
        f"Pkg_1==1.0 --hash=sha256:{A} --hash=sha256:{B}\n",
        f"pkg-1==1.0 --hash=sha256:{A}   --hash=sha256:{B}   # a comment\n",
        f"pkg-1==1.0 --hash=sha256:{A} \\\n  --hash=sha256:{B}\n",
        f"pkg-1==1.0 \\\n\t--hash=sha256:{A} --hash=sha256:{B}\n",
        f"pkg-1==1.0 ; python_version > '3' --hash=sha256:{A} \\\n --hash=sha256:{B}\n# via x\n",
        f"--index-url https://t/\npkg-1==1.0 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n    # via x\n",
    ],
)
def test_a_pin_is_read_with_its_hashes(text: str) -> None:
    lock = parse_requirements(f"{text}other==2 --hash=sha256:{B}\n", "base", "r.txt")
    assert [(pin.name, pin.version, pin.sha256) for pin in lock.pins] == [("pkg-1", "1.0", [A, B]), ("other", "2", [B])]


@pytest.mark.parametrize(
    "line", ["pkg==1", "pkg>=1 --hash=sha256:" + A, "pkg==1 --hash=md5:00", "pkg==1 --hash=sha256:" + A + " \\"]
)
def test_what_is_no_hashed_pin_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ConfigError, match=r"r\.txt:[23]: "):
        parse_requirements(f"a==1 --hash=sha256:{A} --hash=sha256:{B}\n{line}\n", "base", "r.txt")
