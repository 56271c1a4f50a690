"""`envcheck store`: files by hash, what is released of them, bundles; `envcheck key new`: a key that signs these."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import click

from envcheck import safe_files, signing
from envcheck.cli import Settings
from envcheck.cli.options import (
    DIRECTORY,
    EXISTING_DIRECTORY,
    EXISTING_FILE,
    Argument,
    JsonOption,
    Option,
    Options,
    Size,
    command_with,
    complete_cells,
)
from envcheck.cli.shared.process import note, print_answer
from envcheck.cli.sources import disk_errors, format_bytes, open_store, transfer_options
from envcheck.counting import counted
from envcheck.data import data_path, rendered
from envcheck.errors import PromiseError, UnavailableError, refuse
from envcheck.images import wheels
from envcheck.images.build_context import tool_lock
from envcheck.images.lockfile import read_locks
from envcheck.images.spec import load_spec, no_lock, select
from envcheck.images.wheels import locked_packages
from envcheck.matrix.file.load import load
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.hub import Reference, Revision, file_url, parse_lock
from envcheck.mirrors.index import LockedPackage, fits
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store import bundle, releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents, describe_wheel, merge

_OLDER = ": the bundle is an older one; `envcheck store release --rollback` takes it back"
_KEEP = Option("Number of versions to keep.", type=click.IntRange(1))


@click.group("store", epilog="Example: envcheck store release torch2.13.0-cpu-py311 --mirror host")
@click.option(
    "--store",
    "root",
    envvar="ENVCHECK_STORE_STORE",
    type=click.Path(path_type=Path),
    help="Directory of the store. [$XDG_DATA_HOME/envcheck/store]",
)
@click.pass_context
def command(ctx: click.Context, root: Path | None) -> None:
    """Keep files by hash, release them as versions of a tree, and carry them to machines without a network.

    Any file server over STORE/current serves pip, uv and huggingface_hub; STORE/current/nginx configures nginx, and
    `envcheck mirror site render DIR --store STORE` a mirror site.

    Exit 0: success; 1: a file has a wrong hash, or the store stays above its limit; 2: wrong usage; 3: something needed
    is missing, or another process uses the store.
    """
    ctx.meta["envcheck.store"] = store = open_store(root)
    ctx.with_resource(disk_errors(store.root))


def _this_store(*, existing: bool = False) -> Store:
    """Return the store that `envcheck store --store` names. Raise ConfigError if it must exist and does not."""
    store: Store = click.get_current_context().meta["envcheck.store"]
    if existing and not store.begun:
        refuse(
            f"{store.root}: {'not a store' if store.root.exists() else 'there is no store'}",
            "pass the right store with --store DIR; the first `store release` creates one",
        )
    return store


class StoreReleaseOptions(Options):
    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    models: Annotated[tuple[Path, ...], Option("--model-lock", "Release this model, too.", type=EXISTING_FILE)] = ()
    mirror: Annotated[str, Option("Mirror profile for missing files.")] = "user"
    keep: Annotated[int, _KEEP] = 5
    replace: Annotated[bool, Option("Serve only what is named here, without the files served now.")] = False
    rollback: Annotated[bool, Option("Serve the version before the one that is served now.")] = False

    def __post_init__(self) -> None:
        named = bool(self.cells or self.models)
        if self.rollback and (named or self.replace):
            refuse("--rollback serves a version that exists", "leave the cells, --model-lock and --replace out")
        if not named and not self.rollback:
            refuse("nothing to release", "name a CELL or a --model-lock")


@command_with(StoreReleaseOptions)
def release(options: StoreReleaseOptions, settings: Settings) -> None:
    """Create the next version of the tree and serve it."""
    if options.rollback:
        click.echo(f"version {releases.rollback(_this_store(existing=True))} is served")
        return
    store = _this_store()
    with store.held():
        _release(store, _fetched(settings, store, options), keep=options.keep, merge=not options.replace)


def _release(store: Store, contents: Contents, *, keep: int, merge: bool = True) -> None:
    version = releases.release(store, contents, keep=keep, merge=merge)
    already = "is served already and has all of these files: no version was created"
    click.echo(f"version {version.number} {f'is served: {store.root}/current' if version.new else already}")


def _fetched(settings: Settings, store: Store, options: StoreReleaseOptions) -> Contents:
    matrix, profile, contents = load(settings.matrix), load_profile(options.mirror), Contents()
    specs = [load_spec(matrix, cell, "runtime") for name in options.cells for cell in select(matrix, [name])]
    for spec in specs:
        if not spec.locks:
            raise no_lock(spec.cell, spec.arch)
    revisions = [parse_lock(safe_files.read_whole(path), str(path)) for path in options.models]
    # The images of a cell get an envcheck of their own, by the lock of the tool.
    locks = [(spec.cell.python, [*spec.locks, tool_lock()]) for spec in specs]
    required = [digest for _, of_cell in locks for lock in of_cell for pin in lock.pins for digest in pin.sha256]
    required += [str(file.sha256) for revision in revisions for file in revision.files]
    for name in releases.remove_damaged(store, required):
        click.echo(f"{name}: damaged in the store, removed", err=True)
    with transfer_options(settings, profile) as options_for:
        for python, of_cell in locks:
            wheels.bring(store, of_cell, python, profile, options_for)
            present = wheels.held(store, of_cell, python)
            described = [describe_wheel(store, wheel.sha256, wheel.name, wheel.index) for wheel in present]
            contents = merge(contents, Contents(wheels=described))
        for lock in revisions:
            _fetch_model(store, lock, profile, options_for)
            branches = {f"{lock.repo}@main": lock.revision}
            contents = merge(contents, Contents(models=[lock], branches=branches))
    return contents


def _fetch_model(store: Store, lock: Revision, profile: Profile, options_for: Callable[[str], TransferOptions]) -> None:
    ref = Reference(lock.kind, lock.repo, lock.revision)
    for file in (file for file in lock.files if not store.has(str(file.sha256))):
        if not profile.hf.endpoints:
            refuse(
                f"{lock.repo}: {file.path} is not in the store, and the mirror profile has no hf.endpoint",
                "give --mirror a profile that names one",
                UnavailableError,
            )
        urls = tuple(file_url(endpoint, ref, file.path) for endpoint in profile.hf.endpoints)
        store.put(WantedFile(urls, str(file.sha256), file.size, Path(Path(file.path).name)), options_for(file.path))


@command_with(JsonOption)
def versions(options: JsonOption, _settings: Settings) -> int:
    """List the released versions. Exit 1: the manifest of one cannot be read."""
    rows = releases.list_versions(_this_store(existing=True))
    lines = [
        f"version {row.number:<4} {'current' if row.current else '':<8} "
        + (row.problem or f"{counted(row.wheels, 'wheel')}, {counted(row.models, 'model')}, {format_bytes(row.bytes)}")
        for row in rows
    ]
    document = {"schema": "envcheck/versions/1", "versions": rows}
    print_answer(document, lines or ["nothing is released"], as_json=options.as_json)
    return 1 if any(row.problem for row in rows) else 0


class StoreGcOptions(Options):
    max_size: Annotated[int | None, Option("Limit for the store, not for its file system.", type=Size())] = None
    dry_run: Annotated[bool, Option("Only report the space in use, and what would be evicted.")] = False


@command_with(StoreGcOptions)
def gc(options: StoreGcOptions, _settings: Settings) -> int:
    """Evict the least recently used files."""
    store = _this_store(existing=True)
    done = releases.gc(store, size=options.max_size, dry=options.dry_run)
    told = {"done": done, "dry": options.dry_run, "root": store.root, "bytes": format_bytes, "counted": counted}
    click.echo(rendered("printed/gc.txt.j2", told), nl=False)
    return 1 if done.left else 0


class StoreExportOptions(Options):
    output: Annotated[Path, Option("-o", "--output", "Output directory.", type=DIRECTORY)]
    key: Annotated[Path | None, Option("ed25519 private key (PEM) to sign the bundle.")] = None


@command_with(StoreExportOptions)
def export(options: StoreExportOptions, _settings: Settings) -> None:
    """Write everything that is served now as a bundle for machines without a network."""
    store, to = _this_store(existing=True), options.output
    with store.held(), disk_errors(to):
        served = releases.current(store)
        if served is None:
            refuse("nothing to export: the store has no released version", "begin with `envcheck store release CELL`")
        contents = releases.read_manifest(store, served).contents
        digest = bundle.export(store, contents, to, options.key)
    click.echo(f"{to / bundle.TAR}: {format_bytes((to / bundle.TAR).stat().st_size)}")
    click.echo(f"digest {digest}{', signed' if options.key is not None else ''}")


class StoreImportOptions(Options):
    source: Annotated[Path, Argument(type=EXISTING_DIRECTORY)]
    sha256: Annotated[str | None, Option("Digest that `store export` printed.", metavar="HASH")] = None
    key: Annotated[Path | None, Option("ed25519 public key (PEM) that must verify the bundle.")] = None
    keep: Annotated[int, _KEEP] = 5

    def __post_init__(self) -> None:
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            refuse(f"--sha256 {self.sha256!r} is not a sha256 of 64 hex digits", "give what `store export` printed")


@command_with(StoreImportOptions, name="import")
def import_(options: StoreImportOptions, settings: Settings) -> None:
    """Import a bundle and serve it."""
    store, sha256, key = _this_store(), options.sha256, options.key
    verified = bundle.verified(options.source, sha256=sha256, key=key)
    with store.held():
        contents = bundle.import_bundle(store, verified, _compare_with_locks)
        if sha256 is None and key is None and not settings.quiet:
            click.echo("not authenticated: pass --sha256 or --key to refuse a bundle of somebody else", err=True)
        models = counted(len(contents.models), "model")
        click.echo(f"{counted(len(contents.wheels), 'wheel')} and {models} imported, every hash matches")
        _tell_moves(store, contents)
        _release(store, contents, keep=options.keep)


def _tell_moves(store: Store, contents: Contents) -> None:
    """Say which branches the bundle moves, and which of them back: a signature has no time, so it may be an old one."""
    versions, served = releases.read_manifests(store), releases.current(store)
    now = versions[served].contents.branches if served in versions else {}
    for name, commit in contents.branches.items():
        if now.get(name, commit) != commit:
            older = [version for number, version in versions.items() if number < (served or 0)]
            back = any(version.contents.branches.get(name) == commit for version in older)
            note(f"{name} moves {'back ' if back else ''}from {now[name]} to {commit}{_OLDER if back else ''}")


def _compare_with_locks(contents: Contents) -> None:
    """Raise PromiseError if a published cell's lock pins a wheel, for the cell's Python, with other hashes."""
    pinned: dict[tuple[str, str, str | None], list[LockedPackage]] = {}
    for folder in sorted(data_path("images").glob("*-py3*")):
        for need in locked_packages(read_locks(folder), f"3.{folder.name.rpartition('-py3')[2]}"):
            pinned.setdefault((need.index, need.project, need.version), []).append(need)
    for wheel in contents.wheels:
        needs = [need for need in pinned.get((wheel.index, wheel.project, wheel.version), []) if fits(need, wheel.name)]
        if needs and not any(wheel.sha256 in need.sha256 for need in needs):
            refuse(
                f"{wheel.name}: the bundle has another sha256 than the locks of the published cells",
                "do not use this bundle, or lock the cells anew if they are out of date",
                PromiseError,
            )


class KeyNewOptions(Options):
    file: Annotated[Path, Argument()]
    # Its variable would be taken for that of the password.
    password: Annotated[bool, Option("Ask for a password.", allow_from_autoenv=False)] = False


@command_with(KeyNewOptions)
def key_new(options: KeyNewOptions, settings: Settings) -> None:
    """Write a new ed25519 key to FILE, which only you can read, and its public key to FILE.pub. Print its id."""
    if not options.file.name or options.file.suffix == ".pub":
        refuse(
            f"{options.file} cannot hold a private key: it is a directory, or has the ending of public keys",
            "name a new file, as in `envcheck key new release`",
        )
    secret = signing.password()
    if options.password and secret is None:
        if not _at_terminal():
            refuse("--password asks on a terminal, and standard input is not a terminal", f"set {signing.PASSWORD}")
        secret = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True).encode()
    public = signing.new_key(options.file, secret)
    if settings.quiet:
        click.echo(public.id)
        return
    click.echo(f"wrote {options.file}: the private key{', with a password' if secret else ''}; keep it secret")
    click.echo(f"wrote {public.where}: the public key\nid {public.id}")


def _at_terminal() -> bool:
    return sys.stdin.isatty()


for _command in (release, versions, gc, export, import_):
    command.add_command(_command)
