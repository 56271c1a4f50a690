"""A build context is self-contained, mirror-configured, and leaks nothing; its scripts hold every file to its hash."""

import base64
import hashlib
import os
import py_compile
import shutil
import stat
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.build_context import Context, network, sources, write
from envcheck.images.lock_with_uv import lock_cell
from envcheck.images.lockfile import Lock, Pin
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.images.wheels import local_wheels
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import HuggingFace, Index, Profile
from tests.certificates import signed
from tests.wheels import wheel

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")
CANARY = "hunter2-canary"
DEAD = Index(url="http://127.0.0.1:9/simple")


@pytest.fixture
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, CELL, locks)


@pytest.fixture
def locked(matrix: Matrix, site: Any) -> ImageSpec:
    profile = Profile(name="t", pypi=[Index(url=f"{site.url}/simple")])
    return make_spec(matrix, CELL, lock_cell(matrix, CELL, profile))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path / "venv"


def install(context: Context, group: str, target: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "ENVCHECK_UV": str(context.path / "bin/uv"),
        "ENVCHECK_LOCK": str(context.path / "images" / str(CELL) / f"{group}.lock"),
        "ENVCHECK_CACHE": str(target.parent / "cache"),
        "ENVCHECK_FROM": str(context.path / "mirror" / group),
        "UV_HTTP_RETRIES": "0",
    }
    command = ["sh", str(context.path / "templates/context/install/install.sh"), group, str(target)]
    return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=False)


def installed(target: Path) -> set[str]:
    return {path.name.split("-")[0] for path in target.glob("lib/*/site-packages/*.dist-info")}


def prove(context: Context, target: Path, *promises: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(target / "bin/python"),
        "-I",
        "-B",
        str(context.path / "templates/context/prove/prove.py"),
        *promises,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_https_mirrors_of_apt_come_with_this_machine_s_roots(
    spec: ImageSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """github.com/tuna/issues/issues/2396: a slim base has no certificates, and all presets' mirrors are https."""
    root = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (tmp_path / "roots.pem").write_text(f"# a comment\n{root}")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    for scheme, written in (("https", root), ("http", None)):
        context = write([spec], Profile(name="t", apt=[f"{scheme}://mirror.example"]), tmp_path / scheme)
        ca = context.path / "mirror/os/ca.pem"
        assert (ca.read_text() if ca.exists() else None) == written


def test_modes_do_not_depend_on_the_umask_nor_change_the_sites_files(
    locked: ImageSpec, torch_wheels: Path, tmp_path: Path
) -> None:
    wheel = torch_wheels / "torch-2.8.0-py3-none-any.whl"
    wheel.chmod(0o600)
    before = os.umask(0o077)
    try:
        context = write(
            [locked], Profile(name="t", pypi=[Index(url=str(torch_wheels), kind="find-links")]), tmp_path / "c"
        )
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in context.path.rglob("*")}
    assert modes[context.path / "bin/uv"] == 0o755
    assert {mode for path, mode in modes.items() if path.is_file() and path.parent.name != "bin"} == {0o644}
    assert stat.S_IMODE(wheel.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "python", "fits"),
    [
        ("x-1-cp311-cp311-manylinux_2_28_x86_64.whl", "3.11", True),
        ("x-1-cp311-cp311-manylinux_2_28_x86_64.whl", "3.12", False),
        ("x-1-cp39-abi3-manylinux_2_28_x86_64.whl", "3.12", True),
        ("x-1-cp313-abi3-manylinux_2_28_x86_64.whl", "3.12", False),
        ("x-1-py2.py3-none-any.whl", "3.10", True),
        ("x-1.whl", "3.10", False),
        ("x-2-py3-none-any.whl", "3.10", False),
    ],
)
def test_a_file_for_another_python_is_not_carried(tmp_path: Path, name: str, python: str, *, fits: bool) -> None:
    (tmp_path / name).write_bytes(b"x")
    pin = Pin(name="x", version="1", sha256=[hashlib.sha256(b"x").hexdigest()])
    lock = Lock(group="base", index="pypi", pins=[pin])
    assert (
        bool(local_wheels([lock], Profile(name="t", pypi=[Index(url=str(tmp_path), kind="find-links")]), python))
        is fits
    )


def test_everything_carried_needs_no_network(
    locked: ImageSpec, torch_wheels: Path, tmp_path: Path, target: Path
) -> None:
    links = Index(url=str(torch_wheels), kind="find-links")
    context = write([locked], Profile(name="t", pypi=[DEAD, links]), tmp_path / "ctx")
    assert context.carried == {"nvidia": True, "torch": True, "base": True, "envcheck": False}
    for group in ("nvidia", "torch", "base"):
        completed = install(context, group, target)
        assert completed.returncode == 0, completed.stderr
        assert f"envcheck: {group}: used files-in-the-context" in completed.stderr
    assert "torch" in installed(target)
    assert list(target.glob("lib/*/site-packages/torch/__pycache__/*.pyc"))


