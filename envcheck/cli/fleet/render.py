"""`envcheck fleet render`: files that start envcheck on many nodes."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, Argument, Option, command_with
from envcheck.cli.shared.parameter_types import Duration
from envcheck.errors import ConfigError
from envcheck.fleet.launch_files import NOT_OF, LaunchValues, launch_files


@dataclass(frozen=True, kw_only=True)
class FleetRenderOptions:
    """The options of `envcheck fleet render`."""

    system: Annotated[Literal["slurm", "kubernetes", "prometheus"], Argument()]
    names: Annotated[tuple[str, ...], Argument(metavar="[NAME]...")] = ()
    image: Annotated[str | None, Option(metavar="REF@DIGEST", help="The image to judge, by digest.")] = None
    python: Annotated[
        str | None, Option(metavar="PATH", help="Slurm: an environment on the nodes to judge, instead of an image.")
    ] = None
    nodes: Annotated[int, Option(type=click.IntRange(1, 100_000), help="How many nodes.")] = 1
    gpus: Annotated[int, Option(type=click.IntRange(0, 64), help="GPUs of a node; 0: none.")] = 8
    level: Annotated[Literal["static", "quick", "standard", "full"], Option(help="How much to check.")] = "quick"
    max_age: Annotated[float, Option(type=Duration(), help="Oldest verdict that gates accept.")] = 900.0
    budget: Annotated[float, Option(type=Duration(), help="Time limit for the checks of a gate.")] = 60.0
    on_error: Annotated[
        Literal["refuse", "admit"], Option(help="What gates do if the node cannot be judged.", advanced=True)
    ] = "refuse"
    program: Annotated[
        str | None, Option(metavar="PATH", help="Slurm: envcheck on the nodes. [this one]", advanced=True)
    ] = None
    scripts: Annotated[str, Option(help="Slurm: where slurmd finds the scripts.", advanced=True)] = (
        "/etc/slurm/envcheck"
    )
    reports: Annotated[
        str | None,
        Option(metavar="DIR", help="Slurm: a directory that all nodes share. [./envcheck-reports]", advanced=True),
    ] = None
    state: Annotated[str, Option(help="Where a node keeps its verdicts.", advanced=True)] = "/var/lib/envcheck"
    partition: Annotated[str, Option(help="Slurm: the partition of sweep and group.", advanced=True)] = ""
    namespace: Annotated[str, Option(help="Kubernetes: the namespace.", advanced=True)] = "default"
    variables: Annotated[
        tuple[str, ...],
        Option("--env", metavar="NAME=VALUE", help="Kubernetes: NCCL_*, FI_*, UCX_*, GLOO_* of pods.", advanced=True),
    ] = ()
    drain: Annotated[
        bool, Option(help="Kubernetes: the DaemonSet taints nodes whose check failed (adds rbac.yaml).", advanced=True)
    ] = False
    output: Annotated[
        Path | None, Option("-o", "--output", type=DIRECTORY, help="Write the files into this directory.")
    ] = None


@command_with(
    FleetRenderOptions, name="render", short_help="Write envcheck's files for Slurm, Kubernetes or Prometheus."
)
def command(options: FleetRenderOptions, settings: Settings) -> None:
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
    _refuse_options_of_other_systems(options.system)
    if options.output is not None and options.output.exists() and not options.output.is_dir():
        message = f"--output {options.output} is not a directory"
        raise ConfigError(message, fix="name a directory, or leave it out to print the files")
    launch_values = {name: value for name, value in asdict(options).items() if name in LaunchValues._fields}
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


def _refuse_options_of_other_systems(system: str) -> None:
    """Raise ConfigError for an option on the command line that the system's files do not hold."""
    ctx = click.get_current_context()

    for option in ctx.command.params:
        typed = ctx.get_parameter_source(str(option.name)) is click.core.ParameterSource.COMMANDLINE
        if typed and option.name in NOT_OF[system]:
            message = f"{max(option.opts, key=len)} has no place in the files for {system}"
            raise ConfigError(message, fix="leave it out")


def _this_program() -> str:
    """Return the path of the envcheck that runs."""
    named = Path(sys.argv[0])
    return str(named.absolute()) if named.name == "envcheck" else shutil.which("envcheck") or "/usr/local/bin/envcheck"
