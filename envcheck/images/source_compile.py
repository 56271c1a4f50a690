"""A wheel that was compiled here: its label, and whether it is what it was compiled to be."""

import base64
import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from packaging.utils import canonicalize_name

import envcheck
from envcheck.binaries import native_library
from envcheck.binaries.native_library import BinaryError
from envcheck.binaries.wheel_members import WheelContents, read_members
from envcheck.data import state_path
from envcheck.errors import PromiseError, UnavailableError, refuse
from envcheck.images import engines, wheels
from envcheck.images import source_recipe as recipe
from envcheck.images.build_log import require_success
from envcheck.images.engines import build as image_builds
from envcheck.images.engines import subprocesses, venv
from envcheck.images.engines.build import BasePolicy, TargetRequest, one_at_a_time
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.plan import PLATFORMS, BuildPlan
from envcheck.images.source_recipe import ExtensionBuild
from envcheck.images.tags import REPOSITORY
from envcheck.images.wheels import StoredWheel, sha256
from envcheck.matrix.facts.lookup import Facts, sass_runs
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.index import parse_file_name
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store

# The first date that a zip file can hold: what was built twice is equal.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def relabelled(wheel: Path, directory: Path, label: str) -> Path:
    """Write the wheel with a local version, without dates. BinaryError or OSError if it cannot be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
            modes = {entry.filename: entry.external_attr for entry in archive.infolist()}
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        message = f"not a wheel: {error}"
        raise BinaryError(message) from error
    project, version, rest = wheel.name.split("-", 2)
    labelled = f"{version}.{label}" if "+" in version else f"{version}+{label}"
    old, new = f"{project}-{version}", f"{project}-{labelled}"
    renamed = {_renamed(name, old, new): (content, modes[name]) for name, content in files.items()}
    renamed = _with_version(renamed, f"{new}.dist-info", labelled)
    path = directory / f"{new}-{rest}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, mode) in sorted(renamed.items(), key=lambda row: (".dist-info/" in row[0], row[0])):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = mode
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _renamed(name: str, old: str, new: str) -> str:
    first, slash, rest = name.partition("/")
    return f"{first.replace(old, new, 1)}{slash}{rest}" if first in (f"{old}.dist-info", f"{old}.data") else name


def _with_version(files: Mapping[str, tuple[bytes, int]], info: str, version: str) -> dict[str, tuple[bytes, int]]:
    metadata, record = f"{info}/METADATA", f"{info}/RECORD"
    if metadata not in files or record not in files:
        message = f"not a wheel: it has no {metadata if metadata not in files else record}"
        raise BinaryError(message)
    text, mode = files[metadata]
    head, blank, body = text.partition(b"\n\n")
    lines = [f"Version: {version}".encode() if line.startswith(b"Version:") else line for line in head.split(b"\n")]
    changed = {**files, metadata: (b"\n".join(lines) + blank + body, mode)}
    rows = [f"{name},{_digest(content)},{len(content)}" for name, (content, _) in changed.items() if name != record]
    return {**changed, record: ("\n".join([*sorted(rows), f"{record},,"]).encode() + b"\n", files[record][1])}


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def require(wheel: Path, build: ExtensionBuild, facts: Facts) -> None:
    """Raise PromiseError, naming the first difference, unless a wheel is what the build was to make."""
    try:
        project, version, _ = parse_file_name(wheel.name)
        contents = read_members(wheel)
    except (BinaryError, ValueError, OSError) as error:
        raise _broken(build, f"{wheel.name}: {error}") from error
    if canonicalize_name(project) != build.sdist.name or version.public != build.sdist.version:
        raise _broken(build, f"its sdist makes {project} {version}")
    wrong = difference(contents, build, facts)
    if wrong:
        raise _broken(build, wrong)


def difference(contents: WheelContents, build: ExtensionBuild, facts: Facts) -> str | None:
    """Return what is wrong with the libraries of a wheel that was compiled for a cell and GPUs; None if nothing is."""
    if contents.unread:
        path, why = next(iter(sorted(contents.unread.items())))
        return f"{path} cannot be read: {why}"
    if not contents.libraries:
        return "it holds no library: nothing was compiled"
    own = [library for library in contents.libraries if not native_library.is_nvidias(library.name)]
    needed = [name for library in own for name in library.needed]
    if any(library.torch_symbols for library in own) and not any(map(native_library.is_torch_library, needed)):
        return "its libraries have symbols of torch, and are linked with none of torch's libraries"
    majors = native_library.cuda_majors(needed)
    cuda = build.devel.cuda
    other = [major for major in majors if cuda is None or major != cuda.partition(".")[0]]
    if other:
        return f"it needs libraries of CUDA {other[0]}, and {build.devel.cell.variant} has {cuda or 'none'}"
    codes = {code for library in own for code in library.sass}
    lacking = [cc for cc in build.gpus if not any(sass_runs(facts, code, cc, cuda or "0") for code in codes)]
    if lacking:
        has = f"code for {', '.join(sorted(codes))}" if codes else "no GPU code"
        return f"it has {has}: none runs on a GPU of {lacking[0]}"
    return None


def _broken(build: ExtensionBuild, why: str) -> PromiseError:
    message = f"the wheel that was compiled of {build.what} is not used: {why}"
    return PromiseError(message, fix="take another version, or report it to its project with the log")


class Compiler(NamedTuple):
    """Where and how to compile. `timeout` is in seconds."""

    engine: str
    profile: Profile
    base: BasePolicy
    timeout: float
    on_line: Callable[[str], None]
    say: Callable[[str], None]


def wheel_of(
    build: ExtensionBuild, store: Store, facts: Facts, compiler: Compiler, means: Callable[[str], TransferOptions]
) -> tuple[StoredWheel, bool]:
    """Return the wheel, of the store or compiled now, and which. BuildError, or PromiseError for another wheel."""
    kept = recipe.kept_wheel(store, build)
    if kept is not None:
        return kept, False
    recipe.require_writable(store)
    with one_at_a_time(f"extension {build.key}", compiler.say):
        kept = recipe.kept_wheel(store, build)
        if kept is not None:
            return kept, False
        wheels.bring(store, recipe.required(build), build.devel.cell.python, compiler.profile, means)
        with tempfile.TemporaryDirectory(prefix=".view-", dir=store.root) as scratch:
            return _compiled(build, store, facts, compiler, Path(scratch)), True


def _compiled(build: ExtensionBuild, store: Store, facts: Facts, compiler: Compiler, scratch: Path) -> StoredWheel:
    scratch.chmod(0o755)
    context, out, labelled = scratch / "context", scratch / "out", scratch / "labelled"
    jobs = recipe.write(build, store, context, image_builds.origin()[1])
    compiler.say(f"compiling {build.what}, {jobs} at once")
    for directory in (out, labelled):
        directory.mkdir()
    compiled = _in_environment if compiler.engine == "venv" else _in_stage
    sdist, result = build.sdist, compiled(build, compiler, context, out)
    log = f"{build.devel.cell}-{sdist.name}-{sdist.version}"
    require_success(f"{sdist.name} {sdist.version}", log, *result, compiler.timeout, step="compile")
    made = list(out.glob("*.whl"))
    if len(made) != 1:
        refuse(f"the build of {build.what} made {len(made)} wheels", "take another version", PromiseError)
    try:
        wheel = relabelled(made[0], labelled, build.local_version)
    except BinaryError as error:
        refuse(f"the build of {build.what} made {made[0].name}: {error}", "take another version", PromiseError)
    require(wheel, build, facts)
    return recipe.keep(store, build, wheel, sha256(wheel))


def _in_stage(build: ExtensionBuild, compiler: Compiler, context: Path, out: Path) -> CommandResult:
    """Compile in a stage on the cell's `devel`, which is built first where it is not there, without a network."""
    engine = engines.connect(compiler.engine)
    request = TargetRequest(
        spec=build.devel,
        profile=compiler.profile,
        repository=REPOSITORY,
        network=None,
        base=compiler.base,
        timeout=compiler.timeout,
    )
    (devel,) = image_builds.build(engine, [request], say=compiler.say, on_line=compiler.on_line)
    plan = stage(build, engine.name, engine.frontend(), engines.local_name(engine.name, devel.image), context, out)
    return engine.build([plan], on_line=compiler.on_line, timeout=compiler.timeout)[0]


