"""What the commands of this room share: the repository, the policy, the key, the node in question, and their output."""

import datetime as dt
import platform
import re
import stat
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import click
import msgspec

from envcheck import signing
from envcheck.cli.options import Option
from envcheck.cli.shared.process import note
from envcheck.counting import printable
from envcheck.errors import ConfigError
from envcheck.matrix.facts.lookup import find_gpu, suggest
from envcheck.matrix.facts.model import Matrix
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import load
from envcheck.node.collect import collect
from envcheck.registry.evidence import ARCHS
from envcheck.registry.judge import JudgedProof, NodeFacts, ProofTerms, node_of
from envcheck.registry.policy import DEFAULT, Policy, read
from envcheck.registry.references import ImageReference
from envcheck.registry.repository import Repository, open_repository
from envcheck.registry.statement import Rejection
from envcheck.signing import PrivateKey

# A branch alone is older than each of its drivers, and covers nothing.
_DRIVER: Final = re.compile(r"\d{3,4}(\.\d+){1,3}", re.ASCII)
Gpus = Annotated[int | None, Option("How many GPUs that node has; 1 if not given.", type=click.IntRange(1, 1024))]
Driver = Annotated[
    str | None, Option("Full driver version of that node: 570.124.06; not compared if not given.", metavar="VERSION")
]
Mirror = Annotated[str, Option("Mirror profile to reach the registry with.", metavar="PROFILE")]
PolicyFile = Annotated[Path | None, Option("The policy file; its keys are the ones that count.")]
# What people read where nothing holds because no policy names a key.
NO_POLICY: Final = "no --policy was given, so no key is known; pass a file that names the public keys that count"


def described_node(gpu: str | None, gpus: int | None, driver: str | None, matrix: Matrix) -> NodeFacts:
    """Return the node that --gpu, --gpus and --driver describe, or this one. Raises ConfigError."""
    if driver is not None and not _DRIVER.fullmatch(driver):
        message = f"--driver {driver} is not a whole driver version"
        raise ConfigError(message, fix="write it as nvidia-smi prints it: 570.124.06")
    if gpu is not None:
        refuse_unknown_gpu(gpu, "--gpu", matrix)
        return NodeFacts((gpu,), gpus or 1, driver, platform.machine())
    if gpus is not None or driver is not None:
        message = f"{'--gpus' if gpus is not None else '--driver'} describes a node whose GPU is not named"
        raise ConfigError(message, fix="add --gpu NAME")
    return node_of(collect())


def refuse_unknown_gpu(name: str, where: str, matrix: Matrix) -> None:
    """Refuse a short name that the matrix does not have; a proof names its GPU as the driver does, or by that name."""
    if name.startswith("NVIDIA ") or find_gpu(matrix, name) is not None:
        return
    near = " or ".join(suggest(matrix, name))
    hint = f"did you mean {near}?" if near else "`envcheck matrix show --list-gpus` lists them"
    message = f"{where} {name[:60]!r}: no such GPU in the matrix"
    raise ConfigError(message, fix=f"{hint} (or write it as nvidia-smi prints it: NVIDIA ...)")


def architecture() -> str:
    """Return this machine's architecture in an image's words."""
    return ARCHS.get(platform.machine(), platform.machine())


def repository(reference: ImageReference, mirror: str) -> Repository:
    """Return the repository of a reference, reached as a mirror profile says."""
    return open_repository(reference, model.plain_profile(mirror) or load(mirror))


def policy(path: Path | None) -> Policy:
    """Return the policy in a file, or the default one."""
    return DEFAULT if path is None else read(path)


def terms(policy: Policy, node: NodeFacts | None, matrix: Matrix) -> ProofTerms:
    """Return what proofs are judged by now."""
    return ProofTerms(policy, node, dt.datetime.now(dt.timezone.utc).replace(microsecond=0), matrix)


def private_key(path: Path) -> PrivateKey:
    """Return the key in a file, with the password of the environment, or one that is typed at a terminal."""
    secret = signing.password()
    try:
        key = signing.load_private(path, secret)
    except ConfigError as error:
        if secret is not None or signing.PASSWORD not in error.fix or not sys.stdin.isatty():
            raise
        typed: str = click.prompt(f"password of {path}", hide_input=True, default="", show_default=False, err=True)
        key = signing.load_private(path, typed.encode())
    if path.stat().st_mode & stat.S_IROTH:
        note(f"every user of this machine can read the key {path}; run: chmod 600 {path}")
    return key


def say(line: str) -> None:
    """Print one line. What a registry or a proof calls itself steers no terminal, and makes no line of its own."""
    click.echo(printable(" ".join(line.splitlines())))


def say_json(document: Any) -> None:
    """Print a document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def why(refused: Rejection | None) -> dict[str, str | None]:
    """Return a refusal as the rows of `--json` have it."""
    return {"reason": refused.reason.value if refused else None, "detail": refused.detail if refused else ""}


def short(name: str) -> str:
    """Return the start of a digest, as a line shows it; another name is whole."""
    return name[:19] if name.startswith("sha256:") else name


def ran_on(proof: JudgedProof) -> str:
    """Return where and how well a proof's run went, in a few words."""
    if proof.statement is None:
        return "is not trusted"
    facts, covers = proof.statement.facts, proof.statement.facts.covers
    where = f"{covers.gpu} x{covers.gpus}, driver {covers.driver}" if facts.mode == "gpu" else f"CPU {covers.arch}"
    return f"{proof.statement.predicate.result.lower()}, level {facts.level}, {where}, {facts.ended}"
