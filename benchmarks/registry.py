"""Proofs in a registry: publishing and believing one, against cosign, and choosing among those of many images.

    python benchmarks/registry.py [--json] [--rounds 7] [--images 200] [--proofs 5] [--few 20] [--only PART]...

Needs docker-registry and cosign 3 in PATH, as `make setup` has them; it starts a docker-registry of its own on the
loopback, which has no referrers API. The reports are recorded ones (tests/data/reports), a run on a CPU for "one" and
one on a GPU for "many": no GPU takes part. Each program is a process of its own, from its start to its end. PART is:

    one     an image that nobody has signed, against `cosign attest` and `verify-attestation` of the same predicate for
            another such image, in turn. Both sign with a key in a file; cosign asks no service of Sigstore's. Ours also
            stores the report as evidence and judges it again. Medians of seconds and CPU seconds. "one_time" is
            `envcheck publish --policy`, which publishes, reads the proof back and decides as `pull` does for the node
            that ran. "three_time" is `publish`, `proof` and `pull --dry-run` of a third image, each a process of its
            own. "work_cpu" is what the three do, without starting: CPU seconds of this process for another such image,
            once everything is imported
    many    `pull --dry-run` in a repository of --images images with --proofs proofs each, which this program publishes
            first (a minute or two). "newest": the images are of eight releases of torch, and those of the newest are
            proven, so that the older ones are not looked at. "all": no image is proven for the node that is asked
            about, so that every proof is read and refused. Requests are counted in a run inside this program, and the
            peak memory is that of the process (wait4), also in a repository of --few images. The peer is `cosign
            verify-attestation` of three images, one after the other, times the number of images

Goals: "one_time" at most twice cosign's time; a pull among many in 5 s; a peak for --images at
most 1.25 times that for --few. Exit 1 if one is missed.
"""

from __future__ import annotations

import argparse
import compileall
import concurrent.futures
import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

import envcheck
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.registry import judge, publishing
from envcheck.registry.attachments import RemoteImage, read_proofs
from envcheck.registry.choosing import ImageQuery, choose, choose_named
from envcheck.registry.documents import StoredManifest, digest_of
from envcheck.registry.judge import NodeFacts, ProofTerms, judge_image
from envcheck.registry.publishing import PreparedProof, prepare, publish
from envcheck.registry.repository import Repository
from envcheck.registry.statement import PREDICATE_TYPE, ProvenImage, Sha256, Subject, written
from envcheck.reports import model
from envcheck.signing import load_private, new_key
from tests import proofs, registries
from tests.registry.oci.fakes import opened, push_image

GOALS: Final = {"one_time": 2.0, "newest_s": 5.0, "all_s": 5.0, "memory_growth": 1.25}
NODE: Final = ("--gpu", "NVIDIA H200", "--gpus", "1", "--driver", "570.124.06")
# A node that no recorded run covers.
OTHER: Final = ("--gpu", "NVIDIA A100-SXM4-80GB", "--gpus", "1", "--driver", "570.124.06")
# Releases of torch and a CUDA variant of each that the driver of the recorded run can run.
RELEASES: Final = (
    *((f"2.{minor}.0", "cu124") for minor in (4, 5, 6)),
    *((f"2.{minor}.0", "cu128") for minor in (7, 8, 9, 10, 11)),
)
NOW: Final = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
MB: Final = 1_000_000
_COSIGNED: Final = 3
_AT_ONCE: Final = 8


class Ran(NamedTuple):
    """What processes took: seconds, CPU seconds, and the largest peak in bytes."""

    seconds: float
    cpu: float
    peak: int

    def __add__(self, other: object) -> Ran:
        """Return what both took, one after the other."""
        assert isinstance(other, Ran)  # noqa: S101 (of this file alone)
        return Ran(self.seconds + other.seconds, self.cpu + other.cpu, max(self.peak, other.peak))


