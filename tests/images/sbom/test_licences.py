"""Licences are what metadata states, and nothing else."""

import email.parser
from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.images.sbom import Licence, PackageKey, read, stated
from tests.tables import each
from tests.wheels import wheel

LONG = "License: " + "text of a licence " * 20


@each(
    "metadata, licence",
    [
        ("License-Expression: mit\nLicense: BSD", Licence(expression="MIT")),
        ("License-Expression: Apache-2.0 WITH LLVM-exception", Licence(expression="Apache-2.0 WITH LLVM-exception")),
        ("License: BSD-3-Clause", Licence(expression="BSD-3-Clause")),
        ("License: Apache 2.0", Licence(name="Apache 2.0")),
        ("License: NVIDIA Proprietary Software", Licence(expression="LicenseRef-NVIDIA-Proprietary")),
        ("License: LicenseRef-NVIDIA-Proprietary", Licence(expression="LicenseRef-NVIDIA-Proprietary")),
        ("Classifier: License :: OSI Approved :: BSD License", Licence(name="BSD License")),
        (f"{LONG}\nClassifier: License :: OSI Approved :: MIT License", Licence(name="MIT License")),
        ("License: UNKNOWN", None),
        (LONG, None),
        ("Classifier: License :: Other/Proprietary License", None),
        ("Classifier: License :: OSI Approved", None),
        ("", None),
    ],
)
def test_the_metadata_decides(metadata: str, licence: Licence | None) -> None:
    assert stated(email.parser.Parser().parsestr(f"Name: x\nVersion: 1\n{metadata}\n")) == licence


def test_wheels_and_installed_packages_are_read(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "nvidia-Thing_cu12", "1.0", metadata="License: NVIDIA Proprietary Software\n")
    (tmp_path / "site/a-2.dist-info").mkdir(parents=True)
    (tmp_path / "site/a-2.dist-info/METADATA").write_text(
        "Name: A\nVersion: 2.0.0\nLicense: MIT\n\nBody: License: no\n"
    )
    assert read([tmp_path / "wheels", tmp_path / "site"]) == {
        PackageKey("nvidia-thing-cu12", "1.0"): Licence(expression="LicenseRef-NVIDIA-Proprietary"),
        PackageKey("a", "2.0.0"): Licence(expression="MIT"),
    }


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a-1-py3-none-any.whl", b"no zip", "not a wheel"),
        ("a.whl", b"", "not a wheel"),
        ("a.txt", b"", "no wheel and no installed package lies there"),
    ],
)
def test_what_is_no_metadata_is_one_line(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read([tmp_path])
