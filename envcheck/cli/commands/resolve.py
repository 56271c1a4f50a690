"""`envcheck resolve`: what can run on this machine, or on the one described; the answer first, then why. 80 columns."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import ARCHS, EXISTING_FILE, FILE, JsonOption, Option, ReleaseOptions, command_with
from envcheck.cli.shared.process import print_json, print_section, print_table, styled
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.matrix.facts.lookup import Facts, find_gpu, listed_names, other_accelerator
from envcheck.matrix.facts.model import PYTORCH, HostArch, Matrix
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import matching, normalized, whole_driver
from envcheck.matrix.resolver.resolve import Query, Resolution, resolve
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Profile

if TYPE_CHECKING:
    from envcheck.matrix.extensions.answer import ExtensionResolution
    from envcheck.node.snapshot import Snapshot

_NAME: Final = r"python(3\.\d+t?)"
_TELL: Final = "import sys; print('python3.%d%s' % (sys.version_info[1], 't' * ('t' in sys.abiflags)))"
_COLOURS: Final = {"ok": "green", "driver-ok-via-minor-compat": "green", "forward-compat-required": "yellow"}
_PLAIN: Final = {
    "ok": "the driver and the GPU are made for it, or it needs neither",
    "driver-ok-via-minor-compat": "an older driver of the same CUDA major runs it",
    "forward-compat-required": "it needs NVIDIA's package cuda-compat beside this driver",
    "driver-too-old": "it needs a newer driver",
    "gpu-dropped-by-driver": "this driver no longer drives the GPU; an older one does",
    "gpu-too-new-for-cuda": "the GPU is newer than this CUDA",
    "arch-not-in-wheel": "the wheel has no code for this GPU",
    "python-unsupported": "there is no wheel for this Python",
    "no-wheel": "there is no such wheel",
}


class ResolveOptions(ReleaseOptions, JsonOption):
    driver: Annotated[str | None, Option("NVIDIA driver, 570.124.06, or its branch, 570.", metavar="VERSION")] = None
    gpus: Annotated[tuple[str, ...], Option("--gpu", "GPU model. Repeatable, for several models.", metavar="NAME")] = ()
    number: Annotated[
        int | None, Option("--gpus", "How many; no verdict needs it.", type=click.IntRange(1), metavar="N")
    ] = None
    cc: Annotated[tuple[str, ...], Option("Compute capability, for a GPU without a name.", metavar="X.Y")] = ()
    arch: Annotated[Literal["x86_64", "amd64", "aarch64", "arm64"] | None, Option("Host architecture.")] = None
    base_cuda: Annotated[str | None, Option("Also say what this nvidia/cuda image refuses.", metavar="X.Y|TAG")] = None
    requirements: Annotated[
        tuple[str, ...], Option("--with", "A native extension that must fit too. Repeatable.", metavar="NAME[SPEC]")
    ] = ()
    third_party: Annotated[bool, Option("Allow wheels that other authors built; the newest torch comes first.")] = False
    extensions: Annotated[Path | None, Option("Your own facts about extensions.", type=FILE, metavar="FILE")] = None
    mirror: Annotated[str, Option("Mirror whose PyTorch index pip is given.", metavar="PROFILE")] = "user"
    everything: Annotated[bool, Option("--all", "List every cell with its verdict.")] = False
    from_file: Annotated[Path | None, Option("--from", "Judge what it pins.", type=EXISTING_FILE, metavar="FILE")] = (
        None
    )
    here: Annotated[bool | None, Option("--here/--no-here", "Read off this node what is not given, or not.")] = None

    def query(self) -> Query:
        """Return the combination that is asked for."""
        return Query(
            torch=self.torch,
            cuda=self.cuda,
            python=self.python,
            driver=self.driver,
            gpus=[*self.gpus],
            cc=[*self.cc],
            arch=ARCHS[self.arch] if self.arch else None,
        )


@command_with(ResolveOptions)
def command(options: ResolveOptions, settings: Settings) -> int:
    """Say which torch, CUDA variant and Python can run, why, and what the alternatives are."""
    ignored = "--extensions" if options.extensions else "--third-party" if options.third_party else None
    if ignored and not options.requirements:
        refuse(f"{ignored} is for the extensions of --with, and there are none", f"add --with, or leave {ignored} out")
    stated = [options.torch, options.cuda, options.base_cuda, options.requirements, options.everything]
    if options.from_file and any(stated):
        refuse("--from takes no --torch, --cuda, --base-cuda, --with and --all", "leave them out: the file says it")
    matrix = load(settings.matrix)
    query, read, notes = normalized(_one_by_one(matrix, options.query())), dict[str, str](), list[str]()
    another = bool(query.driver or query.gpus or query.cc or query.arch or options.from_file)
    if options.here or (options.here is None and not another):
        from envcheck.node import collect  # a question about another machine reads no node

        query, read, notes = fill(matrix, query, collect.identify(), active_python())
    query, taken = whole_driver(Facts(matrix), query)
    notes += taken
    if options.from_file is not None:
        from envcheck.cli.commands.mirror import judge_file  # what reads files is not loaded for a question

        return judge_file(options.from_file, matrix, query, as_json=options.as_json, quiet=settings.quiet)
    answer = resolve(matrix, query, base_cuda=options.base_cuda, read_here=read, notes=notes)
    profile = model.plain_profile(options.mirror)
    if profile is None:
        from envcheck.mirrors.profiles import load as profiles  # YAML is imported only where it must be read

        profile = profiles.load(options.mirror)
    extended = _with_extensions(options, matrix, answer, notes, profile) if options.requirements else None
    answer = extended or msgspec.structs.replace(answer, pip=pip_command(answer, profile))
    if options.as_json:
        print_json(answer)
    else:
        show(answer, extended=extended, everything=options.everything, quiet=settings.quiet)
    if not answer.legal and not matching(matrix.torch, answer.query.torch):
        return ConfigError.exit_code  # there is no such torch: the same as a cell or a file that is not there
    return 0 if answer.legal else 1


def _one_by_one(matrix: Matrix, query: Query) -> Query:
    """Take a list of GPUs, "RTX 4090,H100", apart; a line of nvidia-smi's CSV, or a name on two lines, is one."""
    gpus = list[str]()
    for text in query.gpus:
        is_name = all(sign.isalnum() or sign.isspace() or sign in "-_\u2122\u00ae" for sign in text)
        whole = is_name and find_gpu(matrix, " ".join(text.split()))
        for name in listed_names(" ".join(text.split()) if whole else text):
            parts = re.split(r"\s*[,;+&]\s*|\s+and\s+", name)
            gpus += parts if all(find_gpu(matrix, part) or other_accelerator(part) for part in parts) else [name]
    return query.replace(gpus=gpus)


