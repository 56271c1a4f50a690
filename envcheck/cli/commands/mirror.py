"""`envcheck mirror list`, `show`, `use` and `doctor`: the profiles, the user's one, wrong settings and wrong pins."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import msgspec

from envcheck import counting, safe_files
from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_FILE, Argument, JsonOption, Option, Options, command_with
from envcheck.cli.shared.process import print_answer, print_section, say, styled, wrapped
from envcheck.counting import printable
from envcheck.data import rendered, state_path
from envcheck.errors import refuse
from envcheck.mirrors import doctor
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.host_config import ca_bundle, distribution
from envcheck.mirrors.profiles.load import BUILT_IN_NAMES, Preset, load, presets
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings import FORMATS, SET_VARIABLE, RenderOptions, notes, render, settings_of

if TYPE_CHECKING:
    from envcheck.matrix.facts.model import Matrix
    from envcheck.matrix.resolver.query import Query


@command_with(JsonOption, name="list")
def list_(options: JsonOption, _settings: Settings) -> None:
    """List the mirrors that `--mirror` takes by name."""
    mirrors = [{"name": name, **msgspec.to_builtins(preset)} for name, preset in presets().items()]
    chosen = model.read_choice()
    document = {"schema": "envcheck/mirrors/1", "chosen": chosen, "mirrors": mirrors}
    rows = [("name", "seen", "for", "region"), *(_row(name, preset) for name, preset in presets().items())]
    # Of the column "seen" nothing is left where no mirror was seen.
    columns = "%-11s %.0s%-46s %s" if {row[1] for row in rows[1:]} == {"never"} else "%-11s %-11s %-46s %s"
    lines = [
        f"chosen with `envcheck mirror use`: {chosen or 'none'}",
        "none        the default of every client",
        "host        this machine's own pip, uv, apt and CA configuration",
        "user        the choice of `envcheck mirror use`; `none` without a choice\n",
        *(columns % row for row in rows),
        "\n`envcheck mirror show NAME` shows what a mirror sets, lacks and cannot do.",
    ]
    print_answer(document, lines, as_json=options.as_json)


def _row(name: str, preset: Preset) -> tuple[str, str, str, str]:
    days = [entry.last_verified for entry in preset.entries]
    seen = str(min(day for day in days if day)) if all(days) else "never"
    return name, seen, ", ".join(dict.fromkeys(entry.kind for entry in preset.entries)), preset.region


class MirrorUseOptions(Options):
    profile: Annotated[str, Argument()]


@command_with(MirrorUseOptions)
def use_(options: MirrorUseOptions, _settings: Settings) -> None:
    """Choose the profile that `--mirror user` means, for this user. `none` removes the choice."""
    profile = options.profile
    if profile == "user":
        refuse("`mirror use user` is circular", "pass a name from `envcheck mirror list`, or a YAML file")
    if profile == "none":
        click.echo(f"removed {model.write_choice(None)}" if model.read_choice() else "nothing was chosen")
        return
    load(profile)
    choice = profile if profile in {*BUILT_IN_NAMES, *presets()} else str(Path(profile).absolute())
    click.echo(f"wrote {model.write_choice(choice)}: {choice}")
    click.echo("`envcheck mirror show user` shows what it lacks and what its settings cannot do")


class MirrorShowOptions(Options):
    profile: Annotated[str, Argument()]
    format_name: Annotated[
        str | None, Option("--format", "Print this client's settings.", type=click.Choice([*FORMATS]))
    ] = None
    variant: Annotated[str | None, Option("Value of {variant} in PyTorch's indexes.", metavar="cuNNN|cpu")] = None

    def __post_init__(self) -> None:
        if self.variant is not None and not re.fullmatch(r"cpu|cu[0-9]{2,3}|xpu|rocm[0-9.]+", self.variant):
            refuse(f"{self.variant!r} is not a variant", "write cu128, cpu, …")


@command_with(MirrorShowOptions, name="show")
def show_(options: MirrorShowOptions, settings: Settings) -> None:
    """Show what a profile sets, what it lacks, and what its settings cannot do."""
    profile, (distro, suite) = load(options.profile), distribution()
    render_with = RenderOptions(variant=options.variant, distro=distro, suite=suite)
    if options.format_name is None:
        _print_profile(options.profile, profile, render_with)
        return
    if options.format_name == "env":
        client_settings = settings_of(profile, "env", _for_this_shell(render_with, profile))
    else:
        client_settings = render(profile, options.format_name, render_with)
    for path, text in client_settings.files.items():
        click.echo(f"# ==> {path} <==\n{text}" if len(client_settings.files) > 1 else text, nl=False)
    for text in [] if settings.quiet else client_settings.notes:
        click.echo(f"note: {text}", err=True)


def _for_this_shell(options: RenderOptions, profile: Profile) -> RenderOptions:
    """Return the options with what an earlier call set in this shell, and with a CA bundle for programs.

    SSL_CERT_FILE replaces all other roots: the bundle has the profile's and this machine's, none of an earlier call.
    """
    before = tuple(os.environ.get(SET_VARIABLE, "").split())
    roots, path = ca_bundle(profile, {name: os.environ[name] for name in os.environ if name not in before}), None
    if roots is not None:
        path = state_path("ca", f"{hashlib.sha256(roots.encode()).hexdigest()[:16]}.pem")
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(path, roots.encode())
    return msgspec.structs.replace(options, before=before, ca=str(path) if path is not None else None)


def _print_profile(name: str, profile: Profile, options: RenderOptions) -> None:
    preset = presets().get(name)
    settings = {format_name: settings_of(profile, format_name, options) for format_name in FORMATS}
    # PyTorch's index alone sets nothing without a variant, but that has to be said.
    texts = [text for s in settings.values() if s.files for text in s.notes]
    context = {
        "chosen": model.read_choice(),
        "profile": profile.name,
        "title": preset and preset.title,
        "changed": {key: _rows(value) for key, value in _changed(profile).items()},
        "formats": [format_name for format_name, s in settings.items() if s.files],
    }
    click.echo(rendered("printed/mirror.txt.j2", context), nl=False)
    if preset is not None:
        print_section("Lacks", [*preset.lacks, *(f"{e.kind}: {text}" for e in preset.entries for text in e.lacks)])
        seen = [
            f"seen to work on {e.last_verified}" if e.last_verified else "never seen to work" for e in preset.entries
        ]
        print_section("Sources", [f"{e.kind}, {day}: {e.source}" for e, day in zip(preset.entries, seen, strict=True)])
    print_section("Cannot", dict.fromkeys([*texts, *notes(profile, "torch", options, sets=True)]))


def _changed(profile: Profile) -> dict[str, Any]:
    """Return what a profile says beyond the defaults. A secret is in it by the name of its place only."""
    plain, given = msgspec.to_builtins(Profile(name=profile.name)), msgspec.to_builtins(profile)
    return {key: value for key, value in given.items() if value != plain[key]}


def _rows(value: Any) -> list[str]:
    if isinstance(value, dict) and "url" in value:
        return [f"{value['url']} ({value['kind']})"]
    if isinstance(value, dict):
        return [f"{key}: {row}" for key, item in value.items() if item for row in _rows(item)]
    return [row for item in value for row in _rows(item)] if isinstance(value, list) else [str(value)]


class MirrorDoctorOptions(JsonOption):
    files: Annotated[tuple[Path, ...], Argument(type=EXISTING_FILE)] = ()


@command_with(MirrorDoctorOptions, name="doctor")
def doctor_(options: MirrorDoctorOptions, settings: Settings) -> int:
    """Find settings of mirrors and downloads that no program reads, or that are dangerous, and suggest fixes."""
    texts, unreadable = doctor.read_files(options.files) if options.files else doctor.read_machine()
    for error in unreadable:
        say(str(error))
    findings = doctor.examine(texts)
    if options.files:
        from envcheck.matrix.file.load import load as load_matrix
        from envcheck.matrix.resolver.query import Query

        findings += pinned(texts, load_matrix(settings.matrix), Query())
        findings.sort(key=lambda finding: (finding.where, finding.line, finding.id))
    document = {
        "schema": "envcheck/mirror-doctor/1",
        "looked_at": [{"name": text.name, "kind": text.kind} for text in texts],
        "findings": findings,
        "unreadable": [error.message for error in unreadable],
    }
    missing = f", {len(unreadable)} cannot be read" if unreadable else ""
    lines = [*told(findings, quiet=settings.quiet), f"{len(texts)} examined{missing}: {counted(findings)}"]
    print_answer(document, lines, as_json=options.as_json)
    if options.files and unreadable:
        return 2
    return 1 if any(finding.level != "outdated" for finding in findings) else 3 if unreadable else 0


# A requirement of torch as locks, Pipfile, pixi.toml, setup.py, setup.cfg and conda's lists write it. A keyword, a
# module of mypy's and import_module("torch") are none.
_UNREAD: Final = re.compile(
    r"""(?imx) ["'](?:py)?torch\s*[\[=<>!~;]
    | (?:requir|install|depend)\w{0,20}["']?\s{0,9}[=:]\s{0,9}(?:\{[^\[\]{}]*)?
      \[(?:[^\[\]]|\[[\w,\ -]*\])*?["'](?:py)?torch["']
    | ["'](?:py)?torch["']\s*:\s*["'][=<>~^*\d]
    | ^[ \t-]*name\s*[:=]\s*"?(?:py)?torch"?\s+version\s*[:=] | "torch":\s*\{[^{}]*"version"
    | /(?:py)?torch-\d[^\s/]*\.(?:conda|tar\.bz2)
    | ^[ \t-]*(?:py)?torch(?:-[cg]pu)?\s*(?:=\s*["'{\d]|[=<>~!]=\s*\d)"""
)
_COLOURS: Final = {"danger": "red", "unreal": "yellow", "outdated": "cyan"}


def pinned(documents: list[doctor.Document], matrix: "Matrix", query: "Query") -> list[doctor.DoctorFinding]:
    """Return what the facts say about the pins of files."""
    from envcheck.images.pinned_files import read
    from envcheck.matrix import pinned
    from envcheck.matrix.extensions import file

    arch = pinned.machine_arch(matrix, query)
    return [
        doctor.DoctorFinding(where=document.name, **finding._asdict())
        for document in documents
        for finding in pinned.judge(matrix, file.load(), read(document, arch), query)
    ]


def counted(findings: list[doctor.DoctorFinding]) -> str:
    """Return how many findings there are of each level."""
    levels = [(sum(finding.level == level for finding in findings), level) for level in _COLOURS]
    return ", ".join(f"{number} {level}" for number, level in levels if number) or "no findings"


def told(findings: list[doctor.DoctorFinding], *, quiet: bool) -> Iterator[str]:
    """Yield the place of each finding, what is wrong, and what to write instead."""
    for finding in findings:
        place = finding.where if finding.where == "environment" else f"{finding.where}:{finding.line}"
        yield f"{printable(place)}: {styled(finding.level, _COLOURS[finding.level])} {finding.id}"
        yield from [] if quiet else [wrapped(text, "    ", "    ") for text in (finding.what, f"fix: {finding.fix}")]


def judge_file(path: Path, matrix: "Matrix", query: "Query", *, as_json: bool, quiet: bool) -> int:
    """Print what the facts say about the pins of one file, and what was not judged; return the exit code."""
    from envcheck.images.pinned_files import read
    from envcheck.matrix.extensions import file as extensions
    from envcheck.matrix.pinned import machine_arch, not_on_record

    documents, errors = doctor.read_files([path])
    for error in errors:
        raise error
    file, source = read(documents[0], machine_arch(matrix, query)), doctor.PreparedDocument(documents[0])
    unread = None if any(pin.name == "torch" for pin in file.pins) else _UNREAD.search(source.code)
    if unread and not file.pins and not file.bases:
        formats = "a Dockerfile, a script, requirements, pyproject.toml, uv.lock or environment.yml"
        refuse(f"{path} names torch, but nothing in it was read as a requirement", f"give {formats}")
    findings = pinned(documents, matrix, query)
    pins, bases = counting.counted(len(file.pins), "requirement"), counting.counted(len(file.bases), "image")
    unknown = not_on_record(matrix, extensions.load(), file)
    unknown += [f"torch of line {source.line(unread.end() - 1)} (not read)"] if unread else []
    rest = f"; not judged: {', '.join(unknown)}" if unknown else ""
    count = counted(findings) if file.pins or file.bases else "nothing to judge"
    lines = [*told(findings, quiet=quiet), f"{printable(str(path))}: {pins} and {bases} read: {count}{rest}"]
    answer = {"schema": "envcheck/pinned/1", "wanted": query, "findings": findings, "not_judged": unknown}
    print_answer(answer, lines, as_json=as_json)
    return 1 if any(finding.level == "unreal" for finding in findings) else 0
