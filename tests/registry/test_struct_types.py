"""Structs of the registry: known to msgspec before two threads can crash on them, and without secrets in a repr."""

import subprocess
import sys

from envcheck.mirrors.net.client import _SentRequest
from envcheck.mirrors.net.credentials import HostCredential, OriginLogin
from envcheck.registry.logins import Account

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
