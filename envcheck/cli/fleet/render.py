"""`envcheck fleet render`: files that start envcheck on many nodes."""

import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, Argument, Duration, Option, command_with
from envcheck.errors import ConfigError
from envcheck.fleet.launch_files import LaunchValues, launch_files


@dataclass(frozen=True, kw_only=True)
class FleetRenderOptions:
    system: Annotated[Literal["slurm", "kubernetes"], Argument()]
    names: Annotated[tuple[str, ...], Argument(metavar="[NAME]...")] = ()
    image: Annotated[str | None, Option("The image to judge, by digest.", metavar="REF@DIGEST")] = None
    python: Annotated[
        str | None, Option("Slurm: an environment on the nodes to judge, instead of an image.", metavar="PATH")
    ] = None
    nodes: Annotated[int, Option("How many nodes.", type=click.IntRange(1, 100_000))] = 1
    gpus: Annotated[int, Option("GPUs of a node; 0: none.", type=click.IntRange(0, 64))] = 8
    level: Annotated[Literal["static", "quick", "standard", "full"], Option("How much to check.")] = "quick"
    max_age: Annotated[float, Option("Oldest verdict that gates accept.", type=Duration())] = 900.0
    budget: Annotated[float, Option("Time limit for the checks of a gate.", type=Duration())] = 60.0
    on_error: Annotated[
        Literal["refuse", "admit"], Option("What gates do if the node cannot be judged.", advanced=True)
    ] = "refuse"
    program: Annotated[
        str | None, Option("Slurm: envcheck on the nodes. [this one]", metavar="PATH", advanced=True)
    ] = None
    scripts: Annotated[str, Option("Slurm: where slurmd finds the scripts.", advanced=True)] = "/etc/slurm/envcheck"
    reports: Annotated[
        str | None,
        Option("Slurm: a directory that all nodes share. [./envcheck-reports]", metavar="DIR", advanced=True),
    ] = None
    state: Annotated[str, Option("Where a node keeps its verdicts.", advanced=True)] = "/var/lib/envcheck"
    partition: Annotated[str, Option("Slurm: the partition of sweep and group.", advanced=True)] = ""
    namespace: Annotated[str, Option("Kubernetes: the namespace.", advanced=True)] = "default"
    variables: Annotated[
        tuple[str, ...],
        Option("--env", "Kubernetes: NCCL_*, FI_*, UCX_*, GLOO_* of pods.", metavar="NAME=VALUE", advanced=True),
    ] = ()
    drain: Annotated[
        bool, Option("Kubernetes: the DaemonSet taints nodes whose check failed (adds rbac.yaml).", advanced=True)
    ] = False
    output: Annotated[Path | None, Option("-o", "--output", "Write the files into this directory.", type=DIRECTORY)] = (
        None
    )


@command_with(FleetRenderOptions, name="render", short_help="Write envcheck's files for Slurm or Kubernetes.")
def command(options: FleetRenderOptions, settings: Settings) -> None:
    """Write the files with which Slurm or Kubernetes runs envcheck. Nothing is applied.

    \b
    envcheck fleet render slurm --image REF@sha256:... --nodes 16 -o slurm/
    envcheck fleet render kubernetes sweep --image REF@sha256:... --nodes 16

    Without --output the files are printed, one after the other. NAME is the name of a file, such as prolog.sh, or
    its beginning. Exit 2: a value cannot be used in a script or manifest, or no file has that name.
    """
    if options.system == "slurm" and options.variables:
        message = "--env has no place in the files for Slurm"
        raise ConfigError(message, fix="set it in the environment of sbatch, which passes it on")
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


def _this_program() -> str:
    """Return the path of the envcheck that runs."""
    named = Path(sys.argv[0])
    return str(named.absolute()) if named.name == "envcheck" else shutil.which("envcheck") or "/usr/local/bin/envcheck"