def _with_extensions(
    options: ResolveOptions, matrix: Matrix, plain: Resolution, notes: list[str], profile: Profile
) -> "ExtensionResolution":
    from envcheck.cli.shared.extension_steps import with_steps  # most questions have no extension
    from envcheck.matrix.extensions import file
    from envcheck.matrix.extensions.answer import resolve_with, wanted_extensions

    extensions = file.load()
    if options.extensions is not None:
        extensions = file.merged(extensions, file.load(options.extensions))
    answer = resolve_with(
        matrix,
        extensions,
        plain,
        wanted_extensions(extensions, [*options.requirements]),
        third_party=options.third_party,
        every_cell=options.everything or options.as_json,
        base_cuda=options.base_cuda,
        notes=notes,
    )
    answer = msgspec.structs.replace(answer, pip=pip_command(answer, profile))
    return with_steps(matrix, answer, options.extensions)


def fill(matrix: Matrix, query: Query, snapshot: "Snapshot", python: str) -> tuple[Query, dict[str, str], list[str]]:
    """Return the query with every free axis read off this node, what was read, and notes on what was not there.

    Without an NVIDIA GPU that is the cpu variant, unless another variant was asked for. Raises UnavailableError for
    GPUs that cannot be identified or whose driver cannot be read: leaving those free would be a guess.
    """
    read: dict[str, str] = {}
    notes: list[str] = []
    if query.python is None:
        query, read["python"] = query.replace(python=python), python
    arch = snapshot.signal("host.arch").value
    if query.arch is None and not query.gpus and arch in get_args(HostArch):
        query, read["arch"] = query.replace(arch=arch), str(arch)
    if query.variant != "cpu":
        query = _machine(matrix, query, snapshot, read, notes)
    return query, read, notes


