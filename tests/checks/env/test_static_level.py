"""What can be told of an image without a GPU: libraries, requirements, a compiler, dead settings, credentials."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import site
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank, View
from envcheck.checks.env import (
    compile_prerequisites,
    credentials,
    ignored_settings,
    image_config,
    requirements,
    shared_libraries,
)
from envcheck.checks.support import secret_patterns
from tests.builders import gpu_view, plant
from tests.tables import each

RANK = Rank(0, 1, 0, "cpu", "gloo", "")
FOUND = dict.fromkeys(compile_prerequisites.FIXES, "/usr/bin/x")
LOADED = {"rank": 0, "tried": 30, "broken": {}, "loaded_twice": {}, "beside": [], "taken": [], "stubs": []}
NO_DRIVER = "libcuda.so.1: cannot open shared object file: No such file or directory"


@each("missing", {*compile_prerequisites.FIXES} - {"setuptools"})
def test_each_prerequisite_is_named_with_its_own_remedy(missing: str) -> None:
    outcome = compile_prerequisites.judge(gpu_view("h100x8"), [{"rank": 0, "found": {**FOUND, missing: None}}])
    assert (outcome.status, outcome.value) == (WARN, [missing])
    assert compile_prerequisites.FIXES[missing] in outcome.remedy


@each(
    "missing, target, status",
    [("Python.h", "devel", FAIL), ("Python.h", "train", WARN), ("libcuda.so.1", "devel", WARN)],
)
def test_an_image_that_promises_compilers_has_them(missing: str, target: str, status: str) -> None:
    view = dataclasses.replace(gpu_view("h100x8"), promises={"target": target})
    assert compile_prerequisites.judge(view, [{"rank": 0, "found": {**FOUND, missing: None}}]).status == status


def test_a_cpu_wheel_needs_a_compiler_headers_and_setuptools_only(cpu: View) -> None:
    bare = {**FOUND, "triton": None, "ptxas": None, "libcuda.so.1": None}
    assert compile_prerequisites.judge(cpu, [{"rank": 0, "found": bare}]).status == PASS
    for missing in ("C++ compiler", "setuptools"):  # the latter: pytorch/pytorch#173823
        outcome = compile_prerequisites.judge(cpu, [{"rank": 0, "found": {**bare, missing: None}}])
        assert outcome.value == [missing]


def test_each_setting_that_nothing_reads_is_named_with_the_one_that_is(
    cpu: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = [*ignored_settings.IGNORED, *ignored_settings.OUTDATED]
    for name in (*dead, ignored_settings.TRANSFER):
        monkeypatch.delenv(name, raising=False)
    assert ignored_settings.judge(cpu, [ignored_settings.measure(RANK)]).status == PASS
    for name in dead:
        monkeypatch.setenv(name, "https://user:canary@mirror.example")
    measured = ignored_settings.measure(RANK)
    assert "canary" not in json.dumps(measured)
    outcome = ignored_settings.judge(cpu, [measured])
    assert (outcome.status, outcome.value) == (WARN, len(dead))
    assert [name for name in dead if name not in outcome.summary or f"{name} -> " not in outcome.remedy] == []


@each("version, word", [("0.36.0", "hf_transfer is not installed"), ("1.0.1", "nothing reads HF_HUB"), ("", "hf_tr")])
def test_a_fast_download_without_its_package_is_named_where_it_is_read(
    cpu: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, word: str
) -> None:
    """huggingface_hub 1.0 has Xet instead: huggingface/huggingface_hub#3444."""
    monkeypatch.setenv(ignored_settings.TRANSFER, "1")
    package(tmp_path / version, "huggingface_hub", version) if version else None
    monkeypatch.setattr(sys, "path", [str(tmp_path / version)])
    assert word in ignored_settings.judge(cpu, [ignored_settings.measure(RANK)]).summary


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home of our own, in an environment without a secret in it."""
    for name, value in os.environ.items():
        if secret_patterns.variable(name, value):  # whatever the machine has
            monkeypatch.delenv(name)
    for name, _, _ in credentials.PLACES["variables"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shared = [(f"{tmp_path}{place}", pattern) for place, pattern in credentials.PLACES["shared"]]
    monkeypatch.setitem(credentials.PLACES, "shared", shared)
    monkeypatch.setattr(os, "access", lambda *_: False)
    return tmp_path


URL = "url = 'https://me:canary@mirror.example/t/canary'"
# What holds a credential, and what does not.
TEXTS = {
    "any": ("canary", ""),
    "url": (URL, "index-url = https://mirror.example/simple"),
    "conda": (URL, "channels: [https://mirror.example/c]"),
    "git": ("[http] extraheader = AUTHORIZATION: basic canary", "[user] name = me"),
    "npm": ("_authToken=canary", "_authToken=${NPM_TOKEN}"),
    "auth": ('{"auths": {"m": {"auth": "canary"}}}', '{"auths": {"mirror.example": {}}}'),
}


def test_each_file_with_a_credential_is_named_and_not_read_out(
    cpu: View, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a home, for all users, and where a variable says."""
    assert credentials.judge(cpu, [credentials.measure(RANK)]).status == PASS
    places = [(home / name, pattern) for name, pattern in credentials.PLACES["home"]]
    places += [(Path(name.replace("*", "mine")), pattern) for name, pattern in credentials.PLACES["shared"]]
    for name, below, pattern in credentials.PLACES["variables"]:
        monkeypatch.setenv(name, str(home / "elsewhere" / name))
        places.append((home / "elsewhere" / name / below, pattern))
    wrong = []
    for path, pattern in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        secret, harmless = TEXTS[pattern]
        for text in (harmless, secret):
            path.write_text(text)
            measured = credentials.measure(RANK)
            named = str(path) in credentials.judge(cpu, [measured]).summary
            if named is not (text == secret) or "canary" in json.dumps(measured):
                wrong.append((path, text))
        path.unlink()
    assert wrong == []


