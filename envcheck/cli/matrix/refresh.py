"""`envcheck matrix refresh`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.matrix.extensions.refresh import ExtensionProposal
    from envcheck.matrix.facts.model import Matrix
    from envcheck.matrix.file.lint import Problem
    from envcheck.matrix.file.refresh import Proposal, RefreshSource, SeenIndexes
    from envcheck.mirrors.profiles.model import Profile


class MatrixRefreshOptions(NamedTuple):
    """The options of `envcheck matrix refresh`."""

    mirror: str
    summary: Path | None
    dry_run: bool
    extensions: Path | None
    as_json: bool


@click.command(
    "refresh",
    short_help="Add unverified rows for wheels that the indexes list.",
    epilog="Example: envcheck matrix refresh --mirror host --summary proposal.md",
)
@click.option("--mirror", default="host", show_default=True, help="none, host, a preset, or a profile's YAML file.")
@click.option(
    "--summary",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the proposal as Markdown: the text of a pull request.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be proposed and leave matrix.yaml as it is.")
@click.option(
    "--extensions",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Read the pages of native extensions instead, and add their newer releases to this extensions.yaml.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: envcheck/refresh/1.")
@click.pass_obj
@takes(MatrixRefreshOptions)
def command(options: MatrixRefreshOptions, settings: Settings) -> None:
    """Add unverified rows for the torch wheels that the indexes list and the matrix lacks.

    It reads torch's page of the Python index and of each variant on the PyTorch index. Releases, variants,
    architectures and Pythons that the matrix lacks become rows in its canonical form, each with a source and
    `verified: false`. Which cells are published does not change, and no row is removed.

    Exit 0: the indexes were read; 2: wrong usage; 3: an index cannot be read, and nothing has changed.
    """
    if options.extensions is not None:
        _refresh_extensions(options, options.extensions)
        return
    from envcheck.data import own_matrix
    from envcheck.matrix.file.lint import lint
    from envcheck.matrix.file.load import load
    from envcheck.matrix.file.proposal_text import markdown
    from envcheck.matrix.file.refresh import propose
    from envcheck.mirrors.profiles.load import load as load_profile

    file = settings.matrix or own_matrix()
    matrix, profile = load(file), load_profile(options.mirror)
    seen, absent = _read(matrix, profile)
    source = _source(matrix, absent)
    proposal = propose(matrix, seen, source)
    problems = [problem for problem in lint(proposal.matrix) if problem not in lint(matrix)]
    if not options.dry_run:
        _write(file, proposal)
    if options.summary is not None:
        from envcheck import safe_files

        safe_files.replace(options.summary, markdown(proposal, source, problems).encode())
    _tell(proposal, problems, absent, options, file)


def _refresh_extensions(options: MatrixRefreshOptions, file: Path) -> None:
    from envcheck import safe_files
    from envcheck.cli.sources.fetch_request import profile_client
    from envcheck.matrix.extensions.file import dump, load
    from envcheck.matrix.extensions.refresh import SeenFile, SeenRelease, newest_known, propose
    from envcheck.mirrors.index.extension_wheels import read_newer_releases
    from envcheck.mirrors.index.file_names import parse_file_name
    from envcheck.mirrors.profiles.load import load as load_profile

    extensions, profile = load(file), load_profile(options.mirror)
    newest = newest_known(extensions)
    listed = read_newer_releases(profile_client(profile, 8), profile, newest)
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    text = f"pages of the Python index and METADATA, read on {day} by `envcheck matrix refresh`; no wheel was opened"
    seen = [
        SeenRelease(
            release.project,
            str(release.version),
            [SeenFile(file.name, file.sha256, parse_file_name(file.name)[2]) for file in release.files],
            release.metadata,
        )
        for release in listed.releases
    ]
    proposal = propose(extensions, seen, f"refresh-{day}", text)
    if proposal.rows and not options.dry_run:
        safe_files.replace(file, dump(proposal.extensions).encode())
    if options.summary is not None:
        safe_files.replace(options.summary, _extension_summary(proposal, text).encode())
    _tell_extensions(proposal, listed.absent, options, file)


def _extension_summary(proposal: ExtensionProposal, text: str) -> str:
    lines = [f"# New releases of native extensions\n\nEvidence: {text}.\n"]
    for row in proposal.rows:
        files = "\n".join(f"{sha256 or 'no sha256'}  {name}" for name, sha256 in row.files)
        lines.append(f"## {row.where}\n\n```\n{files}\n```\n")
    return "\n".join(lines)


def _tell_extensions(proposal: ExtensionProposal, absent: list[str], options: MatrixRefreshOptions, file: Path) -> None:
    if options.as_json:
        import msgspec

        rows = [{"row": row.where, "tags": row.tags, "wheels": row.files} for row in proposal.rows]
        document = {
            "schema": "envcheck/refresh/1",
            "rows": rows,
            "to_do": [],
            "not_proposed": proposal.left_out,
            "absent": absent,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
        return
    for row in proposal.rows:
        click.echo(f"{row.where}: {', '.join(row.tags)}")
    for line in proposal.left_out:
        click.echo(f"not proposed: {line}")
    done = "would be added to" if options.dry_run else "added to"
    rows_done = (
        f"{counted(len(proposal.rows), 'row')} {done} {file.name}; open their wheels with `envcheck matrix wheel`"
    )
    click.echo(rows_done if proposal.rows else "the index lists no newer release")
    if absent:
        click.echo(f"the index has no page of {', '.join(absent)}")


def _read(matrix: Matrix, profile: Profile) -> tuple[SeenIndexes, list[str]]:
    from envcheck.cli.sources.fetch_request import profile_client
    from envcheck.matrix.file.refresh import SeenIndexes, SeenWheel, known_torchvisions, variants_to_read
    from envcheck.mirrors.index.torch_wheels import read_torch_wheels

    releases = {release.torch for release in matrix.torch}
    listing = read_torch_wheels(
        profile_client(profile, 8),
        profile,
        variants_to_read(matrix),
        releases=releases,
        torchvisions=known_torchvisions(matrix),
    )
    wheels = [
        SeenWheel(w.torch, w.variant, w.arch, w.python, w.file.name, w.file.sha256, w.file.uploaded)
        for w in listing.wheels
    ]
    return SeenIndexes(wheels, listing.pypi_variants, listing.torchvision), listing.absent


def _source(matrix: Matrix, absent: list[str]) -> RefreshSource:
    from envcheck.matrix.file.refresh import RefreshSource, variants_to_read

    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    read = [name for name in variants_to_read(matrix) if name not in absent]
    pages = f"the Python index and the PyTorch index ({', '.join(read)})"
    return RefreshSource(f"refresh-{day}", f"torch's pages of {pages}, read on {day} by `envcheck matrix refresh`", day)


def _write(file: Path, proposal: Proposal) -> None:
    from envcheck import safe_files
    from envcheck.matrix.file.canonical import dump
    from envcheck.matrix.file.load import loads

    if not proposal.rows:
        return
    text = dump(proposal.matrix).encode()
    loads(text, file.name)  # a proposal that cannot be read again is not written
    safe_files.replace(file, text)


def _tell(
    proposal: Proposal, problems: list[Problem], absent: list[str], options: MatrixRefreshOptions, file: Path
) -> None:
    if options.as_json:
        _tell_json(proposal, problems, absent)
        return
    for row in proposal.rows:
        click.echo(f"{row.where}: Python {', '.join(row.pythons)}")
    for where, problem in problems:
        click.echo(f"to do: {where}: {problem}")
    for line in proposal.left_out:
        click.echo(f"not proposed: {line}")
    rows = counted(len(proposal.rows), "row")
    done = "would be added to" if options.dry_run else "added to"
    click.echo(f"{rows} {done} {file.name}" if proposal.rows else "the indexes list nothing that the matrix lacks")
    if absent:
        click.echo(f"the PyTorch index has no page of {', '.join(absent)}")


def _tell_json(proposal: Proposal, problems: list[Problem], absent: list[str]) -> None:
    import msgspec

    document = {
        "schema": "envcheck/refresh/1",
        "rows": [
            {"row": row.where, "python": row.pythons, "wheels": [wheel._asdict() for wheel in row.wheels]}
            for row in proposal.rows
        ],
        "to_do": [problem._asdict() for problem in problems],
        "not_proposed": proposal.left_out,
        "absent": absent,
    }
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