class Bench:
    """A registry, a key in the form of each program, and a policy."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        new_key(folder / "key")
        self.key = load_private(folder / "key")
        self.policies = {mode: folder / f"{mode}.toml" for mode in ("cpu", "gpu")}
        for mode, path in self.policies.items():
            path.write_text(f'[proof]\nkeys = ["key.pub"]\nlevel = "static"\nmode = "{mode}"\n', "utf-8")
        # As it is installed: with bytecode, which some machines keep none of.
        compileall.compile_dir(Path(envcheck.__file__).parent, quiet=1)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.env = {**kept, "HOME": str(folder), "COSIGN_PASSWORD": "", "no_proxy": "*", "DOCKER_CONFIG": ""}
        self.run(["cosign", "generate-key-pair"])

    def run(self, words: Sequence[object], status: int = 0) -> Ran:
        """Run a program, which must end with this status."""
        log = self.folder / "log"
        began = time.perf_counter()
        with log.open("w") as file:
            argv = [str(word) for word in words]
            process = subprocess.Popen(argv, cwd=self.folder, env=self.env, stdout=file, stderr=file)
            _, ended, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(ended)
        if process.returncode != status:
            message = f"{' '.join(argv[:4])} ended with {process.returncode}: {log.read_text()[-2000:]}"
            raise SystemExit(message)
        return Ran(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)

    def envcheck(self, *words: object, status: int = 0) -> Ran:
        """Run envcheck."""
        return self.run([sys.executable, "-m", "envcheck", *words], status)

    def cosign(self, verb: str, *words: object) -> Ran:
        """Run cosign, without a service."""
        given = ["--type", PREDICATE_TYPE, "--allow-http-registry", *words]
        return self.run(["cosign", verb, *given])

    def repository(self, name: str) -> Repository:
        """Return a repository of the registry."""
        return opened(self.address, name)

    def ran(self, name: str, report: Path) -> str:
        """Push an image into a repository of its own, write the report of a run of it, and return its name."""
        repository = self.repository(name)
        image = push_image(repository, name)
        model.write(report_of(image), report)
        return f"{repository.reference.name}@{image.digest}"

    def pull(self, repository: Repository, node: Sequence[str], status: int = 0) -> Ran:
        """Choose an image of a repository, as a process."""
        return self.envcheck(
            "pull",
            "--from",
            repository.reference.name,
            "--policy",
            self.policies["gpu"],
            *node,
            "--dry-run",
            status=status,
        )


def report_of(image: StoredManifest, ago: int = 3600) -> model.RunReport:
    """Return the recorded report as if it were of a run of this image, that ended so many seconds ago."""
    ended = NOW - dt.timedelta(seconds=ago)
    recorded = proofs.report("cpu")
    target = structs.replace(recorded.target, image_id=image.digest, image=proofs.facts(manifest_digest=image.digest))
    start, end = (written(moment).replace("Z", "+00:00") for moment in (ended - dt.timedelta(seconds=60), ended))
    return structs.replace(proofs.whole(recorded), target=target, started=start, ended=end)


def one(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return what one proof takes, ours and cosign's, in turn."""
    predicate = bench.folder / "predicate.json"
    predicate.write_bytes(msgspec.json.encode(proofs.stated("cpu").predicate))
    report, policy = bench.folder / "report.json", ("--policy", bench.policies["cpu"])
    published = ("--report", report, "--key", "key")
    at_once: dict[str, list[Ran]] = {"publish --policy": []}
    three: dict[str, list[Ran]] = {"publish": [], "proof": [], "pull": []}
    theirs: dict[str, list[Ran]] = {"attest": [], "verify-attestation": []}
    for number in range(options.rounds):
        name = bench.ran(f"one/at-once-{number}", report)
        at_once["publish --policy"].append(bench.envcheck("publish", name, *published, *policy))
        name = bench.ran(f"one/three-{number}", report)
        three["publish"].append(bench.envcheck("publish", name, *published))
        three["proof"].append(bench.envcheck("proof", name, *policy, "--no-here"))
        three["pull"].append(bench.envcheck("pull", name, *policy, *NODE, "--dry-run"))
        other = bench.repository(f"one/theirs-{number}")
        theirs_is = f"{other.reference.name}@{push_image(other, f'theirs {number}').digest}"
        signing = ("--key", "cosign.key", "--yes", "--use-signing-config=false", "--tlog-upload=false")
        theirs["attest"].append(bench.cosign("attest", "--predicate", predicate, *signing, theirs_is))
        theirs["verify-attestation"].append(verified(bench, theirs_is))
    works = [work(bench, number) for number in range(options.rounds + 1)][1:]
    runs = {"envcheck": at_once, "three commands": three, "cosign": theirs}
    seconds = {who: _medians(each, lambda ran: ran.seconds) for who, each in runs.items()}
    cpu = {who: _medians(each, lambda ran: ran.cpu) for who, each in runs.items()}
    return {
        "rounds": options.rounds,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "one_time": round(seconds["envcheck"]["all"] / seconds["cosign"]["all"], 2),
        "one_cpu": round(cpu["envcheck"]["all"] / cpu["cosign"]["all"], 2),
        "three_time": round(seconds["three commands"]["all"] / seconds["cosign"]["all"], 2),
        "three_cpu": round(cpu["three commands"]["all"] / cpu["cosign"]["all"], 2),
        "work_cpu": round(statistics.median(works), 3),
        "work_vs_cosign_cpu": round(statistics.median(works) / cpu["cosign"]["all"], 2),
    }


