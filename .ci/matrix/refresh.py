"""Propose rows for wheels that the indexes list and the matrix, or extensions.yaml, lacks.

    .venv/bin/python .ci/matrix/refresh.py --mirror host --summary proposal.md [--matrix FILE] [--dry-run]
    .venv/bin/python .ci/matrix/refresh.py --extensions FILE --mirror host --summary proposal.md
    .venv/bin/python .ci/matrix/refresh.py --nvidia --summary proposal.md [--drivers URL] [--base-images REPOSITORY]

Rows are unverified, in canonical form, each with a source. Which cells are published does not change, and no row is
removed. Exit 0: the indexes were read; 2: wrong usage; 3: an index cannot be read, and nothing has changed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from pathlib import Path

import extension_rows
import nvidia_rows
import torch_rows
from canonical import dump, dump_extensions
from extension_listing import read_newer_releases
from torch_listing import read_torch_wheels

from envcheck import safe_files
from envcheck.counting import counted
from envcheck.errors import EnvcheckError
from envcheck.matrix.extensions import file as extension_file
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.lint import lint
from envcheck.matrix.file.load import load, loads
from envcheck.mirrors.index import parse_file_name
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile

ROOT = Path(__file__).parents[2]
DAY = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()


def main() -> int:
    """Read the indexes, and write what they list into the file and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.yaml", help="the file of facts")
    parser.add_argument("--extensions", type=Path, help="add newer releases to this extensions.yaml instead")
    parser.add_argument("--nvidia", action="store_true", help="add drivers, CUDA minors and base images instead")
    parser.add_argument("--drivers", default=nvidia_rows.DRIVERS, help="NVIDIA's index of drivers, or a copy")
    parser.add_argument("--base-images", default=nvidia_rows.IMAGES, help="the repository of nvidia/cuda, or a copy")
    parser.add_argument("--mirror", default="host", help="none, host, a preset, or a profile's YAML file")
    parser.add_argument("--summary", type=Path, help="write the proposal as Markdown: the text of a pull request")
    parser.add_argument("--dry-run", action="store_true", help="say what would be proposed, and change nothing")
    options = parser.parse_args()
    try:
        profile = load_profile(options.mirror)
        if options.nvidia:
            lines = refresh_nvidia(options, profile)
        elif options.extensions:
            lines = refresh_extensions(options.extensions, profile, options.summary, write=not options.dry_run)
        else:
            lines = refresh_torch(options.matrix, profile, options.summary, write=not options.dry_run)
    except EnvcheckError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def refresh_nvidia(options: argparse.Namespace, profile: Profile) -> list[str]:
    """Propose driver branches, CUDA minors and base images; return the lines that say it."""
    matrix, client = load(options.matrix), hub_client(profile, options.drivers)
    drivers = nvidia_rows.read_drivers(client, options.drivers, matrix)
    images = nvidia_rows.read_images(options.base_images, client, matrix)
    text = f"NVIDIA's index of drivers and the configs of nvidia/cuda, read on {DAY}"
    proposal = nvidia_rows.propose(matrix, drivers, images, {f"refresh-nvidia-{DAY}": text})
    if proposal.rows and not options.dry_run:
        changed = dump(proposal.matrix).encode()
        loads(changed, options.matrix.name)  # a proposal that cannot be read again is not written
        safe_files.replace(options.matrix, changed)
    if options.summary is not None:
        safe_files.replace(options.summary, nvidia_rows.markdown(proposal, text).encode())
    rows = len(proposal.rows)
    return [*proposal.rows, *_end(proposal.left_out, rows, options.matrix, [], write=not options.dry_run)]


def refresh_torch(file: Path, profile: Profile, summary: Path | None, *, write: bool) -> list[str]:
    """Propose rows of torch; return the lines that say it."""
    matrix = load(file)
    seen, absent = _seen_torch(matrix, profile)
    read = [name for name in torch_rows.variants_to_read(matrix) if name not in absent]
    pages = f"the Python index and the PyTorch index ({', '.join(read)})"
    source = torch_rows.RefreshSource(f"refresh-{DAY}", f"torch's pages of {pages}, read on {DAY}", DAY)
    proposal = torch_rows.propose(matrix, seen, source)
    problems = [problem for problem in lint(proposal.matrix) if problem not in lint(matrix)]
    if proposal.rows and write:
        text = dump(proposal.matrix).encode()
        loads(text, file.name)  # a proposal that cannot be read again is not written
        safe_files.replace(file, text)
    if summary is not None:
        safe_files.replace(summary, torch_rows.markdown(proposal, source, problems).encode())
    rows = [f"{row.where}: Python {', '.join(row.pythons)}" for row in proposal.rows]
    rows += [f"to do: {where}: {problem}" for where, problem in problems]
    return [*rows, *_end(proposal.left_out, len(rows) - len(problems), file, absent, write=write)]


def _seen_torch(matrix: Matrix, profile: Profile) -> tuple[torch_rows.SeenIndexes, list[str]]:
    listing = read_torch_wheels(
        hub_client(profile, connections=8),
        profile,
        torch_rows.variants_to_read(matrix),
        releases={release.torch for release in matrix.torch},
        torchvisions=torch_rows.known_torchvisions(matrix),
    )
    wheels = [
        torch_rows.SeenWheel(w.torch, w.variant, w.arch, w.python, w.file.name, w.file.sha256, w.file.uploaded)
        for w in listing.wheels
    ]
    return torch_rows.SeenIndexes(wheels, listing.pypi_variants, listing.torchvision), listing.absent


def refresh_extensions(file: Path, profile: Profile, summary: Path | None, *, write: bool) -> list[str]:
    """Propose rows of native extensions; return the lines that say it."""
    extensions = extension_file.load(file)
    newest = extension_rows.newest_known(extensions)
    listed = read_newer_releases(hub_client(profile, connections=8), profile, newest)
    text = f"pages of the Python index and METADATA, read on {DAY}; no wheel was opened"
    seen = [
        extension_rows.SeenRelease(
            release.project,
            str(release.version),
            [extension_rows.SeenFile(one.name, one.sha256, parse_file_name(one.name)[2]) for one in release.files],
            release.metadata,
        )
        for release in listed.releases
    ]
    proposal = extension_rows.propose(extensions, seen, f"refresh-{DAY}", text)
    if proposal.rows and write:
        safe_files.replace(file, dump_extensions(proposal.extensions).encode())
    if summary is not None:
        safe_files.replace(summary, extension_rows.markdown(proposal, text).encode())
    rows = [f"{row.where}: {', '.join(row.tags)}" for row in proposal.rows]
    return [*rows, *_end(proposal.left_out, len(rows), file, listed.absent, write=write)]


def _end(left_out: list[str], rows: int, file: Path, absent: list[str], *, write: bool) -> list[str]:
    done = "added to" if write else "would be added to"
    lines = [*(f"not proposed: {line}" for line in left_out), f"{counted(rows, 'row')} {done} {file.name}"]
    return [*lines, f"no page of {', '.join(absent)}"] if absent else lines


if __name__ == "__main__":
    sys.exit(main())
