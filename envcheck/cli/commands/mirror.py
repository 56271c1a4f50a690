"""`envcheck mirror list`, `show`, `use` and `doctor`: the profiles, which one is the user's, and wrong settings."""

import hashlib
import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import msgspec

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_FILE, Argument, JsonOption, Option, command_with
from envcheck.cli.shared.process import print_json, say
from envcheck.data import state_path
from envcheck.errors import refuse
from envcheck.mirrors import doctor
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.host_config import ca_bundle, distribution
from envcheck.mirrors.profiles.load import BUILT_IN_NAMES, Preset, PresetEntry, load, presets
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings import FORMATS, SET_VARIABLE, RenderOptions, notes, render, settings_of

if TYPE_CHECKING:
    from envcheck.matrix.facts.model import Matrix
    from envcheck.matrix.resolver.query import Query


@command_with(JsonOption, name="list", epilog="`--mirror` also takes the path of a profile's YAML file.")
def list_(options: JsonOption, _settings: Settings) -> None:
    """List the mirrors that `--mirror` takes by name.

    No mirror is trusted: envcheck compares every file with its hash. The column "seen" has the day on which all
    addresses of the mirror were last seen to work, or "never"; it is left out while no mirror was seen.
    """
    chosen = model.read_choice()
    if options.as_json:
        rows = [{"name": name, **msgspec.to_builtins(preset)} for name, preset in presets().items()]
        print_json({"schema": "envcheck/mirrors/1", "chosen": chosen, "mirrors": rows})
        return
    click.echo(_chosen(chosen))
    click.echo("\n".join([f"{name:<11} {text}" for name, text in _BUILT_IN.items()]))
    table = [("name", "seen", "for", "region")]
    for name, preset in presets().items():
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in preset.entries))
        table.append((name, _first_seen(preset), kinds, preset.region))
    unseen = {row[1] for row in table[1:]} == {"never"}
    for name, seen, kinds, region in [("", "", "", ""), *table]:
        click.echo(f"{name:<11} {'' if unseen else f'{seen:<11} '}{kinds:<46} {region}".rstrip())
    click.echo("\n`envcheck mirror show NAME` shows what a mirror sets, lacks and cannot do.")


def _chosen(choice: str | None) -> str:
    return f"chosen with `envcheck mirror use`: {choice or 'none'}"


_BUILT_IN = {
    "none": "the default of every client",
    "host": "this machine's own pip, uv, apt and CA configuration",
    "user": "the choice of `envcheck mirror use`; `none` without a choice",
}


def _first_seen(preset: Preset) -> str:
    days = [entry.last_verified for entry in preset.entries]
    return str(min(day for day in days if day)) if all(days) else "never"


@dataclass(frozen=True, kw_only=True)
class MirrorUseOptions:
    profile: Annotated[str, Argument()]


@command_with(MirrorUseOptions)
def use_(options: MirrorUseOptions, _settings: Settings) -> None:
    """Choose the profile that `--mirror user` means, for this user. `none` removes the choice.

    build, fetch and store use it if --mirror is not given; the settings of other programs stay as they are.

    \b
    envcheck mirror use tuna
    envcheck mirror use site.yaml
    """
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


@dataclass(frozen=True, kw_only=True)
class MirrorShowOptions:
    profile: Annotated[str, Argument()]
    format_name: Annotated[
        str | None, Option("--format", "Print this client's settings.", type=click.Choice([*FORMATS]))
    ] = None
    variant: Annotated[str | None, Option("Value of {variant} in PyTorch's indexes.", metavar="cuNNN|cpu")] = None

    def __post_init__(self) -> None:
        if self.variant is not None and not re.fullmatch(r"cpu|cu[0-9]{2,3}|xpu|rocm[0-9.]+", self.variant):
            refuse(f"{self.variant!r} is not a variant", "write cu128, cpu, …")


@command_with(
    MirrorShowOptions, name="show", epilog="Exit 2: the profile does not exist, or it sets nothing for that client."
)
def show_(options: MirrorShowOptions, settings: Settings) -> None:
    """Show what a profile sets, what it lacks, and what its settings cannot do.

    With --format, print the settings on standard output, and what they cannot do on standard error. They name a CA and
    places of secrets on this machine, never a secret. apt's are for this machine's release.

    --format env prints commands of a POSIX shell, which first unset what an earlier call set; `none` does only that.

    \b
    envcheck mirror show tuna
    envcheck mirror show site.yaml --format uv --variant cu128 > uv.toml
    eval "$(envcheck mirror show site.yaml --format env)"
    """
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
    rendered = {format_name: settings_of(profile, format_name, options) for format_name in FORMATS}
    # PyTorch's index alone sets nothing without a variant, but that has to be said.
    texts = [text for s in rendered.values() if s.files for text in s.notes]
    formats = [format_name for format_name, s in rendered.items() if s.files]
    click.echo(_chosen(model.read_choice()))
    click.echo(f"{profile.name}{f': {preset.title}' if preset else ''}")
    for key, value in _changed(profile).items():
        for number, row in enumerate(_rows(value)):
            click.echo(f"  {key if number == 0 else '':<11} {row}")
    click.echo(f"  --format sets it for {', '.join(formats)}" if formats else "  it sets nothing")
    if preset is not None:
        _section("Lacks", [*preset.lacks, *(f"{e.kind}: {text}" for e in preset.entries for text in e.lacks)])
        _section("Sources", [f"{e.kind}, {_last_seen(e)}: {e.source}" for e in preset.entries])
    _section("Cannot", [*texts, *notes(profile, "torch", options, sets=True)])


