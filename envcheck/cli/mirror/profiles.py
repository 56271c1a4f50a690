"""`envcheck mirror list`, `show` and `use`: the profiles, what they set, and which one is the user's."""

from __future__ import annotations

import hashlib
import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import click
import msgspec

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, Argument, Option, command_with
from envcheck.data import state_path
from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.host_config import ca_bundle, distribution
from envcheck.mirrors.profiles.load import BUILT_IN_NAMES, Preset, PresetEntry, load, presets
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings import RENDERERS, render
from envcheck.mirrors.settings.clients import ClientSettings, RenderOptions, torch_notes
from envcheck.mirrors.settings.shell import SET_VARIABLE, env, restored_environment


@dataclass(frozen=True, kw_only=True)
class MirrorListOptions:
    as_json: Annotated[bool, Option("--json", "Print envcheck/mirrors/1.")] = False


@command_with(MirrorListOptions, name="list", epilog="`--mirror` also takes the path of a profile's YAML file.")
def list_(options: MirrorListOptions, _settings: Settings) -> None:
    """List the mirrors that `--mirror` takes by name.

    No mirror is trusted: envcheck compares every file with its hash. The column "seen" has the day on which all
    addresses of the mirror were last seen to work, or "never".

    \b
    envcheck mirror list
    """
    chosen = model.read_choice()
    if options.as_json:
        rows = [{"name": name, **msgspec.to_builtins(preset)} for name, preset in presets().items()]
        document: dict[str, Any] = {"schema": "envcheck/mirrors/1", "chosen": chosen, "mirrors": rows}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for name, text in _BUILT_IN.items():
        click.echo(f"{name:<11} {text}")
    click.echo()
    click.echo(f"{'name':<11} {'seen':<11} {'for':<46} region")
    for name, preset in presets().items():
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in preset.entries))
        click.echo(f"{name:<11} {_first_seen(preset):<11} {kinds:<46} {preset.region}")
    click.echo("\n`envcheck mirror show NAME` shows what a mirror sets, lacks and cannot do.")
    if chosen:
        click.echo(f"Chosen with `envcheck mirror use`: {chosen}")


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
def use(options: MirrorUseOptions, _settings: Settings) -> None:
    """Choose the profile that `--mirror user` means, for this user. `none` removes the choice.

    build, fetch and store use it if --mirror is not given. The choice is one line of a file in the user's
    configuration directory; the settings of other programs stay as they are.

    \b
    envcheck mirror use tuna
    envcheck mirror use site.yaml
    """
    profile = options.profile
    if profile == "user":
        message = "`mirror use user` is circular"
        raise ConfigError(message, fix="pass a name from `envcheck mirror list`, or a YAML file")
    if profile == "none":
        removed = model.forget_choice()
        click.echo(f"removed {removed}" if removed else "nothing was chosen")
        return
    load(profile)
    choice = profile if profile in {*BUILT_IN_NAMES, *presets()} else str(Path(profile).absolute())
    click.echo(f"wrote {model.write_choice(choice)}: {choice}")
    click.echo("`--mirror user` now means this profile; `envcheck mirror show user --format env` is for other programs")
    click.echo("`envcheck mirror show user` shows what it lacks and what its settings cannot do")


# The keys of envcheck.mirrors.settings.RENDERERS; --help must not import that package.
_FORMATS: Final = ("pip", "uv", "hf", "apt", "conda", "npm", "buildkitd", "daemon", "registries", "env")


@dataclass(frozen=True, kw_only=True)
class MirrorShowOptions:
    profile: Annotated[str, Argument()]
    format_name: Annotated[
        str | None, Option("--format", "Print the settings of one client instead.", type=click.Choice(_FORMATS))
    ] = None
    output: Annotated[
        Path | None, Option("-o", "--output", "Write the files of --format below this directory.", type=DIRECTORY)
    ] = None
    variant: Annotated[str | None, Option("Value of {variant} in PyTorch's indexes.", metavar="cuNNN|cpu")] = None
    suite: Annotated[
        str | None, Option("Suite for apt: bookworm, noble, …  [default: this machine's]", metavar="SUITE")
    ] = None
    as_json: Annotated[bool, Option("--json", "Print envcheck/mirror/1, or the files of --format, as JSON.")] = False


@command_with(
    MirrorShowOptions, name="show", epilog="Exit 2: the profile does not exist, or it sets nothing for that client."
)
def show(options: MirrorShowOptions, settings: Settings) -> None:
    """Show what a profile sets, what it lacks, and what its settings cannot do.

    With --format, print the settings on standard output, and what they cannot do on standard error. The settings name
    a CA, a netrc file and files of secrets by their paths on this machine; they never contain a secret.

    --format env prints commands of a POSIX shell (bash, zsh, dash). The shell looks secrets up in the variables and
    files that the profile names. The commands first restore all variables that an earlier call set; `none` does only
    that.

    \b
    envcheck mirror show tuna
    envcheck mirror show site.yaml --format uv --variant cu128 > uv.toml
    envcheck mirror show site.yaml --format apt -o /
    eval "$(envcheck mirror show site.yaml --format env)"
    """
    profile = load(options.profile)
    render_with = _render_options(options.variant, options.suite)
    if options.format_name is None:
        if options.output is not None:
            message = "--output needs --format"
            raise ConfigError(message, fix=f"pass --format with one of {', '.join(_FORMATS)}")
        _print_profile(options.profile, profile, render_with, as_json=options.as_json)
        return
    if options.format_name == "env":
        client_settings = env(profile, _for_this_shell(render_with, profile))
    else:
        client_settings = render(profile, options.format_name, render_with)
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(client_settings), indent=2).decode())
        return
    _write_settings(client_settings, options.output)
    _print_notes(settings, client_settings)


