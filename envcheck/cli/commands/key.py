"""`envcheck key new`: a signing key and its public key."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

from envcheck import signing
from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.errors import ConfigError


class _Switch(click.types.BoolParamType):
    """On or off; what else the option's variable holds may be the password itself, and is not shown."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return the state; anything else is a usage error."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail("neither on nor off; the password itself belongs into ENVCHECK_KEY_PASSWORD", param, ctx)


@dataclass(frozen=True, kw_only=True)
class KeyNewOptions:
    file: Annotated[Path, Argument()]
    password: Annotated[bool, Option("Ask for a password, unless ENVCHECK_KEY_PASSWORD is set.", type=_Switch())] = (
        False
    )


@command_with(KeyNewOptions)
def command(options: KeyNewOptions, settings: Settings) -> None:
    """Write a new ed25519 key to FILE, which only you can read, and its public key to FILE.pub. Print its id.

    \b
    envcheck key new release
    envcheck key new release --password

    A file that exists is never replaced. FILE signs; give FILE.pub to everyone who verifies. If ENVCHECK_KEY_PASSWORD
    is set, the key gets that password, with or without --password.
    Exit 2: FILE is a directory or ends in .pub, one of the two files exists or cannot be written, or the passwords
    differ.
    """
    if not options.file.name:
        message = f"{options.file} is a directory"
        raise ConfigError(message, fix=f"name a file in it: {options.file / 'release'}")
    if options.file.suffix == ".pub":
        message = f"{options.file} would hold the private key, and .pub is the ending of public keys"
        raise ConfigError(message, fix=f"give {options.file.with_suffix('')}: its public key gets .pub")
    secret = signing.password()
    if options.password and secret is None:
        secret = _prompted()
    public = signing.new_key(options.file, secret)
    if settings.quiet:
        click.echo(public.id)
        return
    click.echo(f"wrote {options.file}: the private key{', with a password' if secret else ''}; keep it secret")
    click.echo(f"wrote {public.where}: the public key")
    click.echo(f"id {public.id}")


def _at_terminal() -> bool:
    return sys.stdin.isatty()


def _prompted() -> bytes:
    if not _at_terminal():
        message = "--password asks on a terminal, and standard input is none"
        raise ConfigError(message, fix="set ENVCHECK_KEY_PASSWORD, or run it in a terminal")
    secret: str = click.prompt("password", hide_input=True, default="", show_default=False, err=True)
    repeated: str = click.prompt("again", hide_input=True, default="", show_default=False, err=True)
    if secret != repeated:
        message = "the two passwords differ"
        raise ConfigError(message, fix="type the same one twice")
    if not secret:
        message = "the password is empty"
        raise ConfigError(message, fix="leave --password out for a key without one")
    return secret.encode()
