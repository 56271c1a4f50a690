"""`envcheck images --format`, and which cells a change selects."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.data import data_path
from envcheck.errors import ConfigError, UnavailableError
from tests.tables import each

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


def refusal(*arguments: str, stdin: str | None = None) -> str:
    error = run(*arguments, stdin=stdin).exception
    assert isinstance(error, ConfigError | UnavailableError)
    return str(error)


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


@each(
    ("arguments", "message"),
    [
        (["--format", "github", "--json"], "--format and --json exclude each other"),
        (["--format", "github", "--repository", "me/torch:1"], "has the tag '1', and each image has a tag of its own"),
        (["--format", "bake", "--repository", "Not A Name"], "'Not A Name' is not a valid image name"),
        (["--platform", "linux/arm64"], "--platform is for --format"),
        ([CELL, "--format", "bake", "--platform", "linux/arm64"], "no selected cell is published for linux/arm64"),
        (["torch2.4.1-cu121-py310", "--target", "jupyter"], "no selected cell is published as jupyter"),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments)


def test_a_cell_without_a_lock_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    shown = run("--images", str(tmp_path / "images"), CELL, "--format", "github")
    assert (shown.exit_code, shown.stdout) == (0, '{"include":[]}\n')
    assert f"{CELL} is left out: it has no lock; run `envcheck lock {CELL}`" in shown.stderr
