"""`envcheck fleet render`: files that start envcheck on many nodes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from envcheck.checks import LEVELS
from envcheck.cli.shared.parameter_types import Duration
from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.cli import Settings


class FleetRenderOptions(NamedTuple):
    """The options of `envcheck fleet render`."""

    system: Literal["slurm", "kubernetes", "prometheus"]
    names: tuple[str, ...]
    image: str | None
    python: str | None
    nodes: int
    gpus: int
    level: str
    max_age: float
    budget: float
    on_error: Literal["refuse", "admit"]
    program: str | None
    scripts: str
    reports: str | None
    state: str
    partition: str
    namespace: str
    variables: tuple[str, ...]
    drain: bool
    output: Path | None


@click.command("render", short_help="Write envcheck's files for Slurm, Kubernetes or Prometheus.")
@click.argument("system", type=click.Choice(("slurm", "kubernetes", "prometheus")))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--image", metavar="REF@DIGEST", help="The image to judge, by digest.")
@click.option("--python", metavar="PATH", help="Slurm: an environment on the nodes to judge, instead of an image.")
@click.option("--nodes", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many nodes.")
@click.option("--gpus", type=click.IntRange(0, 64), default=8, show_default=True, help="GPUs of a node; 0: none.")
@click.option("--level", type=click.Choice(LEVELS), default="quick", show_default=True, help="How much to check.")
@click.option("--max-age", type=Duration(), default="15m", show_default=True, help="Oldest verdict that gates accept.")
@click.option(
    "--budget", type=Duration(), default="60s", show_default=True, help="Time limit for the checks of a gate."
)
@click.option(
    "--on-error",
    type=click.Choice(("refuse", "admit")),
    default="refuse",
    show_default=True,
    help="What gates do if the node cannot be judged.",
)
@click.option("--program", metavar="PATH", help="Slurm: envcheck on the nodes. [this one]")
@click.option(
    "--scripts", default="/etc/slurm/envcheck", show_default=True, help="Slurm: where slurmd finds the scripts."
)
@click.option("--reports", metavar="DIR", help="Slurm: a directory that all nodes share. [./envcheck-reports]")
@click.option("--state", default="/var/lib/envcheck", show_default=True, help="Where a node keeps its verdicts.")
@click.option("--partition", default="", help="Slurm: the partition of sweep and group.")
@click.option("--namespace", default="default", show_default=True, help="Kubernetes: the namespace.")
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Kubernetes: NCCL_*, FI_*, UCX_*, GLOO_* of pods."
)
@click.option(
    "--drain", is_flag=True, help="Kubernetes: the DaemonSet taints nodes whose check failed (adds rbac.yaml)."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Write the files into this directory."
)
@click.pass_context
@takes(FleetRenderOptions)
def command(options: FleetRenderOptions, ctx: click.Context) -> None:
    """Write the files with which Slurm or Kubernetes runs envcheck, or Prometheus shows it. Nothing is applied.

    \b
    envcheck fleet render slurm --image REF@sha256:... --nodes 16 -o slurm/
    envcheck fleet render kubernetes sweep --image REF@sha256:... --nodes 16
    envcheck fleet render prometheus -o monitoring/

    prometheus: alert rules and a Grafana dashboard over the metrics of
    `envcheck fleet report --prometheus` and `envcheck report convert`.

    Without --output the files are printed, one after the other. NAME is the name of a file, such as prolog.sh, or
    its first word. Exit 2: a value cannot be used in a script or manifest, the system's
    files have no place for an option, or no file has that name.
    """
    from envcheck import safe_files
    from envcheck.errors import ConfigError
    from envcheck.fleet.launch_files import LaunchValues, launch_files

    _refuse_options_of_other_systems(ctx, options.system)
    if options.output is not None and options.output.exists() and not options.output.is_dir():
        message = f"--output {options.output} is not a directory"
        raise ConfigError(message, fix="name a directory, or leave it out to print the files")
    settings: Settings = ctx.obj
    launch_values = {name: value for name, value in options._asdict().items() if name in LaunchValues._fields}
    chosen = {
        "program": options.program or _this_program(),
        "reports": options.reports or str(Path.cwd() / "envcheck-reports"),
    }
    values = LaunchValues(**{**launch_values, **chosen})
    for file in launch_files(options.system, options.names, values):
        if options.output is None:
            click.echo(f"# {file.name}\n{file.text}", nl=False)
            continue
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / file.name
        safe_files.put(path, file.text.encode(), file.mode)
        if not settings.quiet:
            click.echo(f"wrote {path}")


def _refuse_options_of_other_systems(ctx: click.Context, system: str) -> None:
    """Raise ConfigError for an option on the command line that the system's files do not hold."""
    from envcheck.errors import ConfigError
    from envcheck.fleet.launch_files import NOT_OF

    for option in ctx.command.params:
        typed = ctx.get_parameter_source(str(option.name)) is click.core.ParameterSource.COMMANDLINE
        if typed and option.name in NOT_OF[system]:
            message = f"{max(option.opts, key=len)} has no place in the files for {system}"
            raise ConfigError(message, fix="leave it out")


def _this_program() -> str:
    """Return the path of the envcheck that runs."""
    named = Path(sys.argv[0])
    return str(named.absolute()) if named.name == "envcheck" else shutil.which("envcheck") or "/usr/local/bin/envcheck"