def _render_options(variant: str | None, suite: str | None) -> RenderOptions:
    """Return the options for rendering; the suite defaults to this machine's."""
    if variant is not None and not re.fullmatch(r"cpu|cu[0-9]{2,3}|xpu|rocm[0-9.]+", variant):
        message = f"{variant!r} is not a variant"
        raise ConfigError(message, fix="write cu128, cpu, …")
    if suite is not None and not re.fullmatch(r"[a-z]+", suite):
        message = f"{suite!r} is not a suite"
        raise ConfigError(message, fix="write the code name of a release: bookworm, noble, …")
    distro, own_suite = distribution()
    if suite is not None and suite != own_suite:
        distro = _UBUNTU_SUITES.get(suite, "debian")
    return RenderOptions(variant=variant, distro=distro or "debian", suite=suite or own_suite)


def _for_this_shell(options: RenderOptions, profile: Profile) -> RenderOptions:
    """Return the options with what an earlier call set in this shell, and with a CA bundle for programs.

    SSL_CERT_FILE replaces all other roots, so the bundle has this machine's roots and the profile's. This machine's are
    those of the environment before any call, so that no other profile's roots are included.
    """
    roots, path = ca_bundle(profile, restored_environment(os.environ)), None
    if roots is not None:
        path = state_path("ca", f"{hashlib.sha256(roots.encode()).hexdigest()[:16]}.pem")
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(path, roots.encode())
    before = tuple(os.environ.get(SET_VARIABLE, "").split())
    return msgspec.structs.replace(options, before=before, ca=str(path) if path is not None else None)


_UBUNTU_SUITES: Final = dict.fromkeys(("focal", "jammy", "noble", "plucky", "questing", "resolute"), "ubuntu")


def _print_notes(settings: Settings, client_settings: ClientSettings) -> None:
    """Print what the client cannot do to standard error, apart from its settings."""
    if settings.quiet:
        return
    for text in client_settings.notes:
        click.echo(f"note: {text}", err=True)


def _write_settings(client_settings: ClientSettings, directory: Path | None) -> None:
    if directory is None:
        for path, text in client_settings.files.items():
            click.echo(f"{'' if len(client_settings.files) == 1 else f'# ==> {path} <==' + chr(10)}{text}", nl=False)
        return
    for path, text in client_settings.files.items():
        target = (
            Path(path).expanduser()
            if path.startswith("~/") and directory == Path("/")
            else directory / path.lstrip("~/")
        )
        if target.is_file() and target.read_text(errors="replace") != text:
            message = f"{target} exists with other content"
            raise ConfigError(message, fix="move the file away, or merge the two by hand")
        target.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(target, text.encode())
        click.echo(f"wrote {target}")


def _print_profile(name: str, profile: Profile, options: RenderOptions, *, as_json: bool) -> None:
    preset = presets().get(name)
    rendered = {format_name: render(profile, options) for format_name, render in RENDERERS.items()}
    # PyTorch's index alone sets nothing without a variant, but that has to be said.
    texts = [text for s in rendered.values() if s.files for text in s.notes]
    notes = list(dict.fromkeys([*texts, *torch_notes(profile, options, "pip install")]))
    formats = [format_name for format_name, s in rendered.items() if s.files]
    if as_json:
        document = {
            "schema": "envcheck/mirror/1",
            "profile": profile,
            "preset": preset,
            "sets": formats,
            "cannot": notes,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    click.echo(f"{profile.name}{f': {preset.title}' if preset else ''}")
    for key, values in _sources(profile).items():
        _row(key, values)
    if preset is not None:
        lacks = [*preset.lacks, *(f"{e.kind}: {text}" for e in preset.entries for text in e.lacks)]
        _section("Lacks", lacks)
        _section("Sources", list(dict.fromkeys(f"{e.kind}, {_last_seen(e)}: {e.source}" for e in preset.entries)))
    _section("Cannot", notes)
    click.echo(f"\nsettings for {', '.join(formats)}: --format" if formats else "\nthe profile sets nothing")


def _last_seen(entry: PresetEntry) -> str:
    return f"seen to work on {entry.last_verified}" if entry.last_verified else "never seen to work"


def _sources(profile: Profile) -> dict[str, list[str]]:
    sources = {key: [f"{i.url} ({i.kind})" for i in getattr(profile, key)] for key in ("pypi", "pytorch")}
    single = {"npm": profile.npm, "modelscope": profile.modelscope, "bases": profile.registry}
    sources |= {key: [value] for key, value in single.items() if value}
    sources["hf"] = profile.hf.endpoints
    sources["hf hashes"] = [profile.hf.trusted] if profile.hf.trusted is not None else []
    sources["apt"] = profile.apt
    sources["conda"] = [*filter(None, [profile.conda.channel_alias]), *profile.conda.default_channels]
    sources["conda"] += [f"{name}: {url}" for name, url in profile.conda.custom_channels.items()]
    sources["registry"] = [f"{up}: {mirror}" for up, mirrors in profile.registries.items() for mirror in mirrors]
    sources["secrets"] = [f"{host}: by reference" for host in profile.credentials]
    sources["files"] = [f"{key} {path}" for key in ("ca", "netrc") if (path := getattr(profile, key))]
    return sources


def _row(key: str, values: list[str]) -> None:
    for number, value in enumerate(values):
        click.echo(f"  {key if number == 0 else '':<11} {value}")


def _section(title: str, items: list[str]) -> None:
    if not items:
        return
    click.echo(f"\n{title}")
    wrap = textwrap.TextWrapper(80, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
    wrap.break_long_words = False
    for item in items:
        click.echo(wrap.fill(item))
