"""What public files pin is judged with the right answer each; what is sound gets no finding; no input breaks it."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.cli import cli
from envcheck.cli.commands.mirror import _UNREAD
from envcheck.errors import ConfigError
from envcheck.images.pinned_files import read
from envcheck.matrix.extensions import file as extensions
from envcheck.matrix.file.load import load
from envcheck.matrix.pinned import Index, PinFinding, judge, machine_arch
from envcheck.matrix.resolver.query import Query
from envcheck.mirrors.doctor import Document, kind_of, read_files
from envcheck.mirrors.profiles import load as profiles_of
from tests.tables import each

DATA = Path(__file__).parents[1] / "data/pinned"
V100 = Query(gpus=["V100"], driver="535.54.03")
# A file, the node, and of each finding its line, code and what to write.
ANSWERS = [
    ("tutorial.Dockerfile", Query(), ["4 P101 torch==2.8.0+cu128", "4 P101 torch==2.5.1+cu121"]),
    ("tutorial.Dockerfile", Query(driver="515.65.01"), ["2 P107 FROM ubuntu:24.04", "4 P101 torch==2.7.1+cu118"]),
    ("mirror.Dockerfile", Query(), ["4 P102 /whl/cu118", "5 P104 torchvision==0.16.2+cu118"]),
    ("newest.Dockerfile", Query(), []),
    ("newest.Dockerfile", V100, ["2 P101 torch==2.14.1+cu126 --index-url"]),
    ("newest.Dockerfile", Query(gpus=["4090"], driver="550.54.14"), ["1 P107 python:3.12-slim", "2 P101 cu126"]),
    ("newest.Dockerfile", Query(gpus=["H100"], driver="610.43.02"), []),
    ("newest.Dockerfile", Query(gpus=["RTX 4090", "Intel UHD Graphics 770"], driver="610.43.02"), []),
    ("newest.Dockerfile", Query(gpus=["RX 7900 XTX"]), ["2 P101 +cpu"]),
    # The base has cuda-compat.
    ("newest.Dockerfile", Query(gpus=["H100"], driver="535.104.05"), []),
    (
        "extra-requirements.txt",
        Query(),
        ["3 P103 torch==2.5.1, and above it the line --extra-index-url", "4 P104 torchvision==0.23.0"],
    ),
    ("xformers-requirements.txt", Query(), ["3 P105 xformers==0.0.33.post2"]),
    ("xformers-requirements.txt", Query(gpus=["GH200"]), ["1 P108 /whl/cu130"]),
    ("pyproject.toml", Query(), ["5 P101 torch==2.5.0+cu124", "5 P101 Python 3.12"]),
    ("uv.lock", Query(), ["25 P104 torchvision==0.22.1+cu128"]),
    ("environment.yml", Query(), ["8 P106 conda-forge"]),
    ("old-environment.yml", Query(), []),
    # The channel pytorch has the wheels' code: a 5090 is newer than its last CUDA (pBFSLab/DeepPrep#233).
    ("old-environment.yml", Query(gpus=["RTX 5090"]), ["4 P101 torch==2.7.0+cu128"]),
    ("poetry-pyproject.toml", Query(), ["7 P102 /whl/cu118", "8 P104 torchvision==0.18.1+cu118"]),
    ("frozen-environment.yml", Query(), ["8 P104 torchvision==0.16.0", "11 P109 numpy<2"]),
    ("frozen-requirements.txt", Query(), ["3 P109 leave it out", "4 P109 leave it out"]),
    ("setup.sh", Query(), ["4 P106 conda-forge", "5 P101 torch==2.2.2"]),
    ("sound.Dockerfile", Query(), []),
    ("sound.Dockerfile", Query(gpus=["A100"], driver="550.54.14"), []),
    ("sound-requirements.txt", Query(gpus=["RTX 5090"], driver="570.124.06", python="3.12"), []),
]
PAGES = "-f https://data.pyg.org/whl/torch-2.4.0+cu121.html -f https://data.pyg.org/whl/torch-2.5.0+cu121.html"
FLASH = "https://x.example/flash_attn-2.7.4+cu12"
# A line of a requirements file or a command, and the codes found in it.
LINES = [
    ("pip install torch==2.8.0+rocm6.4 --index-url https://download.pytorch.org/whl/rocm6.4", ""),
    ("pip install torch==2.9.0.dev20250801+cu121 --index-url https://download.pytorch.org/whl/nightly/cu121", ""),
    ("pip install torch==2.8.0+cu121 --index-url https://wheels.example/ours", "P101"),
    ("pip install torch==2.8.0+cu128 --index-url https://wheels.example/ours", ""),
    ("pip config set global.index-url https://x.example/y && pip install torch==2.8.0+cu128", ""),
    ("export PIP_EXTRA_INDEX_URL=https://x.example/whl/cu128\npip install torch==2.8.0+cu128", ""),
    ("uv pip install torch==2.8.0+cu128 --torch-backend=cu128", ""),
    ("pip install torch==1.8.2+cu111 torchvision==0.9.2+cu111 -f https://x.example/whl/lts/1.8/torch_lts.html", ""),
    ("pip install torch==2.8.0+cu128", "P102"),
    # rusty1s/pytorch_scatter#371
    ("pip install torch==2.4.1\npip install torch_scatter -f https://data.pyg.org/whl/torch-2.3.0+cu121.html", "P105"),
    ("pip install torch==2.4.1\npip install torch_scatter -f https://data.pyg.org/whl/torch-2.4.0+cu121.html", ""),
    (f"pip install torch==2.5.1 torch-scatter==2.1.2 {PAGES}", ""),
    (f"pip install torch==2.6.0 torch-scatter==2.1.2 {PAGES}", "P105"),
    ("pip install torch==2.4.1\npip install torch-ema -f https://data.pyg.org/whl/torch-2.3.0+cu121.html", ""),
    ("pip install torch==2.1.0\npip install mmcv==2.1.0 -f https://x.example/mmcv/dist/cu118/torch2.0/a.html", "P105"),
    (f"pip install torch==2.5.1 {FLASH}torch2.4cxx11abiFALSE-cp310-l.whl", "P105"),
    (f"pip install torch==2.5.1 && pip install {FLASH.replace('+', '%2B')}torch2.5cxx11abiFALSE-l.whl", ""),
    # hanxiaowang00/iFlame#2; torch 2.6 of CUDA 12.6 has the new strings (Dao-AILab/flash-attention#1644).
    (f"pip install torch==2.5.1\npip install {FLASH}torch2.5cxx11abiTRUE-l.whl", "P105"),
    (f"pip install torch==2.6.0 -i https://x.y/whl/cu126\npip install {FLASH}torch2.6cxx11abiTRUE-l.whl", ""),
    # Dao-AILab/flash-attention#1783
    (f"pip install torch==2.6.0\npip install {FLASH.replace('7.4', '8.2')}torch2.6cxx11abiFALSE-l.whl", "P105"),
    (f"pip install torch==2.6.0\npip install {FLASH}torch2.6cxx11abiFALSE-l.whl", ""),
    ("pip install torch==2.6.0\npip install https://x/flash_attn-2.8.3+cu124torch2.6cxx11abiFALSE-l.whl", ""),
    (f"pip install torch==2.6.0 -i https://x.y/whl/cu126\npip install {FLASH}torch2.6cxx11abiFALSE-l.whl", "P105"),
    # McGill-NLP/nano-aha-moment#3
    (f"FROM python:3.12\nRUN pip install {FLASH}torch2.5-cp310-cp310-l.whl", "P105"),
    (f"FROM python:3.12\nRUN pip install {FLASH}torch2.5-cp312-cp312-l.whl", ""),
    ("pip install torch==2.5.1 pyg_lib@https://x.example/pyg_lib-0.4.0+pt24cu121-cp310-cp310-linux_x86_64.whl", "P105"),
    ("pip install torch==2.5.1 https://x.example/torchvision-0.20.1%2Bcu121-cp310-cp310-linux_x86_64.whl", ""),
    ("pip install torch==2.4.1 triton==2.1.0", "P109"),
    ("pip install torch==2.4.1 && pip install --no-deps nvidia-nccl-cu12==2.21.5", ""),
    ("pip install torch==2.2.2 numpy==1.24.4", ""),
    ("pip install torch==2.2.2 'numpy>=1.21,<2'", ""),
    ("pip install torch==2.2.2 && pip install 'numpy>=2'", "P109"),
    ("conda install pytorch==2.1.0 torchvision=0.16 -c conda-forge", ""),
    ("pip install torch==2.8.0+cu128 -i https://wheels.example/simple", ""),
    ("pip install torch==2.8.0+cu128 -i https://pypi.mirror.example/simple", "P102"),
    ("pip install torch==2.8.0+cu128 --index-url https://x.example/whl/cu126", "P102"),
    ("pip install torch==2.8.0+cu128 -f https://x.example/pytorch-wheels/cu128", ""),
    ("uv pip install 'torch>=2.6,<2.8' --index-url https://x.example/whl/cu121", "P101"),
    ("pip install torch==2.1.0+cu118 torchvision==0.16.0+cu121 --index-url https://x.example/whl/cu118", "P104"),
    ("pip install torch==2.13.0 torchaudio==2.11.0", ""),
    ("pip install torch==1.12.1+cu113 -f https://x.example/whl/torch_stable.html", ""),
    ("pip install torch==$TORCH torchvision==0.1", ""),
    ("conda install pytorch=2.7 -c conda-forge", ""),
    ("conda install pytorch==2.7.0 -c pytorch", "P106"),
    ("conda install 'pytorch>=2.6' pytorch-cuda=12.4 -c pytorch -c nvidia -c conda-forge", "P106"),
    ("conda install 'pytorch>=2.5' pytorch-cuda=12.4 -c pytorch -c nvidia -c conda-forge", ""),
    # rusty1s/pytorch_scatter#470
    (
        "conda install pytorch=2.4.0 -c conda-forge\npip install torch_scatter -f https://x.geometric/torch-2.4.0.html",
        "P105",
    ),
    (f"conda install pytorch=2.5.1 -c conda-forge\npip install {FLASH}torch2.5cxx11abiTRUE-l.whl", ""),
    ("pip install torch==2.8 torchvision==0.23", ""),
    ("pip install torch==2.5 -i https://x.example/whl/cu121", ""),
    ("pip install 'torch==2.8.0; sys_platform ~= \"linux\"'", ""),
    ("ENV UV_EXTRA_INDEX_URL=https://x.example/whl/cu128\nRUN uv pip install torch==2.8.0+cu128", ""),
    ("ENV PIP_EXTRA_INDEX_URL https://x.example/whl/cu128\nRUN pip install torch==2.8.0+cu128", ""),
    ("ENV PIP_EXTRA_INDEX_URL https://x.example/whl/cu126\nRUN pip install torch==2.8.0+cu128", "P102"),
    ("ARG PIP_INDEX_URL\nRUN pip install torch==2.8.0+cu128", ""),
    ("ENV PIP_CONFIG_FILE=/etc/site.conf\nRUN pip install torch==2.8.0+cu128", ""),
    ("ENV PIP_FIND_LINKS=/wheels\nRUN pip install torch==2.8.0+cu128", ""),
    ("FROM python:3.13-slim AS lint\nFROM nvidia/cuda:12.1.1-base-ubuntu22.04\nRUN pip install torch==2.1.2", ""),
    ("FROM python:3.13-slim AS first\nFROM first\nRUN pip install torch==2.1.2", "P101"),
    ("pip install torch==2.8.0 torch-scatter==2.1.2+pt28cu128", ""),
    ("pip install torch==2.5.1 pytorch3d==0.7.8+pt2.5.1cu124 natten==0.17.3+torch251cu124", ""),
    ("pip install torch==2.12.0 torch-scatter==2.1.2+pt212cu130", ""),
    ("pip install torch==2.8.0 torch-scatter==2.1.2+pt26cu124", "P105"),
    # GoogleCloudPlatform/scientific-computing-examples#157
    ("pip install nvidia-nccl-cu12==2.21.5\npip install torch==2.13.0", "P109"),
    ("pip install torch==2.11.0 nvidia-cudnn-cu12==8.9.2.26", ""),
    ("conda install pytorch==2.4.1 triton==2.1.0 -c conda-forge", ""),
    ("FROM a AS tools\nRUN pip install numpy==2.1.0\nFROM b\nRUN pip install torch==2.2.2", ""),
    ("pip install torch==2.8.0 torchvision==0.* torchaudio==2.*", ""),
]
WHEEL = "flash-attn @ https://x.example/flash_attn-2.7.3+cu12torch2.4-cp310-cp310"
# A requirement beside torch 2.8.0, and the codes found in it.
REQUIREMENTS = [
    (f"{WHEEL}-win_amd64.whl", ""),
    (f"{WHEEL}-l.whl ; sys_platform == 'win32'", ""),
    (f"{WHEEL}-l.whl ; sys_platform == 'linux'", "P105"),
    ("https://x/" * 20000, ""),
    (f"torchvision==0.19.0 ; {'(' * 400}", ""),
]
UV = '[project]\ndependencies = ["torch==2.4.1"]\n[tool.uv]\n'
POETRY = "[tool.poetry.dependencies]\n"
SOURCE = '[[tool.poetry.source]]\nname = "cu128"\nurl = "https://x.example/whl/cu128"\n'
# A pyproject.toml, and the codes found in it.
PROJECTS = [
    (f'{UV}override-dependencies = ["nvidia-nccl-cu12==2.21.5", "triton[x]==2.1.0"]', ""),
    (f"{UV}constraint-dependencies = ['numpy>=2', 'triton==2.1.0']", ""),
    (f"{UV.replace('2.4.1', '2.4.9')}override-dependencies = [\"torch; sys_platform == 'never'\"]", ""),
    (f'{UV}dev-dependencies = ["triton==2.1.0"]', "P109"),
    (f'{POETRY}python = "~3.10"\ntorch = "2.15.0"', "P101"),
    (f'{POETRY}python = "^3.10"\ntorch = "2.15.0"', ""),
    (f'{POETRY}torch = "~2.4"\ntorchvision = "^0.19"', ""),
    (f'{POETRY}torch = "2.8.0"\ntorchvision = {{version = "0.19.0", platform = "darwin"}}', ""),
    (f'{POETRY}torch = "2.8.0"\ntorchvision = {{version = "0.19.0", python = "<3.10"}}', ""),
    (f'{POETRY}torch = "2.8.0"\ntorchvision = "0.19.0"', "P104"),
    (f'{POETRY}torch = "2.8.0+cu128"\n{SOURCE}', ""),
    (f'{POETRY}torch = "2.8.0+cu128"\n{SOURCE}priority = "explicit"', "P102"),
    # Hoopoes/CodersInventory docs/root/environment/deep-learning/torch.md
    (f'{POETRY}torch = {{version = "^2.6.0+cu121", source = "cu121"}}\n{SOURCE.replace("128", "121")}', "P101"),
    (f'{POETRY}torch = {{version = "^2.6.0+cu128", source = "cu128"}}\n{SOURCE}', ""),
    (f'{POETRY}torch = [\n{{version="2.4.9", platform="darwin"}},\n{{version="2.4.1", "platform"="linux"}},\n]', ""),
    (f'{POETRY}torch = [\n  {{version = "2.4.9", markers = "sys_platform == \'linux\'"}},\n]', "P101"),
    (f'{POETRY}torch = "*"\ntorchvision = "0.19.0"', ""),
    ("[project]\ndependencies = [\"torch==2.4.9; sys_platform == 'linux'\"]", "P101"),
    ("[project]\ndependencies = [\"torch==2.4.9; sys_platform == 'darwin'\", 'torch==2.4.1']", ""),
]
UNUSED = '[project]\ndependencies = ["mjlab"]\n[tool.uv.sources]\ntorch = { index = "a" }\n'
PROJECTS += [(UNUSED, "P103"), (f"{UNUSED}[tool.uv.workspace]\n", ""), (UNUSED.replace("mjlab", "torch>=2"), "")]
PROJECTS += [(UNUSED.replace("mjlab", "flash-attn").replace("torch =", "flash_attn ="), "")]
PROJECTS += [(f'{POETRY}torch = "2.5.1"\nflash-attn = {{ url = "{FLASH}torch2.4-cp311-cp311-l.whl" }}', "P105")]
PROJECTS += [(f'{POETRY}python = "3.10.12"\ntorch = "2.6.0"\nx = {{ url = "{FLASH}torch2.6-cp310-cp310-l.whl" }}', "")]
PROJECTS += [
    ('[tool.pixi.pypi-dependencies]\ntorch = { version = "==2.6.0", index = "https://x.example/whl/cu126" }', "")
]
OTHER_EXTRAS = (
    '[project.optional-dependencies]\nold = ["torch==2.5.1"]\nnew = ["torch>=2.6,<2.7", "flash-attn"]\n'
    f'[tool.uv.sources]\nflash-attn = {{ url = "{FLASH}torch2.6cxx11abiTRUE-cp310-cp310-l.whl", extra = "new" }}\n'
)
PROJECTS += [(OTHER_EXTRAS, ""), (OTHER_EXTRAS.replace('"new" }', '"old" }'), "P105")]
# A wheel for each kind of machine, by uv's extras (astral-sh/uv#11931, #11945) or by markers (opendatahub-io/
# notebooks#2454, invoke-ai/InvokeAI#9095, pollen-robotics/microduck_rl#2): extras or markers, GPU, line and code.
EXTRAS = """[project.optional-dependencies]
one = ["torch==2.6.0"]
two = ["torch==2.6.0"]
[tool.uv.sources]
torch = [{index = "a", extra = "one"}, {index = "b", extra = "two"}]
[[tool.uv.index]]
name = "a"
url = "https://x.example/whl/A"
[[tool.uv.index]]
name = "b"
url = "https://x.example/whl/B"
"""
ARM = UV.replace("2.4.1", "VERSION") + (
    "[tool.uv.sources]\ntorch = [{ index = 'a', marker = \"platform_machine == 'aarch64'\" }]\n"
    "[[tool.uv.index]]\nname = 'a'\nurl = 'https://x.example/whl/B'\nexplicit = true\n"
)
MACHINES = [
    (EXTRAS, "cpu", "cu128", "", "3 P101"),
    (EXTRAS, "cu118", "cu124", "V100", ""),
    (EXTRAS, "cu118", "cu124", "RTX 5090", "2 P101, 3 P101"),
    (EXTRAS.replace("2.6.0", "2.7.1"), "cu118", "cu128", "RTX 5090", ""),
    (EXTRAS.replace("2.6.0", "2.7.1"), "cpu", "cu118", "RTX 5090", "3 P101"),
    (EXTRAS.replace("2.6.0", "2.7.1"), "cu118", "cu128", "GB10", ""),
    (EXTRAS.replace("2.6.0", "2.11.0"), "cu128", "cu130", "GB10", ""),
    (EXTRAS.replace("[project.opt", "dependencies = ['torch>=2']\n[project.opt"), "cpu", "cu124", "A100", ""),
    (EXTRAS.replace('extra = "two"', "marker = \"extra == 'two'\""), "cpu", "cu128", "", "3 P101"),
    (ARM.replace("VERSION", "2.9.1"), "", "cu129", "GB10", ""),
    (ARM.replace("VERSION", "2.9.1"), "", "cu130", "GH200", ""),
    (ARM.replace("VERSION", "2.6.0"), "", "cu124", "GH200", "2 P101"),
    (ARM.replace("VERSION", "2.6.0"), "", "cu124", "A100", ""),
]


CASES = [
    *(("setup.sh", line, codes) for line, codes in LINES),
    *(("requirements.txt", f"torch==2.8.0\n{line}", codes) for line, codes in REQUIREMENTS),
    *(("pyproject.toml", text, codes) for text, codes in PROJECTS),
]


def findings(document: Document, query: Query) -> list[PinFinding]:
    return judge(load(), extensions.load(), read(document, machine_arch(load(), query)), query)


def test_each_public_file_has_the_right_answer() -> None:
    wrong = []
    for name, query, expected in ANSWERS:
        [document] = read_files([DATA / name]).documents
        found = findings(document, query)
        places = {" ".join(row.split()[:2]) for row in expected}
        missing = [row for row in expected if not any(_answers(row, finding) for finding in found)]
        if missing or {f"{finding.line} {finding.id}" for finding in found} != places:
            wrong.append((name, query, missing, found))
    assert not wrong
    assert {path.name for path in DATA.iterdir()} == {name for name, _, _ in ANSWERS}


def _answers(row: str, finding: PinFinding) -> bool:
    line, code, text = row.split(" ", 2)
    return (int(line), code) == (finding.line, finding.id) and text in finding.fix


@each("name, text, expected", CASES)
def test_each_line_requirement_and_project_is_understood(name: str, text: str, expected: str) -> None:
    assert [f.id for f in findings(Document(name, text, kind_of(name)), Query())] == expected.split()


@each(
    ("torch", "wheel", "says"),
    [
        ("torch==2.4.1", f"{FLASH}torch2.4cxx11abiTRUE-l.whl", "wheel with cxx11abiFALSE"),
        ("torch==2.6.0 -i https://x.y/whl/cu126", f"{FLASH}torch2.6cxx11abiFALSE-l.whl", "wheel with cxx11abiTRUE;"),
        ("torch==2.13.0", "nvidia-nccl-cu12==2.21.5", "nccl-cu12 and torch's own of cu130 have the same files"),
    ],
)
def test_what_is_beside_torch_is_told_from_what_torch_wants(torch: str, wheel: str, says: str) -> None:
    text = f"pip install {torch}\npip install {wheel}"
    [finding] = findings(Document("setup.sh", text, kind_of("setup.sh")), Query())
    assert says in f"{finding.what}; {finding.fix};"


@each(("text", "one", "two", "gpu", "expected"), MACHINES)
def test_a_wheel_for_each_kind_of_machine_is_judged_for_its_own(
    text: str, one: str, two: str, gpu: str, expected: str
) -> None:
    document = Document("pyproject.toml", text.replace("/A", f"/{one}").replace("/B", f"/{two}"), "settings")
    found = findings(document, Query(gpus=[gpu] if gpu else []))
    assert ", ".join(f"{each.line} {each.id}" for each in found) == expected


@each("torch", ["torch==2.14.1", f"'torch>=2.14,<2.15,!=1.1{'0' * 250}'"])
def test_a_wheel_that_needs_cuda_compat_runs_only_in_an_image_that_has_it(torch: str) -> None:
    query = Query(gpus=["H100"], driver="535.104.05")
    [finding] = findings(Document("setup.sh", f"pip install {torch}", "settings"), query)
    assert (finding.id, "cuda-compat" in finding.what) == ("P101", True)
    assert finding.fix.startswith("write torch==2.14.1+cu126 --index-url")


@each("torch", ["pytorch=2.3.1\n- cpuonly", "pytorch==2.3.1=py3.10_cpu_0", "pytorch=2.3.1"])
def test_a_build_for_the_cpu_is_not_judged_for_a_gpu(torch: str) -> None:
    text = f"channels: [pytorch, defaults]\ndependencies:\n- {torch}\n"
    found = findings(Document("environment.yml", text, kind_of("environment.yml")), Query(gpus=["B200"]))
    assert [finding.id for finding in found] == ([] if "cpu" in torch else ["P101"])


@each("text", ["install=[", "install=[a]", "\n", "requir", '"torch":{', "name: torch\n\n", "depend={[", " -", "'a',\n"])
def test_a_long_file_is_looked_at_quickly(text: str) -> None:
    start = time.process_time()
    for whole in (text * (1_000_000 // len(text)), f"install_requires=[{text * (1_000_000 // len(text))}"):
        _UNREAD.search(whole)
    assert time.process_time() - start < 2


PIECES = st.sampled_from([line for path in sorted(DATA.iterdir()) for line in path.read_text().split("\n")])
NOISE = st.sampled_from(
    ["torch==" + "9" * 5000, "torch==²", "pytorch=..", "- python=>", 'requires-python = "x"', "${", "["]
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(PIECES | NOISE | st.text(max_size=40), max_size=20),
    st.sampled_from([path.name for path in DATA.iterdir()]),
)
def test_no_input_breaks_it_and_every_line_is_there(parts: list[str], name: str) -> None:
    content = "\n".join(parts)
    for finding in findings(Document(name, content, kind_of(name)), Query()):
        assert 1 <= finding.line <= content.count("\n") + 1


def test_the_mirrors_that_are_known_are_told_apart() -> None:
    profiles = [profiles_of.load(name) for name in profiles_of.presets()]
    python = [index.url for profile in profiles for index in profile.pypi]
    pytorch = [index.url.replace("{variant}", "cu128") for profile in profiles for index in profile.pytorch]
    assert (len(python), len(pytorch)) == (7, 3)
    assert [url for url in python if Index(url).of_a_site] == []
    assert {Index(url).variant for url in pytorch} == {"cu128"}


def test_no_login_of_an_index_is_repeated() -> None:
    for index in ("https://joe:hunter2@x.example/whl/cu121", "https://x.example/whl/cu121?key=hunter2"):
        line = f"pip install torch==2.8.0+cu121 --index-url {index}"
        [finding] = findings(Document("setup.sh", line, "settings"), Query())
        assert "torch==2.8.0+cu128 --index-url https://x.example/whl/cu128 (" in finding.fix


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*words], standalone_mode=False)
    return result.return_value or 0, result.output


def test_the_command_says_line_reason_and_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    path = DATA / "environment.yml"
    code, out = run("resolve", "--from", str(path))
    assert (code, out.splitlines()[:2]) == (
        1,
        [f"{path}:8: unreal P106", "    PyTorch's conda channel ends with 2.5.1"],
    )
    assert run("resolve", "--from", str(DATA / "sound.Dockerfile")) == (
        0,
        f"{DATA}/sound.Dockerfile: 8 requirements and 2 images read: no findings\n",
    )
    code, out = run("resolve", "--from", str(DATA / "newest.Dockerfile"), "--gpu", "V100", "--driver", "535", "--json")
    report = json.loads(out)
    assert (code, report["schema"], report["wanted"]["driver"]) == (1, "envcheck/pinned/1", "535.54.03")
    assert [finding["id"] for finding in report["findings"]] == ["P101"]


@each(
    ("name", "text", "says"),
    [
        # Poetry's, Pipenv's and Pixi's locks are none of the formats (python-poetry/poetry#6710, prefix-dev/pixi#2398).
        ("poetry.lock", 'name = "torch"\nversion = "2.8.0+cu121"\n', "names torch, but nothing in it was read"),
        ("setup.py", 'from setuptools import setup\nsetup(install_requires=["torch"])\n', "names torch, but nothing"),
        ("setup.py", 'REQUIRED = ["torch", "numpy"]\n', "names torch, but nothing"),
        ("setup.py", "INSTALL = [\n    'numpy',\n    'torch',\n]\n", "names torch, but nothing"),
        (
            "setup.py",
            'setup(install_requires=["uvicorn[standard]", "torch"], extras_require={"gpu": ["torch"]})',
            "names",
        ),
        ("setup.py", 'setup(extras_require={"gpu": ["torch"]})', "names torch, but nothing"),
        ("versions.json", '{"torch": "2.4.0"}', "names torch, but nothing"),
        ("conda-lock.yml", "package:\n- name: pytorch\n  version: 2.6.0\n", "names torch, but nothing"),
        ("Pipfile.lock", '{"default": {"torch": {"index": "pypi", "version": "==2.6.0"}}}', "names torch, but nothing"),
        ("explicit.txt", "@EXPLICIT\nhttps://x.example/linux-64/pytorch-2.1.0-py3.10_0.tar.bz2#ab\n", "names torch"),
        ("list.txt", "# platform: linux-64\npytorch=2.1.0=py3.10_cuda11.8_cudnn8.7.0_0\n", "names torch, but nothing"),
        ("setup.cfg", "[options]\ninstall_requires =\n    torch==2.6.0\n", "names torch, but nothing"),
        ("Pipfile", '[packages]\ntorch = "*"\n', "names torch, but nothing"),
        ("pixi.toml", '[dependencies]\npytorch-gpu = ">=2.6"\n', "names torch, but nothing"),
        ("requirements.txt", "torch==2.8.0\n" * 5001, "more than 5,000 requirements"),
    ],
)
def test_what_cannot_be_read_or_is_too_much_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        CliRunner().invoke(
            cli, ["resolve", "--from", str(tmp_path / name)], catch_exceptions=False, standalone_mode=False
        )


@each(
    ("name", "text"),
    [
        ("requirements.txt", "# torch comes from the base image\n-r base.txt\n"),
        ("run.sh", "exec python -m torch.distributed.run train.py\n"),
        ("train.py", "import torch\n"),
        ("test_train.py", 'try:\n    torch = import_module("torch")\nexcept ImportError:\n    torch = None\n'),
        ("pyproject.toml", '[project]\ndescription = "models in torch"\ndependencies = []\n'),
        ("pyproject.toml", '[project]\nkeywords = ["torch"]\n[[tool.mypy.overrides]]\nmodule = ["torch", "torch.*"]\n'),
        ("pyproject.toml", '[[tool.poetry.source]]\nname = "pytorch"\nurl = "https://x.example/whl/cu121"\n'),
        ("setup.py", 'setup(keywords=["torch"], install_requires=["numpy"])\n'),
        ("setup.py", 'setup(install_requires=["numpy[x]"], keywords=["torch"])\n'),
        ("environment.yml", "dependencies:\n- pip:\n  - --extra-index-url https://download.pytorch.org/whl/cu121\n"),
    ],
)
def test_a_file_that_only_speaks_of_torch_is_sound(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    says = f"{tmp_path}/{name}: 0 requirements and 0 images read: nothing to judge\n"
    assert run("resolve", "--from", str(tmp_path / name)) == (0, says)


def test_a_name_gives_the_terminal_no_orders(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jrequirements.txt").write_text("torch==2.8.0+cu121\n")
    for words in (["resolve", "--from"], ["mirror", "doctor"]):
        code, out = run(*words, str(tmp_path / "a\x1b[2Jrequirements.txt"))
        assert (code, f"{tmp_path}/arequirements.txt:1: " in out, "\x1b[2J" in out) == (1, True, False)


def test_an_apptainer_file_and_a_lock_of_rye_are_read() -> None:
    image = read(Document("app.def", "From: pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime\n", "settings"))
    assert [(pin.name, pin.exact, pin.local) for pin in image.pins] == [("torch", "2.1.0", "cu118")]
    lock = read(Document("requirements.lock", "torch==2.6.0\n    # via here\n", "settings"))
    assert [(pin.name, pin.exact) for pin in lock.pins] == [("torch", "2.6.0")]


@each(
    ("pin", "code", "says"),
    [
        ("torch==2.99", 0, "no findings; not judged: torch==2.99 (on record: 1.13.1 - "),
        ("torch==99", 0, "no findings; not judged: torch==99 (on record: 1.13.1 - "),
        ("torch>=99", 0, "no findings; not judged: torch>=99 (on record: 1.13.1 - "),
        ("torch==1.12.1", 0, "no findings; not judged: torch==1.12.1 (on record: 1.13.1 - "),
        ("torch==1.13.9", 1, "read: 1 unreal\n"),
        ("torch", 0, "read: no findings\n"),
        ("torch==2.8.0+cu128", 0, "1 requirement and 0 images read: 1 outdated\n"),  # what only surprises fails nothing
        ("torch==2.1.2\nvllm==0.5.0.post1", 0, "no findings; not judged: vllm==0.5.0.post1 (not on record)\n"),
        ("torch==2.4.0\nvllm>=0.16", 0, "read: no findings; not judged: vllm>=0.16 (no exact version)\n"),
        ("torch==2.4.0+cu181", 1, "and above it the line --extra-index-url\n"),  # and no advice of cu181's index
        ("", 0, "0 requirements and 0 images read: nothing to judge\n"),
        (
            "numpy\ntorch==2.4.0; python_version<'3.13'",
            0,
            "read: no findings; not judged: torch of line 2 (not read)\n",
        ),
    ],
)
def test_a_torch_without_facts_is_never_passed_in_silence(tmp_path: Path, pin: str, code: int, says: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(f"{pin}\n")
    found, out = run("resolve", "--from", str(path))
    assert (found, says in out) == (code, True), out
    _, out = run("resolve", "--from", str(path), "--json")
    assert len(json.loads(out)["not_judged"]) == ("not judged" in says)


@each(
    ("pin", "fix"),
    [
        ("torch==2.9.1\nflash-attn==2.8.3", "the file is right; install driver >= 570.86.16"),
        ("torch==2.4.0+cu118", "no torch runs there: `envcheck resolve --gpu 'RTX 5080' --driver 566.36` says"),
    ],
)
def test_a_driver_that_is_too_old_for_the_gpu_is_what_to_change(pin: str, fix: str) -> None:
    query = Query(gpus=["RTX 5080"], driver="566.36")
    [finding] = findings(Document("requirements.txt", pin, "requirements"), query)
    assert finding.fix.startswith(fix)


def test_the_doctor_judges_pins_too() -> None:
    code, out = run("mirror", "doctor", str(DATA / "tutorial.Dockerfile"))
    assert (code, "P101" in out, out.splitlines()[-1]) == (1, True, "1 examined: 1 unreal")
