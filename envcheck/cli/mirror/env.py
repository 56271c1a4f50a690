"""`envcheck mirror env`: a profile as commands of a shell."""

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
    """Print a profile for a POSIX shell (bash, zsh, dash); what it cannot do goes to standard error.

    Secrets are not printed: the shell looks them up where the profile says they are. What an earlier call set is
    taken back first, to what it was before, so that `none` leaves everything as it was.

    \b
    eval "$(envcheck mirror env site.yaml)"
    eval "$(envcheck mirror env none)"
    """
    import msgspec

    from envcheck.cli.mirror.show import say_what_it_cannot, wished
    from envcheck.mirrors.profiles.load import load
    from envcheck.mirrors.settings.shell import SET, env

    loaded = load(options.profile)
    before = tuple(os.environ.get(SET, "").split())
    setting = env(loaded, msgspec.structs.replace(wished(), before=before, ca=_all_roots(loaded)))
    for text in setting.files.values():
        click.echo(text, nl=False)
    say_what_it_cannot(settings, setting)


def _all_roots(profile: Profile) -> str | None:
    """Write this machine's roots and the profile's into one file: SSL_CERT_FILE replaces every other.

    This machine's are those of before any call: what another profile trusts is not handed on, and nothing grows.
    """
    import hashlib

    from envcheck import safe_files
    from envcheck.data import state_path
    from envcheck.mirrors.profiles.host_config import ca_bundle
    from envcheck.mirrors.settings.shell import taken_back

    roots = ca_bundle(profile, taken_back(os.environ))
    if roots is None:
        return None
    path = state_path("ca", f"{hashlib.sha256(roots.encode()).hexdigest()[:16]}.pem")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(path, roots.encode())
    return str(path)