def work(bench: Bench, number: int) -> float:
    """Return the CPU seconds of publishing, judging and choosing one image in this process."""
    repository = bench.repository(f"one/work-{number}")
    image = push_image(repository, f"work {number}")
    report, began = report_of(image), time.process_time()
    publish(repository, prepare(repository, image.digest, report), bench.key)
    now = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    terms = ProofTerms(judge.read_policy(bench.policies["cpu"]), None, now, load_matrix())
    proven = judge_image(read_proofs(repository, image.digest), image.digest, terms).chosen
    if proven is None or choose_named(repository, image.digest, "amd64", terms).chosen is None:
        message = f"{repository.reference.name} has a proof that does not hold"
        raise SystemExit(message)
    return time.process_time() - began


def verified(bench: Bench, name: str, key: str = "cosign.pub") -> Ran:
    """Have cosign verify what is attested of an image."""
    return bench.cosign("verify-attestation", "--key", key, "--insecure-ignore-tlog=true", name)


def _medians(runs: dict[str, list[Ran]], of: Callable[[Ran], float]) -> dict[str, float]:
    """Return the median of each command, and of a round of all of them."""
    medians = {name: round(statistics.median(map(of, each)), 3) for name, each in runs.items()}
    rounds = [sum(map(of, each)) for each in zip(*runs.values(), strict=True)]
    return {**medians, "all": round(statistics.median(rounds), 3)}


def fill(bench: Bench, name: str, images: int, each: int) -> Repository:
    """Publish so many proofs of each of so many images, and return the repository."""
    repository = bench.repository(name)
    proofs.packed()  # is kept; msgspec crashes where two threads decode the first report at once

    def image(number: int) -> None:
        cell = f"{'-'.join(RELEASES[number % len(RELEASES)])}-py312"
        pushed = push_image(repository, f"{name} {number}", f"{cell}-runtime-{number}")
        remote = RemoteImage(repository.reference.name, pushed.digest, pushed.image().config.digest, "amd64")
        for proof in range(each):
            packed = stamped(number * each + proof)
            ended = NOW - dt.timedelta(seconds=3600 * (proof + 1) + number)
            subject = Subject(name=remote.repository, digest=Sha256(sha256=pushed.digest.partition(":")[2]))
            statement = proofs.stated(
                subject=[subject],
                image=ProvenImage(manifest=remote.manifest, config=remote.config),
                cell=f"torch{cell}",
                target="runtime",
                started=written(ended - dt.timedelta(seconds=60)),
                ended=written(ended),
                report=packed.reference,
            )
            publish(repository, PreparedProof(remote, packed, statement), bench.key)

    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(image, range(images)))
    return repository


def stamped(number: int) -> publishing.PackedReport:
    """Return the recorded report as other bytes for each number: gzip's header holds a time."""
    packed = proofs.packed()
    content = packed.content[:4] + number.to_bytes(4, "little") + packed.content[8:]
    digest = digest_of(content)
    return structs.replace(packed, content=content, reference=structs.replace(packed.reference, digest=digest))


