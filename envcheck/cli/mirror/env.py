"""`envcheck mirror env`: shell commands that apply a profile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.profiles.model import Profile


class MirrorEnvOptions(NamedTuple):
    """The options of `envcheck mirror env`."""

    profile: str


@click.command("env")
@click.argument("profile")
@click.pass_obj
@takes(MirrorEnvOptions)
def command(options: MirrorEnvOptions, settings: Settings) -> None:
    """Print commands of a POSIX shell (bash, zsh, dash) that apply a profile.

    Limitations go to standard error. Secrets are not printed: the shell looks them up in the variables and files that
    the profile names. The commands first restore all variables that an earlier call set; `none` does only that.

    \b
    eval "$(envcheck mirror env site.yaml)"
    eval "$(envcheck mirror env none)"
    """
    import msgspec

    from envcheck.cli.mirror.show import print_notes, render_options
    from envcheck.mirrors.profiles.load import load
    from envcheck.mirrors.settings.shell import SET_VARIABLE, env

    profile = load(options.profile)
    before = tuple(os.environ.get(SET_VARIABLE, "").split())
    shell_settings = env(
        profile, msgspec.structs.replace(render_options(), before=before, ca=_write_ca_bundle(profile))
    )
    for text in shell_settings.files.values():
        click.echo(text, nl=False)
    print_notes(settings, shell_settings)


def _write_ca_bundle(profile: Profile) -> str | None:
    """Write this machine's roots and the profile's to one file, because SSL_CERT_FILE replaces all other roots.

    Take this machine's roots from the environment before any call, so that no other profile's roots are included.
    """
    import hashlib

    from envcheck import safe_files
    from envcheck.data import state_path
    from envcheck.mirrors.profiles.host_config import ca_bundle
    from envcheck.mirrors.settings.shell import restored_environment

    roots = ca_bundle(profile, restored_environment(os.environ))
    if roots is None:
        return None
    path = state_path("ca", f"{hashlib.sha256(roots.encode()).hexdigest()[:16]}.pem")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(path, roots.encode())
    return str(path)