@pytest.mark.parametrize("at", ["image", "machine"])
def test_every_home_is_looked_into_in_an_image_and_only_ones_own_on_a_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr(image_config, "is_image", lambda: at == "image")
    seen: list[str] = []

    def glob(path: Path, _: str) -> list[Path]:
        seen.append(str(path))
        return []

    monkeypatch.setattr(Path, "glob", glob)
    credentials.measure(RANK)
    assert home
    assert ("/home" in seen) == (at == "image")


@each("secrets", [[], ["history, 3 from the last: HF_TOKEN"]])
def test_an_images_history_is_judged_and_its_reading_told(cpu: View, secrets: list[str]) -> None:
    image = {"runs_as": "1000", "program": "tini", "history": 14, "secrets": secrets}
    view = dataclasses.replace(cpu, image=image)
    clean = {"rank": 0, "image": True, "prefix": "/venv", "files": [], "variables": []}
    outcome = credentials.judge(view, [clean])
    assert outcome.status == (FAIL if secrets else PASS)
    assert (secrets[0] if secrets else "14 instructions") in outcome.summary


@each(
    "name, value, secret",
    [
        ("HF_TOKEN", "canary", True),
        ("PIP_INDEX_URL", "https://me:canary@mirror.example/simple", True),
        ("PIP_INDEX_URL", "https://mirror.example/simple", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token", False),
        ("HF_TOKEN", "", False),
        ("SSH_ASKPASS", "/usr/bin/ask", False),
        ("MAX_TOKENS", "4096", False),
        ("USE_AUTH_TOKEN", "true", False),
        ("MODEL", "hf_" + "canary" * 6, True),
        ("REMOTE", "https://" + "canary" * 4 + "@git.example/x", True),
    ],
)
def test_variables_that_hold_secrets_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, *, secret: bool
) -> None:
    assert home
    with monkeypatch.context() as here:
        here.setenv(name, value)
        measured = credentials.measure(RANK)
    assert (name in measured["variables"]) == secret
    assert "canary" not in json.dumps(measured)


def test_an_image_that_holds_a_credential_fails_and_a_machine_is_warned(cpu: View) -> None:
    data = {"rank": 0, "image": False, "prefix": "/venv", "files": ["/root/.netrc"], "variables": []}
    assert credentials.judge(cpu, [data]).status == WARN
    assert credentials.judge(cpu, [{**data, "image": True}]).status == FAIL
    assert credentials.judge(cpu, [{**data, "files": ["/venv/pip.conf"]}]).status == FAIL
    assert credentials.judge(cpu, []).status == ERROR


@each(
    "change, status, word",
    [
        ({}, PASS, "30 libraries load"),
        ({"broken": {"libx.so": NO_DRIVER}}, PASS, "30 libraries load"),
        ({"beside": ["/usr/lib/libnccl.so.2"]}, PASS, "1 copy elsewhere that nothing loads"),
        ({"taken": "x"}, ERROR, "not known"),
        ({"tried": 0}, ERROR, "no library"),
        ({"broken": None}, ERROR, "no library"),
    ],
)
def test_libraries_on_each_side(change: dict[str, Any], status: str, word: str) -> None:
    outcome = shared_libraries.judge(gpu_view("h100x8"), [{**LOADED, **change}])
    assert outcome.status == status
    assert word in outcome.summary


def test_no_torch_is_a_skip() -> None:
    bare = gpu_view("h100x8", torch=None)
    assert shared_libraries.judge(bare, []).status == SKIP
    assert compile_prerequisites.judge(bare, []).status == SKIP


