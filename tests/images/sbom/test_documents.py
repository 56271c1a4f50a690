"""The bills of materials against the official schemas, and against the locks that they are made from."""

import datetime as dt
import json
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from envcheck.images.build_context import tool_lock
from envcheck.images.sbom import Licence, PackageKey, components, cyclonedx
from envcheck.images.spec import ImageSpec, load_spec, select
from envcheck.matrix.file.load import load
from tests.tables import each

NOW = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.timezone.utc)
CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.8.0-cu128-py312"
LICENCES = {
    PackageKey("torch", "2.8.0"): Licence(expression="BSD-3-Clause AND Apache-2.0 WITH LLVM-exception"),
    PackageKey("nvidia-cudnn-cu12", "9.10.2.21"): Licence(expression="LicenseRef-NVIDIA-Proprietary"),
    PackageKey("mpmath", "1.3.0"): Licence(name="BSD"),
    PackageKey("sympy", "1.14.0"): Licence(name="BSD"),
    PackageKey("jinja2", "3.1.6"): Licence(name="BSD License (mostly)"),
}


def listed(cell: str) -> tuple[ImageSpec, list[dict[str, Any]]]:
    matrix = load()
    (actual,) = select(matrix, [cell])
    spec = load_spec(matrix, actual)
    return spec, components(spec, tool_lock(), LICENCES)


def by_ref(cell: str) -> dict[str, Any]:
    document = json.loads(cyclonedx(*listed(cell), NOW))
    return {one["bom-ref"]: one for one in document["components"]}


@each("cell", [CPU, CUDA])
def test_cyclonedx_is_of_the_strict_schema(cell: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    text = cyclonedx(*listed(cell), NOW)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"hashes"', '"hash"')) is not None


@each("cell", [CPU, CUDA])
def test_each_pin_of_the_locks_is_listed_with_each_hash(cell: str) -> None:
    spec, actual = listed(cell)
    pins = [pin for lock in [*spec.locks, tool_lock()] for pin in lock.pins]
    assert [(one["name"], one["version"], [each["content"] for each in one["hashes"]]) for one in actual] == [
        (pin.name, pin.version, sorted(pin.sha256)) for pin in pins
    ]
    assert len({one["bom-ref"] for one in actual}) == len(actual)
    assert {one["properties"][0]["value"] for one in actual} == {"/opt/venv", "/opt/envcheck"}


@each("cell", [CPU, CUDA])
def test_a_purl_is_in_its_canonical_form(cell: str) -> None:
    for one in listed(cell)[1]:
        parsed = PackageURL.from_string(one["purl"])
        assert parsed.to_string() == one["purl"]
        assert (parsed.name, parsed.version) == (one["name"], one["version"])


def test_a_licence_that_nobody_stated_is_not_asserted() -> None:
    data = by_ref(CUDA)
    assert data["venv-mpmath-1.3.0"]["licenses"] == [{"license": {"name": "BSD"}}]
    assert data["venv-numpy-2.5.5"]["licenses"] == [{"license": {"name": "NOASSERTION"}}]


def test_nvidia_is_named_and_its_licence_is_its_own() -> None:
    data = by_ref(CUDA)
    cudnn, nccl = data["venv-nvidia-cudnn-cu12-9.10.2.21"], data["venv-nvidia-nccl-cu12-2.27.3"]
    assert cudnn["licenses"] == [{"expression": "LicenseRef-NVIDIA-Proprietary"}]
    assert cudnn["supplier"] == nccl["supplier"] == {"name": "NVIDIA Corporation"}
    assert nccl["licenses"] == [{"license": {"name": "NOASSERTION"}}]


def test_the_document_says_what_it_does_not_cover_and_is_the_same_each_time() -> None:
    first, second = (cyclonedx(*listed(CPU), NOW) for _ in range(2))
    assert first == second
    document = json.loads(first)
    assert document["compositions"] == [{"aggregate": "incomplete", "assemblies": ["image"]}]
    spec, actual = listed(CPU)
    assert json.loads(cyclonedx(spec, actual[1:], NOW))["serialNumber"] != document["serialNumber"]
