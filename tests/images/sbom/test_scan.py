"""`images scan`: what Trivy and Grype found is counted alike; no scanner, or one that knows nothing, is no pass."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from tests.tables import each

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
