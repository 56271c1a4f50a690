"""`build --with` takes an extension in a release that fits the cell."""

import io
import json
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envcheck.cli import Settings
from envcheck.cli.building.on_top import OnTop, put_on_top
from envcheck.cli.building.pinned import PinnedExtensions, extensions_of_target, known_extensions, pinned_to_fit
from envcheck.cli.commands.build import command as build
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.source_compile import Compiler
from envcheck.images.spec import load_spec, make_spec, select
from envcheck.images.targets import RECIPES, extensions_of
from envcheck.images.wheels import fetch_new, sha256
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.file.load import load
from envcheck.mirrors.fetch.request import WantedFile
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index, Profile
from envcheck.mirrors.store.objects import Store
from tests.http_server import Answer, Server, Servers
from tests.tables import each, one_line
from tests.wheels import wheel

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return load()


def pinned(matrix: Matrix, cell: str, *requirements: str) -> list[str]:
    parsed = Cell.parse(cell)
    assert parsed is not None
    return pinned_to_fit(matrix, make_spec(matrix, parsed, []), requirements).requirements


@each(
    ("requirement", "pin"),
    [
        ("torchao", "torchao==0.13.0"),  # METADATA does not pin torch: uv would take the newest
        ("torchcodec>=0.5", "torchcodec==0.7.0"),
        ("xformers", "xformers==0.0.32.post2"),
        ("Onnxruntime_GPU", "onnxruntime-gpu==1.26.0"),
        ("einops>=0.8", "einops>=0.8"),  # no native extension of the facts
        ("vllm[audio]==0.11.0", "vllm[audio]==0.11.0"),  # an extra: left to the installer
    ],
)
def test_an_extension_is_pinned_to_what_fits(matrix: Matrix, requirement: str, pin: str) -> None:
    assert pinned(matrix, "torch2.8.0-cu128-py311", requirement) == [pin]