class CountingClient(Client):
    """A client that lists what it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def send(self, method: str, url: str, *args: Any, **options: Any) -> HttpResponse:
        """Send a request."""
        self.sent.append(url)
        return super().send(method, url, *args, **options)


def requests(bench: Bench, repository: Repository, node: Sequence[str]) -> int:
    """Return how many requests a choice sends."""
    client = CountingClient()
    asking = Repository(client, repository.reference)
    facts = NodeFacts((node[1],), int(node[3]), node[5], "x86_64")
    now = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    choose(
        asking,
        ImageQuery("*", "runtime", "amd64"),
        ProofTerms(judge.read_policy(bench.policies["gpu"]), facts, now, load_matrix()),
    )
    return len(client.sent)


def many(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a choice among many images takes."""
    began = time.perf_counter()
    few = fill(bench, "many/few", options.few, options.proofs)
    full = fill(bench, "many/full", options.images, options.proofs)
    filled = time.perf_counter() - began
    figures: dict[str, Any] = {"images": options.images, "proofs": options.proofs, "filled_s": round(filled, 1)}
    for case, node, status in (("newest", NODE, 0), ("all", OTHER, 1)):
        runs = [bench.pull(full, node, status) for _ in range(3)]
        small = bench.pull(few, node, status)
        figures[case] = {
            "seconds": round(statistics.median(ran.seconds for ran in runs), 2),
            "cpu_seconds": round(statistics.median(ran.cpu for ran in runs), 2),
            "requests": requests(bench, full, node),
            "peak_mb": [round(small.peak / MB, 1), round(max(ran.peak for ran in runs) / MB, 1)],
        }
    digests = [full.manifest(tag).digest for tag in full.tags() if "runtime" in tag][:_COSIGNED]
    spent = [verified(bench, f"{full.reference.name}@{digest}", "key.pub").seconds for digest in digests]
    peer = statistics.median(spent) * options.images
    figures["cosign_s"] = round(peer, 1)
    figures["vs_cosign"] = round(figures["all"]["seconds"] / peer, 3)
    growth = max(figures[case]["peak_mb"][1] / figures[case]["peak_mb"][0] for case in ("newest", "all"))
    return {**figures, "memory_growth": round(growth, 3)}


PARTS: Final = {"one": one, "many": many}


def judged(results: dict[str, Any]) -> dict[str, tuple[float, bool]]:
    """Return each goal's figure, and whether it is met."""
    figures = {name: results["one"][name] for name in ("one_time",) if "one" in results}
    if "many" in results:
        many_ = results["many"]
        figures |= {f"{case}_s": many_[case]["seconds"] for case in ("newest", "all")}
        figures["memory_growth"] = many_["memory_growth"]
    return {name: (figure, figure <= GOALS[name]) for name, figure in figures.items()}


def main() -> None:
    """Measure and print; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--proofs", type=int, default=5)
    parser.add_argument("--few", type=int, default=20)
    parser.add_argument("--only", action="append", choices=list(PARTS), default=[])
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.images, options.proofs, options.few = 1, 3, 1, 2
    missing = [program for program in ("docker-registry", "cosign") if shutil.which(program) is None]
    if missing:
        message = f"no {' and no '.join(missing)} in PATH; `make setup` has them where apt is"
        raise SystemExit(message)
    with tempfile.TemporaryDirectory() as folder, registries.docker_registry(Path(folder)) as address:
        bench = Bench(address, Path(folder))
        figures: dict[str, Any] = {name: PARTS[name](bench, options) for name in options.only or PARTS}
    goals = judged(figures)
    if options.json:
        shown = {"schema": "envcheck/benchmark/1", "name": "registry", "load": os.getloadavg(), "goals": GOALS}
        print(json.dumps({**shown, **figures, "met": {name: met for name, (_, met) in goals.items()}}))
    else:
        for name, part in figures.items():
            print(f"{name}: {json.dumps(part, indent=2)}")
        for name, (figure, met) in goals.items():
            print(f"{name}: {figure} (goal <= {GOALS[name]:g}){'' if met else ': missed'}")
    raise SystemExit(0 if options.smoke or all(met for _, met in goals.values()) else 1)


if __name__ == "__main__":
    main()