def _last_seen(entry: PresetEntry) -> str:
    return f"seen to work on {entry.last_verified}" if entry.last_verified else "never seen to work"


def _changed(profile: Profile) -> dict[str, Any]:
    """Return what a profile says beyond the defaults. A secret is in it by the name of its place only."""
    plain, given = msgspec.to_builtins(Profile(name=profile.name)), msgspec.to_builtins(profile)
    return {key: value for key, value in given.items() if value != plain[key]}


def _rows(value: Any) -> list[str]:
    if isinstance(value, dict) and "url" in value:
        return [f"{value['url']} ({value['kind']})"]
    if isinstance(value, dict):
        return [f"{key}: {', '.join(_rows(item))}" for key, item in value.items() if item]
    return [row for item in value for row in _rows(item)] if isinstance(value, list) else [str(value)]


def _section(title: str, items: list[str]) -> None:
    if items:
        click.echo("\n".join([f"\n{title}", *(_wrapped(item, "  - ") for item in dict.fromkeys(items))]))


def _wrapped(text: str, first: str) -> str:
    return textwrap.fill(
        text, 80, initial_indent=first, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )


@dataclass(frozen=True, kw_only=True)
class MirrorDoctorOptions:
    files: Annotated[tuple[Path, ...], Argument(type=EXISTING_FILE)] = ()
    as_json: Annotated[bool, Option("--json", "Print envcheck/mirror-doctor/1.")] = False


@command_with(
    MirrorDoctorOptions,
    name="doctor",
    epilog="Exit 0: no findings, or only outdated ones; 1: danger or unreal; 2: a file is not text (the others are "
    "examined); 3: a setting of this machine cannot be read.",
)
def doctor_(options: MirrorDoctorOptions, settings: Settings) -> int:
    """Find settings of mirrors and downloads that no program reads, or that are dangerous, and suggest fixes.

    FILES are Dockerfiles, scripts, requirements, Python, pip.conf and similar files. What they pin is judged as by
    `envcheck resolve --from`. Without FILES, the command examines this environment's variables, and the settings of
    pip, uv, npm, conda, docker, podman and the shells on this machine. It prints no values: they may be secrets.

    \b
    envcheck mirror doctor
    envcheck mirror doctor Dockerfile train.py ~/.bashrc
    """
    texts, unreadable = doctor.read_files(options.files) if options.files else doctor.read_machine()
    for error in unreadable:
        say(str(error))
    findings = doctor.examine(texts)
    if options.files:
        from envcheck.matrix.file.load import load as load_matrix
        from envcheck.matrix.resolver.query import Query

        findings += pinned(texts, load_matrix(settings.matrix), Query())
        findings.sort(key=lambda finding: (finding.where, finding.line, finding.id))
    if options.as_json:
        examined = [{"name": text.name, "kind": text.kind} for text in texts]
        report = {"schema": "envcheck/mirror-doctor/1", "looked_at": examined, "findings": findings}
        report["unreadable"] = [error.message for error in unreadable]
        print_json(report)
    else:
        print_findings(findings, quiet=settings.quiet)
        missing = f", {len(unreadable)} cannot be read" if unreadable else ""
        click.echo(f"{len(texts)} examined{missing}: {counted(findings)}")
    if options.files and unreadable:
        return 2
    return 1 if any(finding.level != "outdated" for finding in findings) else 3 if unreadable else 0


_COLOURS: Final = {"danger": "red", "unreal": "yellow", "outdated": "cyan"}


def pinned(documents: list[doctor.Document], matrix: "Matrix", query: "Query") -> list[doctor.DoctorFinding]:
    """Return what the facts say about the pins of files."""
    from envcheck.images.pinned_files import read
    from envcheck.matrix import pinned
    from envcheck.matrix.extensions import file

    return [
        doctor.DoctorFinding(where=document.name, **finding._asdict())
        for document in documents
        for finding in pinned.judge(matrix, file.load(), read(document), query)
    ]


def counted(findings: list[doctor.DoctorFinding]) -> str:
    """Return how many findings there are of each level."""
    levels = [(sum(finding.level == level for finding in findings), level) for level in _COLOURS]
    return ", ".join(f"{number} {level}" for number, level in levels if number) or "no findings"


def print_findings(findings: list[doctor.DoctorFinding], *, quiet: bool) -> None:
    """Print the place of each finding, what is wrong, and what to write instead."""
    for finding in findings:
        place = finding.where if finding.where == "environment" else f"{finding.where}:{finding.line}"
        styled = click.style(finding.level, fg=_COLOURS[finding.level], bold=True)
        click.echo(f"{place}: {finding.level if os.environ.get('NO_COLOR') else styled} {finding.id}")
        for text in () if quiet else (finding.what, f"fix: {finding.fix}"):
            click.echo(_wrapped(text, "    "))
