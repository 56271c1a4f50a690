"""`envcheck mirror show`: what a profile sets, lacks and cannot do; or the settings it becomes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.profiles.model import Profile
    from envcheck.mirrors.profiles.presets import PresetEntry
    from envcheck.mirrors.settings.base import Setting, Wish

# As envcheck.mirrors.settings has them, which a --help is not to import.
_FORMS: Final = ("pip", "uv", "hf", "apt", "conda", "npm", "buildkitd", "daemon", "registries", "env")


class MirrorShowOptions(NamedTuple):
    """The options of `envcheck mirror show`."""

    profile: str
    format_name: str | None
    output: Path | None
    variant: str | None
    suite: str | None
    as_json: bool


@click.command("show", epilog="Exit 2: there is no such profile, or nothing in it for that client.")
@click.argument("profile")
@click.option("--format", "format_name", type=click.Choice(_FORMS), help="Print the settings of one client instead.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write them below this directory, each at its path.",
)
@click.option("--variant", metavar="cuNNN|cpu", help="What stands for {variant} in PyTorch's indexes.")
@click.option("--suite", metavar="SUITE", help="For apt: bookworm, noble, …; this machine's if absent.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/mirror/1, or the files of --format, as JSON.")
@click.pass_obj
@takes(MirrorShowOptions)
def command(options: MirrorShowOptions, settings: Settings) -> None:
    """Say what a profile sets, what it lacks, and what its settings cannot do.

    With --format: the settings themselves on standard output, and what they cannot do on standard error. A CA, a
    netrc and files of secrets are named by their paths, where clients of this machine read them; what they hold is
    never in it.

    \b
    envcheck mirror show tuna
    envcheck mirror show site.yaml --format uv --variant cu128 > uv.toml
    envcheck mirror show site.yaml --format apt -o /
    """
    from envcheck.mirrors.profiles.load import load
    from envcheck.mirrors.settings import render

    loaded = load(options.profile)
    wish = wished(options.variant, options.suite)
    if options.format_name is None:
        if options.output is not None:
            message = "--output without --format"
            raise ConfigError(message, fix=f"say which: --format {', '.join(_FORMS)}")
        _tell(options.profile, loaded, wish, as_json=options.as_json)
        return
    setting = render(loaded, options.format_name, wish)
    if options.as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(setting), indent=2).decode())
        return
    _give(setting, options.output)
    say_what_it_cannot(settings, setting)


def wished(variant: str | None = None, suite: str | None = None) -> Wish:
    """Return for what settings are wanted; what is not given is this machine's."""
    import re

    from envcheck.mirrors.profiles.host_config import distribution
    from envcheck.mirrors.settings.base import Wish

    if variant is not None and not re.fullmatch(r"cpu|cu[0-9]{2,3}|xpu|rocm[0-9.]+", variant):
        message = f"{variant!r} is no variant"
        raise ConfigError(message, fix="write cu128, or cpu")
    if suite is not None and not re.fullmatch(r"[a-z]+", suite):
        message = f"{suite!r} is no suite"
        raise ConfigError(message, fix="write its code name: bookworm, noble")
    distro, own = distribution()
    if suite is not None and suite != own:
        distro = _UBUNTU.get(suite, "debian")
    return Wish(variant=variant, distro=distro or "debian", suite=suite or own)


_UBUNTU: Final = dict.fromkeys(("focal", "jammy", "noble", "plucky", "questing", "resolute"), "ubuntu")


def say_what_it_cannot(settings: Settings, setting: Setting) -> None:
    """Print what a setting cannot do where it does not mix with the setting."""
    if settings.quiet:
        return
    for text in setting.cannot:
        click.echo(f"note: {text}", err=True)


def _give(setting: Setting, to: Path | None) -> None:
    if to is None:
        for path, text in setting.files.items():
            click.echo(f"{'' if len(setting.files) == 1 else f'# ==> {path} <==' + chr(10)}{text}", nl=False)
        return
    from envcheck import safe_files

    for path, text in setting.files.items():
        target = Path(path).expanduser() if path.startswith("~/") and to == Path("/") else to / path.lstrip("~/")
        if target.is_file() and target.read_text(errors="replace") != text:
            message = f"{target} is there, with something else in it"
            raise ConfigError(message, fix="move it away, or join the two by hand")
        target.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(target, text.encode())
        click.echo(f"wrote {target}")


def _tell(name: str, profile: Profile, wish: Wish, *, as_json: bool) -> None:
    import msgspec

    from envcheck.mirrors.profiles.load import presets
    from envcheck.mirrors.settings import FORMS

    preset = presets().get(name)
    forms = {form: FORMS[form](profile, wish) for form in FORMS}
    cannot = list(dict.fromkeys(text for s in forms.values() if s.files for text in s.cannot))
    sets = [form for form, setting in forms.items() if setting.files]
    if as_json:
        answer = {"schema": "envcheck/mirror/1", "profile": profile, "preset": preset, "sets": sets, "cannot": cannot}
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    click.echo(f"{profile.name}{f': {preset.title}' if preset else ''}")
    for key, values in _sources(profile).items():
        _row(key, values)
    if preset is not None:
        lacks = [*preset.lacks, *(f"{e.kind}: {text}" for e in preset.entries for text in e.lacks)]
        _section("Lacks", lacks)
        _section("Known from", list(dict.fromkeys(f"{e.kind}, {_seen(e)}: {e.source}" for e in preset.entries)))
    _section("Cannot", cannot)
    click.echo(f"\nsettings for {', '.join(sets)}: --format" if sets else "\nit sets nothing: no settings")


def _seen(entry: PresetEntry) -> str:
    return f"seen to work on {entry.last_verified}" if entry.last_verified else "never seen to work"


def _sources(profile: Profile) -> dict[str, list[str]]:
    found = {key: [f"{i.url} ({i.kind})" for i in getattr(profile, key)] for key in ("pypi", "pytorch")}
    single = {
        "npm": profile.npm,
        "modelscope": profile.modelscope,
        "bases": profile.registry,
    }
    found |= {key: [value] for key, value in single.items() if value}
    found["hf"] = profile.hf.endpoints
    found["hf hashes"] = [profile.hf.trusted] if profile.hf.trusted is not None else []
    found["apt"] = profile.apt
    found["conda"] = [*filter(None, [profile.conda.channel_alias]), *profile.conda.default_channels]
    found["conda"] += [f"{name}: {url}" for name, url in profile.conda.custom_channels.items()]
    found["registry"] = [f"{up}: {mirror}" for up, mirrors in profile.registries.items() for mirror in mirrors]
    found["secrets"] = [f"{host}: by reference" for host in profile.credentials]
    found["files"] = [f"{key} {path}" for key in ("ca", "netrc") if (path := getattr(profile, key))]
    return found


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
