"""What `envcheck build` refuses before anything runs, and what it makes of its options."""

from pathlib import Path
from typing import Any

import pytest

from envcheck.cli import Settings
from envcheck.cli.building.request import BuildOptions, BuildRequest
from envcheck.errors import ConfigError, EnvcheckError, UnavailableError
from envcheck.images.engines import EngineName

SETTINGS = Settings(None, verbose=False, quiet=False)


def request(found: EngineName = "docker", given: tuple[str, ...] = (), **options: Any) -> BuildRequest:
    """Return the request on an x86_64 machine where `auto` finds this engine."""

    def find(name: str) -> EngineName:
        return found if name == "auto" else name  # type: ignore[return-value]  # an engine's name

    return BuildRequest.from_options(BuildOptions(**options), SETTINGS, find, given, machine="x86_64")


ARM: dict[str, Any] = {"platform": "linux/arm64"}
TWO: dict[str, Any] = {"targets": ("devel", "train")}
REFUSED: list[tuple[str, dict[str, Any], EngineName, type[EnvcheckError]]] = [
    ("an environment is of one target", {**TWO, "engine": "venv"}, "docker", ConfigError),
    ("packages on top are locked for one target", {**TWO, "packages": ("einops",)}, "docker", ConfigError),
    ("without a network each target has a base", {**TWO, "network": "none"}, "docker", ConfigError),
    ("without a network each target has a base", {**TWO, "prefetch": True}, "docker", ConfigError),
    ("one TAG names one image", {**TWO, "tag": "own:1"}, "docker", ConfigError),
    ("several --target: only docker and podman", TWO, "venv", UnavailableError),
    ("--platform linux/arm64: only docker and podman", ARM, "venv", UnavailableError),
    ("--tag own:1: only docker and podman", {"tag": "own:1"}, "venv", UnavailableError),
    ("--tag names an image", {"tag": "own:1", "engine": "venv"}, "docker", ConfigError),
    ("--push sends an image, and the engine is venv", {"push": "own", "engine": "venv"}, "docker", ConfigError),
    ("--push own: only docker and podman", {"push": "own"}, "venv", UnavailableError),
    ("--push takes a repository", {"push": "own:1"}, "docker", ConfigError),
    ("--output is for venv, and the engine is podman", {"output": Path("x")}, "podman", ConfigError),
    ("an environment runs on this machine", {**ARM, "engine": "venv"}, "docker", ConfigError),
    ("--prefetch collects the files of this machine", {**ARM, "prefetch": True}, "docker", ConfigError),
    ("its base is bootstrapped, but --base is registry", {**ARM, "base": "registry"}, "docker", ConfigError),
    ("--gpu is for the packages of --with", {"gpus": ("H100",)}, "docker", ConfigError),
    ("--extensions is for the packages of --with", {"extensions": Path("x")}, "docker", ConfigError),
    ("--store is for --prefetch and --with", {"store": Path("x")}, "docker", ConfigError),
    ("--network none is for builds of images", {"network": "none"}, "venv", ConfigError),
    ("but --network is host", {"prefetch": True, "network": "host"}, "docker", ConfigError),
    ("but --base registry installs packages", {"prefetch": True, "base": "registry"}, "docker", ConfigError),
    ("is not a valid image name", {"tag": "Own/UPPER"}, "docker", ConfigError),
]


def refusal(found: EngineName, options: dict[str, Any]) -> EnvcheckError | None:
    try:
        request(found, **options)
    except EnvcheckError as error:
        return error
    return None


def test_options_that_contradict_each_other_are_refused_with_what_to_do() -> None:
    refused = [(reason, kind, refusal(engine, options)) for reason, options, engine, kind in REFUSED]
    assert [
        (reason, error)
        for reason, kind, error in refused
        if not (isinstance(error, kind) and reason in error.message and error.fix)
    ] == []


def test_a_request_says_what_its_options_come_to() -> None:
    plain = request()
    assert (plain.foreign, plain.network, plain.base, plain.tag) == (False, None, "auto", None)
    offline = request("podman", prefetch=True, targets=("devel", "devel"))
    assert (offline.engine, offline.network, offline.base) == ("podman", "none", "bootstrap")
    arm = request(platform="linux/arm64", tag="registry.example/own:1")
    assert (arm.foreign, arm.base) == (True, "bootstrap")
    assert (arm.repository, arm.tag) == ("registry.example/own", "1")


def test_a_store_or_network_of_the_environment_is_for_every_command() -> None:
    assert request(given=("store",), store=Path("x")).options.store == Path("x")
    assert request("venv", ("network",), network="none").network == "none"


def test_a_plan_says_that_it_needs_the_engine_that_does_not_answer() -> None:
    def silent(_name: str) -> EngineName:
        message = "docker does not answer"
        raise UnavailableError(message, fix="start it")

    for dry_run, more in ((False, ""), (True, "; a plan needs the engine's list of images")):
        with pytest.raises(UnavailableError) as refused:
            BuildRequest.from_options(BuildOptions(engine="docker", dry_run=dry_run), SETTINGS, silent)
        assert refused.value.message == f"docker does not answer{more}"
