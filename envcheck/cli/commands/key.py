"""`envcheck key new`: a signing key and its public key."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck import signing
from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.errors import refuse


@dataclass(frozen=True, kw_only=True)
class KeyNewOptions:
    file: Annotated[Path, Argument()]
    # Its variable would be taken for that of the password.
    password: Annotated[
        bool, Option("Ask for a password, unless ENVCHECK_KEY_PASSWORD is set.", allow_from_autoenv=False)
    ] = False


@command_with(KeyNewOptions)
def command(options: KeyNewOptions, settings: Settings) -> None:
    """Write a new ed25519 key to FILE, which only you can read, and its public key to FILE.pub. Print its id.

    \b
    envcheck key new release
    envcheck key new release --password

    A file that exists is never replaced. FILE signs; give FILE.pub to everyone who verifies. If ENVCHECK_KEY_PASSWORD
    is set, the key gets that password, with or without --password.
    Exit 2: FILE is a directory or ends in .pub, or one of the two files exists or cannot be written.
    """
    if not options.file.name or options.file.suffix == ".pub":
        what = f"{options.file} cannot hold a private key: it is a directory, or has the ending of public keys"
        refuse(what, "name a new file, as in `envcheck key new release`")
    secret = signing.password()
    if options.password and secret is None:
        if not _at_terminal():
            refuse(
                "--password asks on a terminal, and standard input is none",
                f"set {signing.PASSWORD}, or run it in a terminal",
            )
        secret = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True).encode()
    public = signing.new_key(options.file, secret)
    if settings.quiet:
        click.echo(public.id)
        return
    click.echo(f"wrote {options.file}: the private key{', with a password' if secret else ''}; keep it secret")
    click.echo(f"wrote {public.where}: the public key\nid {public.id}")


def _at_terminal() -> bool:
    return sys.stdin.isatty()