def _machine(matrix: Matrix, query: Query, snapshot: "Snapshot", read: dict[str, str], notes: list[str]) -> Query:
    driver = snapshot.signal("driver.version")
    if not snapshot.gpus:
        why = driver.reason or f"driver {driver.value} is loaded, but NVML lists no GPU"
        if query.driver or query.gpus or query.cc or query.variant or query.cuda:
            notes.append(f"no NVIDIA GPU on this node ({why}): its driver and GPU are left free")
            return query
        notes.append(f"no NVIDIA GPU on this node ({why}): the variant cpu, wheels without CUDA")
        return query.replace(variant="cpu")
    if query.driver is None:
        if not isinstance(driver.value, str):
            refuse(
                f"this node has a GPU, but its driver version could not be read: {driver.reason}",
                "give it with --driver",
                UnavailableError,
            )
        query, read["driver"] = query.replace(driver=driver.value), driver.value
    if not query.gpus and not query.cc:
        query = _gpus(matrix, query, snapshot, read)
    return query


def _gpus(matrix: Matrix, query: Query, snapshot: "Snapshot", read: dict[str, str]) -> Query:
    names, capabilities = [], []
    for gpu in snapshot.gpus:
        name, capability = gpu.signal("name"), gpu.signal("compute_capability")
        if isinstance(name.value, str) and find_gpu(matrix, name.value) is not None:
            names.append(name.value)
        elif isinstance(capability.value, str):
            capabilities.append(capability.value)
        else:
            why = capability.reason or name.reason or "NVML gives neither a known name nor a compute capability"
            refuse(f"GPU {gpu.uuid} cannot be identified: {why}", "give it with --gpu or --cc", UnavailableError)
    read["gpu"] = ", ".join([*names, *(f"compute capability {cc}" for cc in capabilities)])
    return query.replace(gpus=list(dict.fromkeys(names)), cc=list(dict.fromkeys(capabilities)))


def active_python(environ: Mapping[str, str] = os.environ) -> str:
    """Return the version (3.12, 3.13t) of the Python that a run would validate; it starts only where no file tells."""
    from envcheck.runner.local_python import choose_python  # a question about another machine needs none

    python = choose_python(None, environ).python
    return _version_of(python) or _asked(python) or f"3.{sys.version_info.minor}"


def _version_of(executable: Path) -> str | None:
    named = re.fullmatch(_NAME, executable.resolve().name)
    if named is not None:
        return named[1]
    try:
        text = executable.parent.with_name("pyvenv.cfg").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    version = re.search(r"(?m)^version(?:_info)?\s*=\s*(3\.\d+)", text)
    return version[1] if version else None


def _asked(python: Path) -> str | None:
    """Return what an interpreter says, where neither its name nor its environment does: a shim, or a script."""
    from envcheck.node.subprocesses import output

    try:
        told = re.fullmatch(_NAME, output(python, "-S", "-c", _TELL, timeout=10).strip())
    except OSError:
        return None
    return told[1] if told else None


