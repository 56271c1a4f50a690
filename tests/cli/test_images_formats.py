"""`envcheck images --format`, and which cells a change selects."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from envcheck.cli import cli
from envcheck.data import data_path
from tests.wheels import wheel

CELL = "torch2.13.0-cpu-py311"
OTHER = "torch2.13.0-cu130-py311"
GRACE = "torch2.14.1-cu130-py312"
ARM = "linux/arm64"
TORCH_LOCKS = ("torch.lock", "torch.aarch64.lock")


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run `envcheck images`; what it raises stays in the result."""
    return CliRunner().invoke(cli, ["images", *arguments], input=stdin)


def cells(*arguments: str, stdin: str | None = None) -> list[str]:
    shown = run(*arguments, "--format", "github", stdin=stdin)
    assert shown.exit_code == 0, shown.output
    return list(dict.fromkeys(job["cell"] for job in json.loads(shown.stdout)["include"]))


def test_a_matrix_has_the_selected_cells_only() -> None:
    assert cells("torch2.13.0-cpu*") == [CELL]
    assert cells("torch2.13.0-*py311", "--target", "runtime") == [CELL, OTHER]


def test_each_platform_of_a_cell_is_a_job_on_a_machine_of_its_own() -> None:
    shown = json.loads(run(GRACE, "--format", "github").stdout)["include"]
    jobs = [(job["target"], job["platform"], job["runner"]) for job in shown]
    machines = [("linux/amd64", "ubuntu-24.04"), ("linux/arm64", "ubuntu-24.04-arm")]
    assert jobs == [(target, *machine) for target in ("runtime", "devel", "train") for machine in machines]
    arm = json.loads(run(GRACE, "--format", "github", "--platform", "linux/arm64").stdout)["include"]
    assert arm == [job for job in shown if job["platform"] == "linux/arm64"]
    assert json.loads(run(GRACE, "--json").stdout)["cells"][0]["platforms"] == ["linux/amd64", "linux/arm64"]


def test_a_file_of_one_target_is_of_the_platform_that_is_asked_for() -> None:
    """The lock's own hashes: torch of the other platform is another file."""
    first, arm = (
        run(GRACE, "--target", "runtime", "--format", "conda", *more).stdout for more in ((), ("--platform", ARM))
    )
    digests = [(data_path("images") / GRACE / name).read_text().split("sha256:")[1][:64] for name in TORCH_LOCKS]
    assert [digest in text for text in (first, arm) for digest in digests] == [True, False, False, True]


def test_all_published_jobs_fit_one_matrix() -> None:
    """What refuses more of them is the format itself; this says when the cells must be parted."""
    assert run("--format", "github").exit_code == 0


def test_a_cell_without_a_lock_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    shown = run("--images", str(tmp_path / "images"), CELL, "--format", "github")
    assert (shown.exit_code, shown.stdout) == (0, '{"include":[]}\n')
    assert f"{CELL} is left out: it has no lock; run `envcheck lock {CELL}`" in shown.stderr


RUNTIME = "torch2.4.1-cu121-py310"  # published as this one target


def test_it_is_printed_and_unknown_licences_are_counted(tmp_path: Path) -> None:
    wheel(tmp_path, "mpmath", "1.3.0", metadata="License: BSD\n")
    command = ["images", "sbom", CELL, "--metadata", str(tmp_path)]
    shown = CliRunner().invoke(cli, command, env={"SOURCE_DATE_EPOCH": "0"})
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert (document["bomFormat"], document["metadata"]["timestamp"]) == ("CycloneDX", "1970-01-01T00:00:00Z")
    total = len(document["components"])
    assert f"{total - 1} of {total} licences are not known: give --metadata DIR" in shown.stderr


DOCKER = """#!/bin/sh
case $1 in
version) echo 28.0 ;;
image) echo '[{{"Id": "sha256:1", "Size": 1, "Config": {{"Labels": {labels}}}, "RootFS": {{"Layers": []}}}}]' ;;
run)
  echo 'WARNING: of the engine' >&2
  printf 'os\tdebian\t12\n'
  printf 'installed\tlibssl3\t1:3.0.1~deb12+2\tamd64\topenssl\t3.0.1-1\nconfig-files\tgone\t1\tall\tgone\t1\n' ;;
esac
"""


def test_the_distributions_packages_are_those_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command = ["images", "sbom", CELL, "--image", "envcheck/torch:x"]
    for cell in (CELL, "torch2.13.0-cpu-py312"):
        labels = json.dumps({"envcheck.cell": cell, "envcheck.target": "runtime"})
        (tmp_path / "docker").write_text(DOCKER.format(labels=labels))
        (tmp_path / "docker").chmod(0o755)
        shown = CliRunner().invoke(cli, command)
        if cell != CELL:
            assert f"envcheck/torch:x is no image of {CELL} runtime that docker has" in str(shown.exception)
            continue
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(shown.stdout) is None
        document = json.loads(shown.stdout)
        system, package = document["components"][-2:]
        assert (system["type"], system["name"], system["version"]) == ("operating-system", "debian", "12")
        parsed = PackageURL.from_string(package["purl"])
        assert (parsed.to_string(), parsed.version) == (package["purl"], "1:3.0.1~deb12+2")
        assert parsed.qualifiers == {"arch": "amd64", "distro": "debian-12", "upstream": "openssl@3.0.1-1"}
        assert document["metadata"]["component"]["description"].endswith("From the image: the distribution's.")


def test_a_date_that_is_none_is_one_line() -> None:
    for date in ("today", "9" * 20):
        error = CliRunner().invoke(cli, ["images", "sbom", CELL], env={"SOURCE_DATE_EPOCH": date}).exception
        assert f"SOURCE_DATE_EPOCH is {date!r}, not seconds since 1970" in str(error)
