"""A repository with images, keys and a policy, and the commands that publish beside them and pull by them.

The reports are recorded: no GPU took part. They are runs on a CPU, which the policies here take.
"""

import datetime as dt
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from envcheck.cli import cli
from envcheck.cli.commands import share
from envcheck.errors import EnvcheckError
from envcheck.registry.attachments import RemoteImage
from envcheck.registry.documents import StoredManifest
from envcheck.registry.judge import ProofTerms
from envcheck.registry.publishing import PreparedProof, publish
from envcheck.registry.statement import ProvenImage, Sha256, Statement, Subject, written
from envcheck.reports import model
from envcheck.runner.schema import TargetFacts
from envcheck.signing import load_private
from tests import proofs
from tests.registry.oci.fakes import opened, push_image

_NUMBERS = itertools.count()
_TERMS = share.terms
NOW = dt.datetime.now(dt.timezone.utc)


class Site:
    """A repository with images, a key, a policy for runs on CPUs, and the commands."""

    def __init__(self, address: str, folder: Path) -> None:
        self.folder = folder
        self.repository = opened(address, f"site/torch-{next(_NUMBERS)}")
        self.name = self.repository.reference.name
        for key in ("release", "other"):
            if not (folder / key).exists():
                proofs.key(folder, key)
        self.policy = self.write_policy()

    def write_policy(self, proof: str = "", promote: str = "", keys: str = '"release.pub"') -> Path:
        """Write a policy for runs on CPUs; the texts are added to its tables."""
        path = self.folder / f"policy-{next(_NUMBERS)}.toml"
        head = f'[proof]\nkeys = [{keys}]\nmode = "cpu"\nlevel = "static"\n'
        path.write_text(f"{head}{proof}\n[promote]\n{promote}\n")
        return path

    def image(self, word: str, tag: str | None = None) -> StoredManifest:
        return push_image(self.repository, word, tag)

    def report(self, image: StoredManifest, *, ago: int = 3600, failed: bool = False, cell: str = "") -> Path:
        """Write a report of a run of the image that ended so many seconds ago."""
        facts = proofs.facts(manifest_digest=image.digest)
        target = TargetFacts(kind="image", name=self.name, chosen="--image", image_id=image.digest, image=facts)
        ended = NOW - dt.timedelta(seconds=ago)
        made = proofs.whole(proofs.report("cpu", target=target, started=_iso(ended, 60), ended=_iso(ended)))
        if cell:
            torch = f"{cell.removeprefix('torch').partition('-')[0]}+cpu"
            promises = {"cell": cell, "target": "runtime", "torch": torch}
            made = structs.replace(made, promises=promises, environment={**made.environment, "torch": torch})
        if failed:
            made = _failing(made)
        path = self.folder / f"report-{next(_NUMBERS)}.json"
        model.write(made, path)
        return path

    def run(self, *words: object) -> tuple[int, str]:
        """Run a command and return its exit code and what it said."""
        result = CliRunner().invoke(cli, [*map(str, words)])
        if isinstance(result.exception, EnvcheckError):
            return result.exception.exit_code, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    def publish(self, image: StoredManifest, *options: object, key: str = "release", **report: Any) -> tuple[int, str]:
        path = self.report(image, **report)
        signed = ("--key", self.folder / key)
        return self.run("publish", f"{self.name}@{image.digest}", "--report", path, *signed, *options)

    def stated(self, image: StoredManifest, **changes: Any) -> Statement:
        began, ended = (written(NOW - dt.timedelta(minutes=ago)) for ago in (61, 60))
        about = {
            "subject": [Subject(name=self.name, digest=Sha256(sha256=image.digest.partition(":")[2]))],
            "image": ProvenImage(manifest=image.digest, config=image.image().config.digest),
        }
        return proofs.stated("cpu", **{"started": began, "ended": ended, **about, **changes})

    def attach(self, image: StoredManifest, by: str = "release", **changes: Any) -> None:
        """Attach the proof of such a run with its evidence."""
        statement = self.stated(image, **changes)
        remote = RemoteImage(self.name, image.digest, statement.facts.image.config, "amd64")
        prepared = PreparedProof(remote, proofs.packed("cpu"), statement)
        publish(self.repository, prepared, load_private(self.folder / by))

    def pull(self, *words: object, policy: Path | None = None) -> dict[str, Any]:
        status, output = self.run("pull", *words, "--policy", policy or self.policy, "--dry-run", "--json")
        document: dict[str, Any] = json.loads(output)
        assert status == (0 if document["chosen"] else 1)
        return document

    def chosen(self, *words: object, policy: Path | None = None) -> str | None:
        """Return the digest that a pull chooses, of the whole repository without words."""
        name: str | None = self.pull(*(words or ("--from", self.name)), policy=policy)["chosen"]
        return name.rpartition("@")[2] if name else None

    def reasons(self, *words: object, policy: Path | None = None) -> set[str]:
        """Return the words of the refusals where nothing is chosen."""
        document = self.pull(*(words or ("--from", self.name)), policy=policy)
        assert document["chosen"] is None, document
        return {row["reason"] for row in document["refused"]}

    def promote(self, image: StoredManifest, *words: object, key: str = "release", **more: Any) -> tuple[int, str]:
        options = ("--policy", more.get("policy", self.policy), "--key", self.folder / key)
        return self.run("promote", f"{self.name}@{image.digest}", *words, *options)

    def later(self, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
        """Have the commands take the time for so many seconds later."""

        def terms(*given: Any) -> ProofTerms:
            made = _TERMS(*given)
            return structs.replace(made, now=made.now + dt.timedelta(seconds=seconds))

        monkeypatch.setattr(share, "terms", terms)


def _iso(moment: dt.datetime, before: int = 0) -> str:
    return written(moment - dt.timedelta(seconds=before)).replace("Z", "+00:00")


def _failing(report: model.RunReport) -> model.RunReport:
    first = next(outcome for outcome in report.outcomes if outcome.status == "pass")
    outcomes = [structs.replace(one, status="fail") if one is first else one for one in report.outcomes]
    verdict = structs.replace(report.verdict, status="fail", exit_code=1)
    return structs.replace(report, outcomes=outcomes, verdict=verdict)