def show(
    answer: Resolution, *, extended: "ExtensionResolution | None" = None, everything: bool = False, quiet: bool = False
) -> None:
    """Print it; `everything` adds a table of every cell, `quiet` leaves only the answer itself.

    `extended` is the answer again where it has extensions.
    """
    cell, why, *pip = _head(answer)
    steps = extended.commands[1:] if extended is not None else []
    # A comment of the shell, so that the lines can be pasted as they are.
    order = ["  # run these in this order:"] if steps else []
    click.echo("\n".join([cell, why, *order, *pip, *(f"  {command}" for command in steps)]))
    if quiet:
        return
    if extended is not None:
        from envcheck.cli.shared.extension_steps import lines

        print_section("With", lines(extended))
    print_section("Why", answer.reasons)
    told = {answer.verdict}
    offers = [f"{row.change}\n{row.cell} ({_told(row.verdict, told)})" for row in answer.alternatives]
    print_section("Or", offers)
    print_section("Build", extended.build if extended is not None else _published(answer))
    read = [f"read from this node: {name} {value}" for name, value in answer.read_here.items()]
    weak = [f"not confirmed by a second source (verified: false): {fact}" for fact in answer.weak]
    print_section("Note", [*answer.notes, *read, *weak])
    if everything:
        _tables(answer, extended)
        verdicts = dict.fromkeys([row.verdict for row in answer.ranked] + [row.verdict for row in answer.rejected])
        print_section("Verdicts", [f"{name}: {_PLAIN[name]}" for name in verdicts if name in _PLAIN])


def _told(verdict: str, told: set[str]) -> str:
    """Return a verdict, in plain words too where it is new to the reader."""
    new = verdict not in {"ok", *told}
    told.add(verdict)
    return f"{verdict}: {_PLAIN[verdict]}" if new else verdict


def _head(answer: Resolution) -> list[str]:
    verdict = styled(answer.verdict, _COLOURS.get(answer.verdict, "red"))
    why = f"why: {verdict}" + (f" ({plain})" if (plain := _PLAIN.get(answer.verdict)) else "")
    if answer.cell is None:
        what = "does not run: no combination matches" if plain else "does not run: no release on record fits"
        return ["not known: no facts say that it runs" if answer.verdict == "not-known" else what, why]
    command, _, url = answer.pip.rpartition(" --")  # of its index, if it names one
    pip = [f"  {command} \\", f"      --{url}"] if command else [f"  {url}"] * bool(url)
    return [f"runs: {styled(answer.cell)}", why, *pip]


def pip_command(answer: Resolution, profile: Profile) -> str:
    """Return the pip command that installs the answer, from the profile's PyTorch index or the public one.

    Empty where nothing is legal, or where a closed profile names no PyTorch index.
    """
    torch, *companions = answer.install or [""]
    if not torch or not answer.index:
        return f"pip install {' '.join(answer.install)}" if torch else ""
    variant = answer.index.rpartition("/")[2]
    words = " ".join([f"{torch}+{variant}" if answer.arch == "x86_64" else torch, *companions])
    remote = [index for index in profile.pytorch if index.url != CLIENT_DEFAULT]
    if not remote:
        return "" if profile.closed else f"pip install {words} --index-url {PYTORCH}/{answer.index}"
    import shlex  # only for an index of a profile

    option = "--find-links" if remote[0].kind == "find-links" else "--index-url"
    return f"pip install {words} {option} {shlex.quote(remote[0].url.replace('{variant}', variant))}"


def _published(answer: Resolution) -> list[str]:
    """Say which published cell runs there, and which better one can be built; what to do where there is none."""
    if answer.cell is None:
        return []
    unlocked = f"envcheck build {answer.buildable}\nnot published: its lock is made first, through your mirror"
    if answer.published is None and answer.buildable is None:
        return ["none of the published cells fits: use the pip command above, or relax --torch, --cuda or --python"]
    if answer.published is None:
        return ["none of the published cells fits", unlocked]
    other = "" if answer.published == answer.cell else f"\n{answer.cell} is not published; this is the best that is"
    better = [] if answer.buildable in {None, answer.published} else [unlocked]
    return [f"envcheck build {answer.published}{other}", *better]


def _tables(answer: Resolution, extended: "ExtensionResolution | None") -> None:
    rows = [(row.cell, row.verdict if row.verified else f"{row.verdict} (not confirmed)") for row in answer.ranked]
    rows += [(f"torch{row.torch}-{row.variant}", row.verdict) for row in answer.rejected]
    refused = extended.refused_cells if extended is not None else []
    first = [(row.cell, "; ".join(f"{each.name}: {each.word}" for each in row.refused)) for row in refused]
    tables = {"verdict": rows, "first refusal of each extension": first} if extended else {"verdict": rows}
    for heading, lines_ in tables.items():
        click.echo()
        print_table(("cell", heading), lines_)