def stage(build: ExtensionBuild, engine: str, frontend: list[str], base: str, context: Path, out: Path) -> BuildPlan:
    """Return the plan of the stage: it leaves the wheel in `out`, and no image."""
    command = [word for word in frontend if word != "--load"]
    options = [f"--platform={PLATFORMS[build.devel.arch]}", "--network=none", f"--build-arg=BASE={base}"]
    return BuildPlan(
        engine="podman" if engine == "podman" else "docker",
        cell=str(build.devel.cell),
        target="devel",
        platform=PLATFORMS[build.devel.arch],
        base=base,
        key=build.key,
        context=str(context),
        network="none",
        build_args={"BASE": base},
        argv=[*command, *options, f"--output=type=local,dest={out}", str(context)],
    )


def _in_environment(build: ExtensionBuild, compiler: Compiler, context: Path, out: Path) -> CommandResult:
    if subprocesses.which("g++") is None:
        message = f"{build.what} must be compiled, and this machine has no g++"
        raise UnavailableError(message, fix="install g++ and the headers of its Python, or use --engine docker")
    devel = venv.build(
        build.devel,
        compiler.profile,
        state_path("venvs", f"torch{build.devel.tag}"),
        timeout=compiler.timeout,
        on_line=compiler.on_line,
        say=compiler.say,
    )
    asked = [devel.python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    headers = subprocesses.output(asked).strip()
    if not Path(headers, "Python.h").is_file():
        message = f"{headers} has no Python.h, which compiling an extension needs"
        raise UnavailableError(message, fix="install the headers of that Python, or use --engine docker")
    (context / "envcheck").symlink_to(Path(envcheck.__file__).resolve().parent)
    home = {"CUDA_HOME": f"{devel.path}/cuda"} if build.gpus else {}
    argv = [*_closed(compiler.say), "sh", str(context / "build_wheel.sh"), devel.python, str(context), str(out)]
    (context / "tmp").mkdir()
    return subprocesses.stream(
        argv, timeout=compiler.timeout, on_line=compiler.on_line, env={"TMPDIR": str(context / "tmp"), **home}
    )


def _closed(say: Callable[[str], None]) -> list[str]:
    """Return the command that runs another one without a network; nothing, and say so, where the kernel forbids it."""
    for argv in (["unshare", "--net"], ["unshare", "--user", "--map-current-user", "--net"]):
        if subprocesses.which(argv[0]) and subprocesses.stream([*argv, "true"], timeout=10).status == 0:
            return argv
    say("this machine allows no network namespace: the build may reach the network")
    return []