def test_without_a_mirror_the_given_wheels_are_taken_else_the_default_index_of_the_lock(
    locked: ImageSpec, torch_wheels: Path, tmp_path: Path, target: Path
) -> None:
    context = write([locked], Profile(name="none"), tmp_path / "ctx")
    shutil.rmtree(context.path / "mirror")
    completed = install(context, "base", target, ENVCHECK_WHEELS=str(torch_wheels))
    assert "envcheck: base: used files-given" in completed.stderr, completed.stderr
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "asked $*" >&2\nexit 1\n')
    uv.chmod(0o755)
    lock = tmp_path / "torch.lock"
    for index, expected in {"pypi": False, "pytorch/cu128": True}.items():
        lock.write_text(f"# index: {index}\n")
        asked = install(context, "torch", target, ENVCHECK_UV=str(uv), ENVCHECK_LOCK=str(lock), ENVCHECK_WHEELS="")
        assert (asked.returncode, "--torch-backend cu128" in asked.stderr) == (1, expected)
        assert not {"--no-index", "--default-index"} & set(asked.stderr.split())


def test_uv_is_the_locked_one(tmp_path: Path) -> None:
    made = wheel(tmp_path / "wheels", "uv", files={"uv-1.0.data/scripts/uv": "#!python\n"})
    lock = tmp_path / "uv.lock"
    script = str(data_path("templates") / "context/uv/uv.sh")
    env = {"PATH": os.environ["PATH"], "ENVCHECK_LOCK": str(lock), "ENVCHECK_WHEELS": str(made.parent)}
    for digest, expected in {hashlib.sha256(made.read_bytes()).hexdigest(): 0, "0" * 64: 1}.items():
        lock.write_text(f"uv==1.0 --hash=sha256:{digest}\n")
        done = subprocess.run(["sh", script, str(tmp_path / "uv")], env=env, capture_output=True, check=False)
        assert (done.returncode, (tmp_path / "uv").exists()) == (expected, not expected), done.stderr
        (tmp_path / "uv").unlink(missing_ok=True)