@each(
    ("requirement", "says"),
    [
        ("onnxruntime-gpu>=1.27", "does not fit torch2.8.0-cu128-py311: cuda-major: onnxruntime-gpu 1.31.1 needs the"),
        ("torchao==0.18.0", "does not fit torch2.8.0-cu128-py311: torch-abi: torchao 0.18.0 is built for torch >=2.11"),
        ("vllm", "does not fit torch2.8.0-cu128-py311: torch-pinned"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(matrix: Matrix, requirement: str, says: str) -> None:
    with pytest.raises(ConfigError, match=one_line(says)) as refused:
        pinned(matrix, "torch2.8.0-cu128-py311", requirement)
    assert "envcheck resolve --with" in str(refused.value)


def test_what_is_not_known_is_said_and_left_to_the_installer(
    matrix: Matrix, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pinned(matrix, "torch2.8.0-cu128-py311", "pyg-lib>=0.6") == ["pyg-lib!=0.7.0,!=0.8.0,>=0.6"]
    assert "pyg-lib>=0.6: not known whether it fits" in capsys.readouterr().err


def test_a_release_that_cannot_fit_is_not_left_to_the_installer(matrix: Matrix) -> None:
    """What is known of older releases is not enough, and the newest one, which uv takes, is for another torch."""
    (line,) = pinned(matrix, "torch2.8.0-cu128-py311", "torchao!=0.13.0,!=0.12.0")
    requirement = Requirement(line)
    assert not requirement.specifier.contains("0.18.0")
    assert requirement.specifier.contains("0.16.0")


def test_a_cell_without_cuda_is_left_to_the_installer(matrix: Matrix) -> None:
    assert pinned(matrix, "torch2.8.0-cpu-py311", "bitsandbytes") == ["bitsandbytes"]


def test_every_extension_that_a_target_locks_is_a_release_that_fits(matrix: Matrix) -> None:
    extensions = known_extensions()
    known = {name for row in extensions.extensions for name in (row.name, *row.aliases)}
    specs = [load_spec(matrix, cell, target) for cell in matrix.cells() for target in matrix.targets(cell)]
    specs = [spec for spec in specs if extensions_of(spec.target, spec.cuda)]
    assert len(specs) >= 23
    for spec in specs:
        locked = [pin for lock in spec.locks if lock.group == "extensions" for pin in lock.pins]
        assert [pin.name for pin in locked] == [*extensions_of(spec.target, spec.cuda)], spec.tag
        lines = [f"{pin.name}=={pin.version}" for pin in locked]
        assert pinned_to_fit(matrix, spec, lines, extensions).requirements == lines, spec.tag
        others = {pin.name for lock in spec.locks if lock.group != "extensions" for pin in lock.pins}
        assert not others & known - {"torchvision", "torchaudio", "triton"}, spec.tag


def test_an_extension_of_a_target_that_no_release_of_fits_is_refused(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(torch="2.8.0", variant="cu128", python="3.11")
    train = make_spec(matrix, cell, [], target="train")
    assert extensions_of_target(matrix, train) == ["bitsandbytes==0.50.2"]
    assert extensions_of_target(matrix, make_spec(matrix, cell, [])) == []
    for name, says in (("vllm>=0.16", "does not fit torch2.8.0-cu128-py311"), ("causal-conv1d", "has no wheel of")):
        monkeypatch.setitem(RECIPES, "train", RECIPES["train"]._replace(extensions=(name,)))
        with pytest.raises(ConfigError, match=says):
            extensions_of_target(matrix, train)


OWN = """\
schema: envcheck/extensions/1
sources: {mine: "a wheel of ours"}
extensions:
  - name: myext
    source: [mine]
    releases:
      - version: "1.0"
        requires: {torch: ">=2"}
        source: [mine]
        wheels:
          - {channel: pypi, arch: x86_64, tags: [cp312-cp312], abi: none, cuda: [], sass: ["9.0"], source: [mine]}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ('"1.0"', '"abc"', "myext abc: abc is not a version"),
        ('">=2"', '"banana"', "myext 1.0: torch: 'banana' is not a version specifier"),
        ("abi: none", 'abi: c++, built_for: "~~2"', "wheels[0].built_for: '~~2' is not a version specifier"),
    ],
)
def test_a_version_that_cannot_be_compared_is_an_error(
    run: Run, tmp_path: Path, right: str, wrong: str, says: str
) -> None:
    own = tmp_path / "own.yaml"
    words = ("resolve", "--with", "myext", "--gpu", "H100", "--python", "3.12", "--extensions", str(own))
    own.write_text(OWN)
    assert run(*words)[0] == 0
    own.write_text(OWN.replace(right, wrong))
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_code_of_a_wheel_that_links_no_cuda_library_is_compared_too(run: Run, tmp_path: Path) -> None:
    """The CUDA runtime may be linked statically."""
    (tmp_path / "own.yaml").write_text(OWN.replace('"9.0"', '"8.0"'))
    words = ("resolve", "--with", "myext", "--python", "3.12", "--extensions", str(tmp_path / "own.yaml"), "--gpu")
    code, out, _ = run(*words, "H100")
    assert (code, "no-gpu-code" in out) == (1, True)
    assert run(*words, "A100")[0] == 0


@pytest.mark.parametrize(
    "asked",
    [
        ("--with", "flash-attn", "--torch", "2.9", "--gpu", "H100"),  # a project's wheel whose hash is on record
        ("--with", "flash-attn", "--torch", "2.10", "--cuda", "13.0", "--gpu", "H100"),  # one of which it is not
        ("--with", "flash-attn", "--torch", "2.14", "--gpu", "H100", "--gpu", "A100"),  # a source
        ("--with", "torchvision", "--with", "torchaudio", "--cuda", "cu126", "--torch", "2.8"),
        ("--with", "torchvision", "--with", "vllm", "--gpu", "H100"),
        ("--with", "torchaudio", "--torch", "2.15"),
    ],
)
def test_the_build_line_of_an_answer_builds_the_same(run: Run, matrix: Matrix, asked: tuple[str, ...]) -> None:
    code, out, _ = run("resolve", *asked, "--no-here", "--json")
    answer = json.loads(out)
    assert code == 0
    line, *more = answer["build"][0].split("\n")
    if "torchaudio" in asked and "cu126" in asked:
        assert line.startswith("images of cu126 hold no torchaudio: run the steps above")
        return
    assert any("trusted on first use" in each for each in more) is ("13.0" in asked)
    words = shlex.split(line)
    assert words[2] == answer["cell"]
    assert [w for w in words if "==" in w] == [f"{each['name']}=={each['version']}" for each in answer["extensions"]]
    given = build.make_context("build", words[2:]).params
    cell = Cell.parse(answer["cell"])
    assert cell is not None
    pinned = pinned_to_fit(matrix, load_spec(matrix, cell), given["packages"], gpus=given["gpus"])
    assert len([*pinned.requirements, *pinned.sources, *pinned.files]) == len(answer["extensions"])
    assert all(file.sha256 or "13.0" in asked for file in pinned.files)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("--with", "apex", "--gpu", "H100"), "a build does not compile apex from git+https://"),
        (("--with", "flash-attn", "--torch", "2.14"), "flash-attn is compiled for GPUs that --gpu names"),
        (
            ("--with", "flash-attn", "--torch", "2.12", "--cuda", "12.6", "--gpu", "H100"),
            "from its source with nvcc 12.6",
        ),
        (
            ("--with", "vllm==0.27.1", "--gpu", "H100", "--driver", "550"),
            "no wheel of vllm from https://wheels.vllm.ai/",
        ),
    ],
)
def test_an_answer_that_no_build_makes_says_why(run: Run, asked: tuple[str, ...], says: str) -> None:
    _, out, _ = run("resolve", *asked, "--no-here", "--json")
    (line,) = json.loads(out)["build"]
    assert says in line
    assert "envcheck build" not in line


def test_a_project_s_wheel_without_a_hash_is_trusted_once(
    matrix: Matrix, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    content, cell, store = io.BytesIO(), Cell(torch="2.9.1", variant="cu128", python="3.12"), Store(tmp_path / "store")
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("myext.py", "")
    bodies = [b"<html>a login page</html>", content.getvalue()]
    server = servers.start(Server(lambda _: Answer(body=bodies.pop(0)) if bodies else Answer(404)))
    where = f'project, where: "{server.url}/v1/", file: "myext-1.0+cu12-{{tag}}-linux_x86_64.whl"'
    own = OWN.replace("pypi", where).replace("name: myext", "name: myext\n    aliases: [oldext]")
    (tmp_path / "own.yaml").write_text(own)
    extensions, spec = known_extensions(tmp_path / "own.yaml"), make_spec(matrix, cell, [])

    def wanted(**hashes: str) -> WantedFile:
        (file,) = pinned_to_fit(matrix, spec, ["myext"], extensions, hashes=hashes).files
        return file

    assert wanted(myext="a" * 64).sha256 == "a" * 64
    (by_alias,) = pinned_to_fit(matrix, spec, ["oldext"], extensions, hashes={"oldext": "b" * 64}).files
    assert by_alias.sha256 == "b" * 64
    first = wanted()
    assert first.sha256 == ""
    with pytest.raises(UnavailableError, match="sends no wheel"):
        fetch_new(store, first, Client())
    assert wanted().sha256 == ""
    digest, record = fetch_new(store, first, Client())
    assert server.paths[-1] == "/v1/myext-1.0%2Bcu12-cp312-cp312-linux_x86_64.whl"
    assert store.sound(digest)
    assert (wanted().sha256, record.read_text()) == (digest, f"{digest}\n")
    with pytest.raises(UnavailableError, match="404"):
        fetch_new(store, first, Client())
    record.write_text("no hash\n")
    with pytest.raises(ConfigError, match="holds no sha256"):
        wanted()
    with pytest.raises(ConfigError, match="--sha256 myext: this build takes no wheel of myext from its project"):
        pinned_to_fit(matrix, spec, ["myext"], known_extensions(), hashes={"myext": "a" * 64})


def test_a_wheel_beside_the_index_is_locked_on_top_and_its_directory_goes(
    matrix: Matrix, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path))
    (cell,) = select(matrix, ["torch2.13.0-cpu-py311"])
    empty = Index(url=f"{servers.start(Server(lambda _: Answer(404))).url}/simple")
    spec, store, profile = load_spec(matrix, cell), Store(tmp_path / "store"), Profile(name="site", pypi=[empty])
    made = wheel(tmp_path, "myext", "1.0")
    store.adopt(made, sha256(made))
    wanted = WantedFile(("http://127.0.0.1:9/v1/x.whl",), sha256(made), None, Path(made.name))
    top = OnTop(pinned=PinnedExtensions([], [], [wanted]), devel=spec, gpus=[], native=frozenset({"myext"}), keep=True)
    assert top.lacking(store) == {}
    compiler = Compiler("venv", profile, "auto", 60.0, lambda _: None, lambda _: None)
    with put_on_top(matrix, top, spec, store, compiler, Settings(None, verbose=False, quiet=True)) as (put, through):
        (lock,) = put.on_top
        assert (lock.group, [pin.sha256 for pin in lock.pins]) == ("extensions", [[sha256(made)]])
        folder = Path(through.pypi[-1].url)
        assert [path.name for path in folder.iterdir()] == [made.name]
    assert not folder.exists()
    assert len([*(tmp_path / "locks-on-top").iterdir()]) == 1