def test_a_library_the_loader_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    library = tmp_path / "libbroken.so"
    library.write_bytes(b"not a library")
    complaint = str(shared_libraries._load(library))  # noqa: SLF001 (the loader's own complaint)
    assert "invalid ELF header" in complaint or "too short" in complaint


def package(site: Path, name: str, version: str, *requires: str) -> None:
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    plant(site, {f"{name}-{version}.dist-info/METADATA": "\n".join(lines) + "\n"})


def measured_in(monkeypatch: pytest.MonkeyPatch, *sites: Path) -> dict[str, Any]:
    """Return what is measured where these packages alone are installed."""
    actual = importlib.metadata.distributions
    with monkeypatch.context() as here:
        here.setattr(importlib.metadata, "distributions", lambda: actual(path=[*map(str, sites)]))
        return requirements.measure(RANK)


NVCC = [("nvidia-cuda-runtime", "13.0.96"), ("nvidia-cuda-nvcc", "13.2.86")]


@each(
    "packages, status, word",
    [
        ([("a", "1.0", "b>=1"), ("b", "1.2")], PASS, "2 packages without a conflict"),
        ([("a", "1.0", 'b; extra == "x"', 'c; python_version < "3"')], PASS, "1 package without a conflict"),
        ([("a", "1.0", "B_c.d>=1"), ("b-c-d", "1.0rc1")], WARN, "and has 1.0rc1"),
        ([("a", "1.0", "this is no requirement (")], PASS, "without a conflict"),
        # PyTorch 2.9.1's own advice (pytorch/pytorch#166643), and what SGLang's images do (sgl-project/sglang#35696).
        ([("torch", "2.9", "nvidia-cudnn-cu12==9.10.2"), ("nvidia-cudnn-cu12", "9.16.0")], PASS, "2 packages"),
        ([("torch", "2.13", "nvidia-nccl-cu13 (==2.29.7)"), ("nvidia_nccl_cu13", "2.30.7")], PASS, "2 packages"),
        ([("torch", "2.9", "nvidia-cudnn-cu12==9.10.2"), ("nvidia-cudnn-cu12", "9.8.0")], FAIL, "has 9.8.0"),
        ([("torch", "2.3", "nvidia-cudnn-cu12==8.9.2"), ("nvidia-cudnn-cu12", "9.1.0")], FAIL, "has 9.1.0"),
        ([("torch", "2.9", "nvidia-cudnn-cu12==9.*"), ("nvidia-cudnn-cu12", "8.9")], FAIL, "has 8.9"),
        ([("torch", "2.12", "nvidia-cublas==13.1.1"), ("nvidia-cublas", "13.5.1")], FAIL, "has 13.5.1"),
        # By apt, whose python3-gi lacks pycairo everywhere: openvinotoolkit/openvino#5061.
        ([("PyGObject", "3.42.1", "pycairo")], PASS, "1 package"),
        ([("PyGObject", "3.42.1", "pycairo"), ("torch", "1.13", "gone")], FAIL, "torch 1.13 needs gone"),
        ([("nvidia-nccl-cu12", "2.21"), ("cupy", "13", 'nvidia-nccl-cu12; extra == "all"')], PASS, "2 packages"),
        ([("nvidia-cudnn-cu12", "9.1"), ("nvidia-ml-py", "12")], PASS, "2 packages"),
        # Resolvers take the newest nvcc beside torch's headers (vllm-project/vllm#44305, ls1intum/edutelligence#687).
        ([*NVCC, ("vllm", "0.1")], WARN, "nvcc==13.0.*, and has 13.2.86"),
        (NVCC, PASS, "2 packages"),  # JAX runs it, and compiles nothing with these headers
        ([NVCC[0], ("nvidia-nvvm", "13.1.80"), ("vllm", "0.1")], PASS, "3 packages"),
        ([("nvidia-cuda-runtime", "13.0.96"), ("nvidia-nvvm", "13.0.88")], PASS, "2 packages"),
        ([("nvidia-nccl-cu12", "2.21"), ("nvidia-modelopt", "0", "nvidia-nccl-cu12")], PASS, "2 packages"),
        ([("nvidia-nccl-cu12", "2.21"), ("nvidia-dali-cuda120", "1")], WARN, "is there still: nvidia-nccl-cu12"),
    ],
)
def test_requirements_on_each_side(
    cpu: View,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    packages: list[tuple[str, ...]],
    status: str,
    word: str,
) -> None:
    site = tmp_path / str(len([*tmp_path.iterdir()]))
    for name, version, *requires in packages:
        package(site, name, version, *requires)
    monkeypatch.setattr(requirements, "APT", str(site) if packages[0][0] == "PyGObject" else "/nowhere")
    outcome = requirements.judge(cpu, [measured_in(monkeypatch, site)])
    assert (outcome.status, word in outcome.summary) == (status, True), outcome


