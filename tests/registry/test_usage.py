"""What is wrong on the command line or in a local file is one line and exit 2, before a registry is asked."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.net.client import _SentRequest
from envcheck.mirrors.net.credentials import HostCredential, OriginLogin
from envcheck.registry import envelope
from envcheck.registry.logins import Account
from envcheck.reports import model
from tests import proofs
from tests.registry.oci.fakes import FakeRegistry
from tests.registry.site import Site
from tests.tables import beside, each

CASES = beside(__file__)


@pytest.fixture
def local(registry: FakeRegistry, tmp_path: Path) -> Site:
    site = Site(registry.netloc, tmp_path)
    for name, text in {
        "junk": "{",
        "nan.toml": "[proof]\nmax_age = nan",
        "gpus.toml": '[proof]\nkeys = ["release.pub"]\n[promote]\ngpus = ["H1000 x8"]',
        "cpu.toml": '[proof]\nkeys = ["release.pub"]\nmode = "cpu"\n[promote]\ngpus = ["H100 x8"]',
        "empty": "",
        "keyless.toml": '[proof]\nidentities = [{identity = "a", issuer = "b"}]\ntrusted_root = "junk"',
    }.items():
        (tmp_path / name).write_text(text)
    model.write(proofs.whole(proofs.report("cpu")), tmp_path / "report.json")
    return site


def refused(site: Site, registry: FakeRegistry, command: str, *options: str) -> tuple[int, str]:
    """Return how a command ends: REPO stands for the repository, DIR for the directory of files."""
    words = [word.replace("REPO", site.name).replace("DIR", str(site.folder)) for word in options]
    ended = site.run(command, *words)
    assert registry.requests == [], "a registry was asked"
    return ended


@pytest.mark.parametrize("command", ["proof REPO:tag", "pull REPO:tag", "pull --from REPO"])
@pytest.mark.parametrize(("options", "why"), CASES["node"].items())
def test_a_node_or_policy_that_is_wrong_is_said_first(
    command: str, options: str, why: str, local: Site, registry: FakeRegistry
) -> None:
    status, message = refused(local, registry, *command.split(), *options.split())
    assert (status, why.replace("DIR", str(local.folder)) in message) == (2, True), message
    assert "\n" not in message or "Usage:" in message


@each("words, why", CASES["mistyped"])
def test_what_was_mistyped_is_said_first(words: str, why: str, local: Site, registry: FakeRegistry) -> None:
    digest = f"sha256:{'0' * 64}"
    words = (
        words.replace("POLICY", str(local.policy)).replace("DIGEST", digest).replace("OWN", digest.replace(":", "-"))
    )
    status, message = refused(local, registry, *words.split())
    assert (status, why.replace("DIR", str(local.folder)) in message) == (2, True), message


def test_a_trust_configuration_that_is_none_is_said_first(local: Site, registry: FakeRegistry) -> None:
    """Where sigstore is not installed, that is said."""
    options = ("--report", "DIR/report.json", "--keyless", "--trust-config", "DIR/junk")
    status, message = refused(local, registry, "publish", "REPO:tag", *options)
    installed = importlib.util.find_spec("sigstore") is not None
    why = "not a client trust configuration" if installed else envelope.INSTALL
    assert (status, why in message) == (2, True), message


@each("change, why", [({"target": proofs.recorded("cpu").target}, "is of a Python"), ({"ended": ""}, "is unfinished")])
def test_a_report_that_proves_nothing_of_any_image_is_said_first(
    change: dict[str, Any], why: str, local: Site, registry: FakeRegistry
) -> None:
    model.write(proofs.whole(proofs.report("cpu", **change)), local.folder / "report.json")
    options = ("--report", "DIR/report.json", "--key", "DIR/release")
    status, message = refused(local, registry, "publish", "REPO:tag", *options)
    assert (status, why in message) == (1, True), message


def test_a_gpu_that_only_a_proof_knows_is_named_as_the_driver_does(local: Site) -> None:
    image = local.image("one", "one")
    local.attach(image)
    name = f"{local.name}@{image.digest}"
    assert local.chosen(name, "--gpu", "NVIDIA X999 Future", "--driver", "999.0.1") == image.digest


LATE = """
import inspect, sys
import msgspec
import envcheck.registry.choosing, envcheck.registry.publishing, envcheck.registry.repository
from envcheck.struct_types import LightRecord

modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("envcheck.registry.")]
kinds = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
kinds = {kind for kind in kinds if kind.__module__.startswith("envcheck.reg")}
structs = [kind for kind in kinds if issubclass(kind, msgspec.Struct) and not issubclass(kind, LightRecord)]
late = set()
for kind in structs:
    # What msgspec calls to learn the fields of a type.
    sys.setprofile(lambda frame, *_: late.add(kind.__name__) if frame.f_code.co_name.startswith("get_class_") else None)
    msgspec.json.Decoder(kind)
    sys.setprofile(None)
print(len(structs), *sorted(late))
"""


def test_no_struct_of_the_registry_is_learned_when_it_is_first_decoded() -> None:
    completed = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    structs, *late = completed.stdout.split()
    assert late == []
    assert int(structs) > 20


def test_a_login_shows_no_secret_in_its_repr() -> None:
    secret = "hunter2"  # noqa: S105 (it is none)
    logins = (
        Account(basic=secret, identity=secret),
        OriginLogin("https://registry.example", secret),
        HostCredential("registry.example", frozenset(), secret),
        _SentRequest("POST", {}, f"refresh_token={secret}".encode(), None),
    )
    assert [repr(login) for login in logins] == [f"{type(login).__name__}(...)" for login in logins]
    assert secret not in f"{logins}"
