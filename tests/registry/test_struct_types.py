"""All structs of the registry are known to msgspec before a thread uses them: otherwise two threads can crash."""

from __future__ import annotations

import subprocess
import sys

LATE = """
import inspect, sys
import msgspec
import envcheck.registry.choosing, envcheck.registry.publishing, envcheck.registry.oci.opening

modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("envcheck.registry.")]
kinds = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
structs = [kind for kind in kinds if issubclass(kind, msgspec.Struct) and kind.__module__.startswith("envcheck.reg")]
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