def test_what_apt_installed_is_excused_of_apts_own_and_of_what_is_absent_alone(
    cpu: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt, local = tmp_path / "apt", tmp_path / "local"
    monkeypatch.setattr(requirements, "APT", str(apt))
    package(apt, "scipy", "1.8.0", "numpy<1.25", "pycairo")
    package(apt, "numpy", "1.26")
    assert requirements.judge(cpu, [measured_in(monkeypatch, apt)]).status == PASS
    package(local, "numpy", "2.1.0")
    outcome = requirements.judge(cpu, [measured_in(monkeypatch, local, apt)])
    assert (outcome.status, outcome.details["broken"]) == (WARN, ["scipy 1.8.0 needs numpy<1.25, and has 2.1.0"])


def test_of_two_versions_of_a_package_the_one_that_python_imports_counts(
    cpu: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    package(first, "torch", "2.8", "sympy>=1.13")
    package(first, "sympy", "1.14")
    package(second, "Sympy", "1.11")
    package(second, "torch", "1.13", "gone==1")
    outcome = requirements.judge(cpu, [measured_in(monkeypatch, first, second)])
    assert outcome.status == PASS, outcome
    assert outcome.details["shadowed"] == ["Sympy 1.11, hidden by 1.14", "torch 1.13, hidden by 2.8"]
    outcome = requirements.judge(cpu, [measured_in(monkeypatch, second, first)])
    assert (outcome.status, outcome.value) == (FAIL, 1)
    assert "torch 1.13 needs gone, which is not installed" in outcome.summary


@each(
    "where, needs, word",
    [
        ("first", "sympy>=1.13", "sympy 1.14, hidden by 1.12: uninstall what hides it"),
        ("first", "sympy>=1.15", ""),
        ("first", "sympy-plot", ""),
        ("none", "sympy>=1.13", ""),
    ],
)
def test_only_a_fitting_version_that_the_users_own_site_hides_is_a_remedy(
    cpu: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, needs: str, word: str
) -> None:
    first, second = (tmp_path / f"{name}{len([*tmp_path.iterdir()])}" for name in ("first", "second"))
    package(first, "sympy", "1.12")
    package(second, "sympy", "1.14")
    package(second, "torch", "2.8", needs)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str({"first": first}.get(where)))
    outcome = requirements.judge(cpu, [measured_in(monkeypatch, first, second)])
    assert (outcome.status, "hidden by" in outcome.remedy) == (FAIL, bool(word)), outcome
    assert word in outcome.remedy


def test_what_is_imported_and_no_metadata_asks_for_is_a_warning(
    cpu: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch 2.6 to 2.8 (pytorch/pytorch#163946), and what lacks pkg_resources (tensorflow/tensorboard#7064)."""
    rendezvous = ("torch/distributed/elastic/rendezvous/registry.py", "from importlib_metadata import entry_points\n")
    origin = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    package(tmp_path, "torch", "2.7.1")
    for file, text, version, there, word in (
        (*rendezvous, (3, 9), None, "torchrun needs importlib_metadata"),
        (*rendezvous, (3, 10), None, ""),
        ("torch/utils/cpp_extension.py", "from pkg_resources import x\n", (3, 12), None, "cpp_extension needs pkg_res"),
        ("tensorboard/default.py", "import pkg_resources\n", (3, 12), None, "tensorboard needs pkg_resources"),
    ):
        plant(tmp_path, {file: text})
        found = {"torch": origin, "tensorboard": origin, "importlib_metadata": there, "pkg_resources": there}
        with monkeypatch.context() as here:
            here.setattr(importlib.util, "find_spec", found.get)
            here.setattr(sys, "version_info", version)
            measured = measured_in(monkeypatch, tmp_path)
            here.setattr(requirements, "READERS", ())
            unread = measured_in(monkeypatch, tmp_path)
        (tmp_path / file).unlink()
        outcome = requirements.judge(cpu, [measured])
        assert (outcome.status, word in outcome.summary) == (WARN if word else PASS, True), outcome
        assert requirements.judge(cpu, [unread]).status == (WARN if word else SKIP)


def test_the_copy_of_packaging_that_pip_has_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "READERS", ("packaging_that_is_not_there", "pip._vendor.packaging"))
    assert requirements.measure(RANK)["reader"] == "pip"


def test_without_a_reader_of_requirements_it_is_a_skip_and_without_packages_an_error(cpu: View) -> None:
    assert requirements.judge(cpu, [{"rank": 0, "packages": 5, "reader": None}]).status == SKIP
    assert requirements.judge(cpu, [{"rank": 0, "packages": 0}]).status == ERROR
    assert requirements.judge(cpu, [{"rank": 0, "packages": 5, "reader": "packaging"}]).status == ERROR