def test_bytecode_holds_hashes_so_that_two_builds_are_equal(tmp_path: Path) -> None:
    for name, text in {"a": "A = 1\n", "b": "def f[\n", "c": "C = 3\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    py_compile.compile(str(tmp_path / "a.py"))
    script = data_path("templates") / "context/install/bytecode.py"
    for _ in range(2):
        subprocess.run([sys.executable, "-I", "-B", script, tmp_path], check=True)
    compiled = {path.name.partition(".")[0]: path.read_bytes()[4:8] for path in tmp_path.glob("__pycache__/*")}
    assert compiled == {"a": b"\x03\0\0\0", "c": b"\x03\0\0\0"}


def test_the_proof_passes_for_what_was_promised_and_names_what_was_not(
    locked: ImageSpec, torch_wheels: Path, tmp_path: Path, target: Path
) -> None:
    links = Index(url=str(torch_wheels), kind="find-links")
    context = write([locked], Profile(name="t", pypi=[links]), tmp_path / "ctx")
    for group in ("nvidia", "torch", "base"):
        install(context, group, target)
    good = [f"{name}={locked.promises[name]}" for name in ("torch", "cuda", "cudnn", "nccl", "arch-list")]
    good.append(f"python={sys.version_info[0]}.{sys.version_info[1]}")
    assert prove(context, target, *good).returncode == 0
    lies = ["torch=2.8.0+cu126", "cuda=12.6", "cudnn=9.10.3", "nccl=2.27.5", "arch-list=sm_80", "python=3.9"]
    for lie in lies:
        name = lie.partition("=")[0]
        completed = prove(context, target, *(lie if promise.startswith(f"{name}=") else promise for promise in good))
        assert (completed.returncode, f"envcheck: proof failed: {name} is" in completed.stderr) == (1, True), lie


def test_a_netrc_gets_in_but_never_lies_in_the_context(
    locked: ImageSpec, site: Any, tmp_path: Path, target: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login site password {CANARY}\n")
    netrc.chmod(0o600)
    site.insists = "Basic " + base64.b64encode(f"site:{CANARY}".encode()).decode()
    profile = Profile(name="t", pypi=[Index(url=f"{site.url}/simple")], netrc=str(netrc))
    context = write([locked], profile, tmp_path / "ctx")
    assert context.secrets == {"netrc": netrc}
    assert [p for p in context.path.rglob("*") if p.is_file() and CANARY.encode() in p.read_bytes()] == []
    assert install(context, "base", target).returncode != 0
    assert install(context, "base", target, ENVCHECK_NETRC=str(netrc)).returncode == 0


def test_a_mirror_behind_a_private_ca_is_trusted_only_with_the_profiles_ca(
    locked: ImageSpec, torch_wheels: Path, serve: Callable[..., Any], tmp_path: Path, target: Path
) -> None:
    certified = signed(tmp_path, "127.0.0.1")
    site = serve(torch_wheels.parent / "index", certified.context)
    profile = Profile(name="t", pypi=[Index(url=f"{site.url}/simple")])
    without = write([locked], profile, tmp_path / "without")
    refused = install(without, "base", target)
    assert refused.returncode != 0
    assert "certificate" in refused.stderr
    given = {"ENVCHECK_CA": str(certified.ca)}  # as a secret of a plain docker build
    assert install(without, "base", target, **given).returncode == 0
    trusting = msgspec.structs.replace(profile, ca=str(certified.ca))
    completed = install(write([locked], trusting, tmp_path / "with"), "base", target)
    assert completed.returncode == 0, completed.stderr
    assert installed(target) == {"numpy", "pip", "setuptools", "sympy"}


def test_apt_walks_the_profiles_mirrors_in_order_and_nothing_of_it_is_copied(spec: ImageSpec, tmp_path: Path) -> None:
    profile = Profile(name="t", apt=["https://a.example/", "https://b.example"])
    context = write([spec], profile, tmp_path / "ctx")
    mirrors = (context.path / "mirror/os/apt/debian.mirrors").read_text()
    assert mirrors == "https://a.example/debian\tpriority:1\nhttps://b.example/debian\tpriority:2\n"
    assert "debian-security" in (context.path / "mirror/os/apt/envcheck.sources").read_text()
    assert "COPY" not in (context.path / "Dockerfile").read_text()
    assert "example" not in (context.path / "Dockerfile").read_text()


def test_keep_leaves_one_configuration_without_credentials_and_only_when_asked(spec: ImageSpec, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(CANARY)
    profile = Profile(
        name="t",
        pypi=[Index(url="/srv/wheels", kind="find-links"), Index(url="https://a.example/simple")],
        pytorch=[Index(url="https://a.example/whl/{variant}")],
        hf=HuggingFace(endpoint="https://hf.example/"),
        netrc=str(netrc),
        keep=True,
    )
    context = write([spec], profile, tmp_path / "ctx")
    text = (context.path / "Dockerfile").read_text()
    assert text.count("COPY keep /") == 1
    assert 'HF_ENDPOINT="https://hf.example"' in text
    assert 'HF_HUB_DISABLE_XET="1"' in text
    assert (context.path / "keep/etc/pip.conf").read_text() == "[global]\nindex-url = https://a.example/simple\n"
    kept = msgspec.toml.decode((context.path / "keep/etc/uv/uv.toml").read_bytes())
    assert [(i["url"], i.get("default", False)) for i in kept["index"]] == [
        ("https://a.example/simple", True),
        ("https://a.example/whl/cu128", False),
    ]
    assert CANARY not in text


def test_a_directory_that_holds_anything_is_refused(spec: ImageSpec, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write([spec], Profile(name="none"), tmp_path / "empty")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    for taken in (tmp_path / "empty", tmp_path / "mine", tmp_path / "mine/thesis.tex"):
        with pytest.raises(ConfigError, match="give --output a new or empty directory"):
            write([spec], Profile(name="none"), taken)
    assert (tmp_path / "mine/thesis.tex").exists()


def test_torch_of_its_own_index_goes_through_the_profile_or_the_clients_default() -> None:
    lock = Lock(group="torch", index="pytorch/cu126", pins=[])
    mirror = Index(url="https://a.example/whl/{variant}")
    flat = Index(url="https://a.example/flat", kind="find-links")
    rows = sources("torch", lock, Profile(name="t", pytorch=[mirror, flat, Index(url="default")]), carried=True)
    assert [(row.kind, row.url) for row in rows] == [
        ("carried", "-"),
        ("simple", "https://a.example/whl/cu126"),
        ("find-links", "https://a.example/flat"),
        ("torch-backend", "cu126"),
    ]
    assert [row.kind for row in sources("torch", lock, Profile(name="none"), carried=False)] == ["torch-backend"]
    assert network(rows) == "none"
    assert network(rows[1:]) == "default"
