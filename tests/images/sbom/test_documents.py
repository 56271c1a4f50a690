"""The bills of materials against the official schemas, and against the locks that they are made from."""

import datetime as dt
import email.parser
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.images.build_context import tool_lock
from envcheck.images.sbom import Licence, PackageKey, components, cyclonedx, read, stated
from envcheck.images.spec import ImageSpec, load_spec, select
from envcheck.matrix.file.load import load
from tests.tables import each
from tests.wheels import wheel

NOW = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.timezone.utc)
CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.8.0-cu128-py312"
LICENCES = {
    PackageKey("torch", "2.8.0"): Licence(expression="BSD-3-Clause AND Apache-2.0 WITH LLVM-exception"),
    PackageKey("nvidia-cudnn-cu12", "9.10.2.21"): Licence(expression="LicenseRef-NVIDIA-Proprietary"),
    PackageKey("mpmath", "1.3.0"): Licence(name="BSD"),
    PackageKey("sympy", "1.14.0"): Licence(name="BSD"),
    PackageKey("jinja2", "3.1.6"): Licence(name="BSD License (mostly)"),
}


def listed(cell: str) -> tuple[ImageSpec, list[dict[str, Any]]]:
    matrix = load()
    (actual,) = select(matrix, [cell])
    spec = load_spec(matrix, actual)
    return spec, components(spec, tool_lock(), LICENCES)


@each("cell", [CPU, CUDA])
def test_cyclonedx_is_of_the_strict_schema(cell: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(cyclonedx(*listed(cell), NOW)) is None


@each("cell", [CPU, CUDA])
def test_each_pin_of_the_locks_is_listed_with_each_hash(cell: str) -> None:
    spec, actual = listed(cell)
    pins = [pin for lock in [*spec.locks, tool_lock()] for pin in lock.pins]
    assert [(one["name"], one["version"], [each["content"] for each in one["hashes"]]) for one in actual] == [
        (pin.name, pin.version, sorted(pin.sha256)) for pin in pins
    ]
    assert len({one["bom-ref"] for one in actual}) == len(actual)
    assert {one["properties"][0]["value"] for one in actual} == {"/opt/venv", "/opt/envcheck"}
    for one in actual:
        parsed = PackageURL.from_string(one["purl"])
        assert parsed.to_string() == one["purl"]
        assert (parsed.name, parsed.version) == (one["name"], one["version"])


def test_nvidia_is_named_and_a_licence_that_nobody_stated_is_not_asserted() -> None:
    document = json.loads(cyclonedx(*listed(CUDA), NOW))
    data = {one["bom-ref"]: one for one in document["components"]}
    assert data["venv-mpmath-1.3.0"]["licenses"] == [{"license": {"name": "BSD"}}]
    cudnn, nccl = data["venv-nvidia-cudnn-cu12-9.10.2.21"], data["venv-nvidia-nccl-cu12-2.27.3"]
    assert cudnn["licenses"] == [{"expression": "LicenseRef-NVIDIA-Proprietary"}]
    assert cudnn["supplier"] == nccl["supplier"] == {"name": "NVIDIA Corporation"}
    assert nccl["licenses"] == [{"license": {"name": "NOASSERTION"}}]


def test_the_document_says_what_it_does_not_cover_and_is_the_same_each_time() -> None:
    first, second = (cyclonedx(*listed(CPU), NOW) for _ in range(2))
    assert first == second
    document = json.loads(first)
    assert document["compositions"] == [{"aggregate": "incomplete", "assemblies": ["image"]}]
    spec, actual = listed(CPU)
    assert json.loads(cyclonedx(spec, actual[1:], NOW))["serialNumber"] != document["serialNumber"]


_ASK = """
import importlib.metadata as m, json, sysconfig
print(json.dumps([sysconfig.get_path("purelib"), [[d.name, d.version] for d in m.distributions()]]))
"""


@pytest.mark.torch
def test_what_is_installed_is_what_the_document_lists(torch_python: Path) -> None:
    shown = subprocess.run([str(torch_python), "-I", "-c", _ASK], capture_output=True, text=True, check=True)
    site_packages, distributions = json.loads(shown.stdout)
    matrix = load()
    (cell,) = select(matrix, ["torch2.13.0-cpu-py311"])
    listed = components(load_spec(matrix, cell), None, read([Path(site_packages)]))
    installed = {(canonicalize_name(name), version) for name, version in distributions}
    assert {(one["name"], one["version"]) for one in listed} == installed
    assert [one["name"] for one in listed if "NOASSERTION" in str(one["licenses"])] == []


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


BAD = {"VulnerabilityID": "CVE-1", "PkgName": "libssl3", "InstalledVersion": "3.0.1", "Severity": "HIGH"}
MATCH = {
    "vulnerability": {"id": "CVE-1", "severity": "High", "fix": {"versions": ["3.0.2"]}},
    "artifact": {"name": "libssl3", "version": "3.0.1"},
}


@each(
    "tool, printed, options, code, words",
    [
        (
            "trivy",
            {"Results": [{"Target": "a"}, {"Vulnerabilities": [{**BAD, "FixedVersion": "3.0.2"}]}]},
            "",
            1,
            "3.0.2",
        ),
        (
            "trivy",
            {"Results": [{"Vulnerabilities": [{**BAD, "Severity": "MEDIUM"}]}]},
            "",
            0,
            "0 vulnerabilities of high",
        ),
        ("trivy", {"Results": [{"Target": "debian 12"}]}, "--severity low", 0, "0 vulnerabilities of low"),
        ("trivy", {"ArtifactName": "a"}, "", 3, "could not tell: KeyError('Results')"),
        ("grype", {"matches": [MATCH]}, "", 1, "1 vulnerability of high severity or worse"),
        ("grype", None, "", 3, "exit code 1: no database"),
        ("other", {}, "", 3, "neither trivy nor grype is on PATH"),
    ],
)
def test_what_a_scanner_says_is_counted(
    tool: str, printed: Any, options: str, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = tmp_path / str(len([*tmp_path.iterdir()]))
    at.mkdir()
    says = "echo no database >&2; exit 1" if printed is None else f"echo '{json.dumps(printed)}'"
    (at / tool).write_text(f"#!/bin/sh\necho $* >{at}/called\n{says}\n")
    (at / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(at))
    for subject, kind in (("torch:1", "(image|--quiet .* torch:1)"), (str(at / tool), "(sbom|--quiet .* sbom:/)")):
        done = CliRunner().invoke(cli, ["images", "scan", subject, *options.split()])
        assert words in done.output + str(done.exception), done.output
        assert getattr(done.exception, "exit_code", done.exit_code) == code
        assert tool == "other" or re.match(kind, (at / "called").read_text())
