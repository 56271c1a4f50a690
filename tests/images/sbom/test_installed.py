"""The bill of materials against an environment that was built from the same locks."""

import json
import subprocess
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from envcheck.images.sbom import components, read
from envcheck.images.spec import load_spec, select
from envcheck.matrix.file.load import load

_ASK = """
import importlib.metadata as m, json, sysconfig
print(json.dumps([sysconfig.get_path("purelib"), [[d.name, d.version] for d in m.distributions()]]))
"""


@pytest.mark.torch
def test_what_is_installed_is_what_the_document_lists(torch_python: Path) -> None:
    shown = subprocess.run([str(torch_python), "-I", "-c", _ASK], capture_output=True, text=True, check=True)
    site_packages, distributions = json.loads(shown.stdout)
    matrix = load()
    (cell,) = select(matrix, ["torch2.13.0-cpu-py311"])
    listed = components(load_spec(matrix, cell), None, read([Path(site_packages)]))
    installed = {(canonicalize_name(name), version) for name, version in distributions}
    assert {(one["name"], one["version"]) for one in listed} == installed
    assert [one["name"] for one in listed if "NOASSERTION" in str(one["licenses"])] == []
