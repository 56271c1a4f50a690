"""README and docs: every command runs or at least parses, outputs shown are real, and links lead somewhere."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from envcheck.cli import _LazyGroup, cli
from envcheck.matrix.file.load import load
from tests.processes import ran
from tests.tables import each
from tests.wheels import wheel

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What this test does not run, and why. Of these, every call of envcheck must still parse.
NOT_RUN = {
    r"^(sudo )?docker ": "needs a container engine",
    r"^srun ": "needs Slurm",
    r"^git clone": "needs a network",
    r"\bpip install \.": "needs a package index",
    r"^nvidia-smi ": "needs a GPU",
    r"^openssl ": "is not a command of this project",
    r"pytest": "is run by `make test`",
    r"^make ": "is run by CI; its target must exist",
    r"^envcheck run(?!.*--dry-run)": "takes minutes and needs torch; tests/cli/test_run.py and tests/e2e run it",
    r"^envcheck images scan": "needs a scanner; tests/images/sbom runs it with two of its own",
    r"^envcheck images sbom .*--image": "needs an engine and an image; tests/cli runs it with one of its own",
    r"^envcheck images size": "needs an engine and an image; tests/e2e runs it",
    r"^envcheck (--verbose )?build(?!.*--dry-run)": "needs an engine and a package index; tests/e2e runs it",
    r"^envcheck (fetch|lock)": "needs a network; tests/mirrors and tests/images run it with servers of their own",
    r"^envcheck mirror (probe|site)": "needs a network or servers; tests/mirrors runs it",
    r"^envcheck mirror doctor$": "its result depends on this machine",
    r"^envcheck store": "needs a network or a filled store; tests/mirrors/store runs it",
    r"^envcheck resolve$": "its result depends on this machine",
    r"^envcheck (publish|proof|pull|promote)": "needs a registry; tests/registry runs it with two real ones",
    r"^envcheck fleet (report|plan)": "needs reports or an inventory of many nodes; tests/fleet runs it",
    r"^buildah ": "needs a base image and a network",
    r"^(cosign|pip) ": "is not a command of this project",
    r"^envcheck watch .*torchrun": "trains for minutes; tests/examples runs it",
    r"^envcheck report judge": "its exit code is that of the report; tests/reports/test_rejudge.py runs it",
}
RETURNS = {
    "envcheck resolve --torch 2.8 --cuda 12.1 --no-here": 1,
    "envcheck resolve --from requirements.txt": 1,
    "envcheck resolve --gpu T4 --driver 418.40.04 --no-here": 1,
    "envcheck resolve --with faiss-gpu-cu12 --gpu H100 --no-here": 1,
    "envcheck resolve --with vllm --with sglang --gpu H100 --no-here": 1,
}
PROFILE = (
    '{pypi: [{url: "https://mirror.example/pypi/simple"}], pytorch: [{url: "https://mirror.example/whl/{variant}"}]}\n'
)


class PageCommand(NamedTuple):
    """A command of a page, and the output that the page shows for it (empty if none)."""

    page: str
    command: str
    output: str


def shown() -> Iterator[PageCommand]:
    """Yield every `$ ` line of every console block."""
    for page in PAGES:
        for block in re.findall(r"(?ms)^ *```console\n(.*?)^ *```$", page.read_text(encoding="utf-8")):
            for part in re.split(r"(?m)^ *\$ ", block)[1:]:
                command, _, output = part.partition("\n")
                # The README's first commands call an environment that they have just made.
                yield PageCommand(page.name, command.strip().removeprefix("ec/bin/"), output.strip("\n"))


ALL = list(shown())


def reason(command: str) -> str | None:
    """Return why this test does not run the command."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def calls(command: str) -> Iterator[list[str]]:
    """Yield the arguments of every call of envcheck in a line of shell."""
    for line in re.findall(r"\$\(([^)]*)\)", command) or [command]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        call: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if "envcheck" in call and call[0] != "cd":
                    yield call[call.index("envcheck") + 1 :]
                call = []
            else:
                call.append(word)


def parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Raise click's UsageError, or AssertionError, where the command line is not one of envcheck's."""
    context = click.Context(command, info_name=command.name, parent=parent)
    if isinstance(command, _LazyGroup):
        arguments = command.with_command(arguments)
    values, remaining, _ = command.make_parser(context).parse_args(list(arguments))
    for parameter in command.params:
        given = values.get(parameter.name)
        if isinstance(parameter.type, click.Choice) and isinstance(given, str):
            parameter.type.convert(given, parameter, context)
        assert not (parameter.required and (given is None or parameter.value_is_missing(given))), (
            f"{parameter.name} is missing"
        )
    if isinstance(command, click.Group):
        inner = command.get_command(context, remaining[0]) if remaining else None
        assert inner is not None, f"no such command: {remaining}"
        parse(inner, remaining[1:], context)
    else:
        assert remaining == []


def pattern_of(output: str) -> str:
    """Return a regular expression for an output in which a line `...` stands for any lines."""
    lines = ["(?:.*\n)*?" if line == "..." else re.escape(line) + " *\n" for line in output.splitlines()]
    return "".join(lines)


def test_the_pages_show_commands() -> None:
    assert len(ALL) > 100
    assert {page.name for page in PAGES} - {each.page for each in ALL} == {"CONTRIBUTING.md"}
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, each.command) for each in ALL)]
    assert unused == []


def test_every_page_starts_with_a_command() -> None:
    for page in PAGES[2:]:
        lines = page.read_text(encoding="utf-8").splitlines()
        assert (lines[0][:2], lines[1:3]) == ("# ", ["", "```console"]), page.name


# Pages to look something up in: lists that scripts write, a record, and how the code is laid out.
LOOKED_UP = {"architecture", "checks", "codes", "index", "json-schemas", "limits", "tested-where"}


def test_every_page_ends_with_what_to_do_if_it_does_not_work() -> None:
    headed = r"(?ms)^## If it does not work\n\n\| what you see \| what to do \|\n\|---\|---\|\n(?:\| [^\n]* \|\n){3,}\Z"
    ending = {page.stem for page in PAGES[2:] if re.search(headed, page.read_text(encoding="utf-8"))}
    assert {page.stem for page in PAGES[2:]} - ending == LOOKED_UP


@each("command", sorted({each.command for each in ALL if "envcheck " in each.command}))
def test_every_call_of_envcheck_parses(command: str) -> None:
    for arguments in calls(command):
        parse(cli, arguments)


def test_every_make_target_exists() -> None:
    rules = re.findall(r"(?m)^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    targets = [target for rule in rules for target in rule.split()]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text)) <= set(targets)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_recording_shows_what_is_printed_today() -> None:
    made = runpy.run_path(str(ROOT / ".ci" / "recording"))["drawn"]()
    kept = (ROOT / "docs" / "run.svg").read_text(encoding="utf-8")
    assert kept == made, "run `.venv/bin/python .ci/recording`"
    assert len(kept) < 500_000
    assert not re.search(r"url\((?!#)|href=", kept)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Return a directory with the files that the pages name, and an `envcheck` on PATH."""
    for name in ("envcheck-report.json", "last-week.json", "good.json"):
        shutil.copy(ROOT / "tests/data/reports/cpu.json", tmp_path / name)
    (tmp_path / "site.yaml").write_text(PROFILE, encoding="utf-8")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    pins = "--index-url https://download.pytorch.org/whl/cu121\ntorch==2.8.0+cu121\n"
    (tmp_path / "requirements.txt").write_text(pins, encoding="utf-8")
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    name = "torchcodec-0.13.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    wheel(tmp_path, "torchcodec", "0.13.0").rename(tmp_path / name)
    launcher = tmp_path / "bin" / "envcheck"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m envcheck "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("each", [each for each in ALL if reason(each.command) is None], ids=lambda each: each.command)
def test_a_command_does_what_its_page_shows(each: PageCommand, desk: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ENVCHECK_", "XDG_"))}
    environment |= {"HOME": str(desk), "COLUMNS": "80", "NO_COLOR": "1", "PATH": f"{desk}/bin:{os.environ['PATH']}"}
    completed = ran(["bash", "-c", each.command], cwd=desk, env=environment, stdin=subprocess.DEVNULL, timeout=300)
    assert completed.returncode == RETURNS.get(each.command, 0), completed.stderr + completed.stdout[-2000:]
    if each.output:
        assert re.fullmatch(pattern_of(each.output), completed.stdout), completed.stdout


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    paths = re.findall(r"`((?:envcheck|tests|benchmarks|\.ci)/[\w./]+)`", page.read_text(encoding="utf-8"))
    schemas = r"envcheck/[a-z-]+/\d"
    assert [name for name in paths if not re.fullmatch(schemas, name) and not (ROOT / name).exists()] == []


def test_every_page_is_linked_from_the_readme_or_contributing() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES[:2])
    assert [page.name for page in PAGES[2:] if f"docs/{page.name}" not in text] == []


def test_every_schema_is_listed() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "envcheck").rglob("*.py"))
    inner = {"contents", "headers", "probe", "site", "tree"}  # files that envcheck keeps for itself
    used = set(re.findall(r'"envcheck/([a-z-]+)/\d+"', sources)) - inner
    page = (ROOT / "docs/json-schemas.md").read_text(encoding="utf-8")
    assert [name for name in sorted(used) if f"`envcheck/{name}/" not in page] == []


@each("page", ["README.md", "docs/images.md", "docs/tested-where.md"])
def test_the_number_of_published_cells_is_right(page: str) -> None:
    numbers = re.findall(r"\b(\d+) (?:locks|published cells)", (ROOT / page).read_text(encoding="utf-8"))
    assert numbers == [str(len(load().cells()))]
