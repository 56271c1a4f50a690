"""An image's bill of materials (CycloneDX), from its locks and the image; licences are what packages state."""

import datetime as dt
import email.message
import email.parser
import json
import shlex
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envcheck import __version__
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.images.lockfile import Lock, Pin
from envcheck.images.spec import LABEL_PREFIX, ImageSpec
from envcheck.matrix.facts.model import PYTORCH
from envcheck.node import subprocesses

NVIDIA: Final = "LicenseRef-NVIDIA-Proprietary"
_NVIDIA_NAMES: Final = {"nvidia proprietary software", "nvidia proprietary", NVIDIA.lower()}
# A licence's own text, pasted into the field of its name, is longer.
_LONGEST: Final = 100
_NO_NAME: Final = {"", "unknown", "none", "other/proprietary license"}


class Licence(NamedTuple):
    """A licence: an SPDX expression, or else the name that the package gives it."""

    expression: str | None = None
    name: str | None = None


class PackageKey(NamedTuple):
    """A package by its normalised name and version."""

    name: str
    version: str


def stated(metadata: email.message.Message) -> Licence | None:
    """Return the licence that a METADATA file states: its expression, its one-line name, or its classifiers."""
    expression = str(metadata.get("License-Expression") or "").strip()
    if expression:
        return _named(expression)
    name = str(metadata.get("License") or "").strip()
    if len(name) <= _LONGEST and "\n" not in name and name.lower() not in _NO_NAME:
        return _named(name)
    classified = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License :: ")]
    names = sorted({name for name in classified if name.lower() not in _NO_NAME | {"osi approved"}})
    return _named(" and ".join(names)) if names else None


def _named(text: str) -> Licence:
    """Return an expression where SPDX knows the text as one, NVIDIA's under one name, else the text."""
    if text.lower() in _NVIDIA_NAMES:
        return Licence(expression=NVIDIA)
    try:
        return Licence(expression=canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return Licence(name=text)


def read(directories: Iterable[Path]) -> dict[PackageKey, Licence]:
    """Return the licences of all wheels and installed packages in these directories (not below them)."""
    licences: dict[PackageKey, Licence] = {}
    for directory in directories:
        for package, metadata in _metadata(directory).items():
            licence = stated(metadata)
            if licence is not None:
                licences.setdefault(package, licence)
    return licences


def _metadata(directory: Path) -> Mapping[PackageKey, email.message.Message]:
    parse = email.parser.Parser().parsestr
    texts = {path: path.read_text("utf-8", "replace") for path in sorted(directory.glob("*.dist-info/METADATA"))}
    texts |= {path: _of_wheel(path) for path in sorted(directory.glob("*.whl"))}
    if not texts:
        message = f"{directory}: no wheel and no installed package lies there"
        raise ConfigError(message, fix="give a directory of *.whl files, or an environment's site-packages")
    parsed = [(path, parse(text, headersonly=True)) for path, text in texts.items()]
    return {_key(path, metadata): metadata for path, metadata in parsed}


def _of_wheel(path: Path) -> str:
    try:
        parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
            return archive.read(name).decode("utf-8", "replace")
    except (InvalidWheelFilename, zipfile.BadZipFile, StopIteration, RuntimeError):
        refuse(f"{path}: not a wheel", "fetch it again, or take it out of the directory")


def _key(path: Path, metadata: email.message.Message) -> PackageKey:
    name, version = str(metadata.get("Name") or ""), str(metadata.get("Version") or "")
    try:
        return PackageKey(canonicalize_name(name), str(Version(version)))
    except InvalidVersion:
        refuse(f"{path}: {version!r} is not a version", "take it out of the directory")


# What a package index says of these names is NVIDIA's; their licences differ (NCCL's is BSD-3-Clause).
_NVIDIA_PREFIX: Final = "nvidia-"
# Any name of ours: the document's identity is then the same wherever it is written.
_NAMESPACE: Final = uuid.UUID("6c1f2f0e-5f43-5f1b-9f0c-2b8f4f0f7b10")
# CycloneDX has no word for a licence that nobody stated; this is SPDX's.
NOT_STATED: Final = "NOASSERTION"
FROM_LOCKS: Final = "From the locks: Python packages with their hashes."


def components(spec: ImageSpec, tool: Lock | None, licences: Mapping[PackageKey, Licence]) -> list[dict[str, Any]]:
    """Return what a target's locks and envcheck's own environment hold, in the order of the layers."""
    parts = [("/opt/venv", lock) for lock in spec.locks] + ([("/opt/envcheck", tool)] if tool else [])
    return [_component(place, lock.index, pin, licences) for place, lock in parts for pin in lock.pins]


def _component(place: str, index: str, pin: Pin, licences: Mapping[PackageKey, Licence]) -> dict[str, Any]:
    expression, name = licences.get(PackageKey(pin.name, str(Version(pin.version))), Licence(name=NOT_STATED))
    nvidias = pin.name.startswith(_NVIDIA_PREFIX)
    return {
        "type": "library",
        "bom-ref": f"{place.rpartition('/')[2]}-{pin.name}-{pin.version}",
        "name": pin.name,
        "version": pin.version,
        "purl": purl(pin.name, pin.version, index),
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in sorted(pin.sha256)],
        "properties": [{"name": f"{LABEL_PREFIX}environment", "value": place}],
        "licenses": [{"expression": expression} if expression else {"license": {"name": name}}],
        **({"supplier": {"name": "NVIDIA Corporation"}} if nvidias else {}),
    }


def purl(name: str, version: str, index: str) -> str:
    """Return the package's URL; one of the PyTorch index says so, since its files differ from those of the name."""
    identity = f"pkg:pypi/{name}@{quote(version, safe='')}"
    if index == "pypi":
        return identity
    return f"{identity}?repository_url={PYTORCH}/whl/{index.removeprefix('pytorch/')}"


def cyclonedx(spec: ImageSpec, listed: Sequence[dict[str, Any]], created: dt.datetime) -> str:
    """Return the document; what the locks do not cover is said to be incomplete."""
    system = any(one["type"] == "operating-system" for one in listed)
    rest = "From the image: the distribution's." if system else "The distribution's packages are not locked."
    promises = [{"name": f"{LABEL_PREFIX}{name}", "value": value} for name, value in sorted(spec.promises.items())]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, spec.tag + json.dumps(listed))}",
        "version": 1,
        "metadata": {
            "timestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", "name": "envcheck", "version": __version__}]},
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": str(spec.cell),
                "version": spec.tag,
                "description": f"{FROM_LOCKS} {rest}",
            },
            "properties": promises,
        },
        "components": listed,
        "compositions": [{"aggregate": "incomplete", "assemblies": ["image"]}],
    }
    return json.dumps(document, indent=1) + "\n"


# From the worst on.
SEVERITIES: Final = ("critical", "high", "medium", "low")
# A scanner fetches its database first, and reads an image of 10 GB.
_SCAN_SECONDS: Final = 1800.0


def vulnerabilities(subject: str) -> list[tuple[str, ...]]:
    """Have Trivy, else Grype, read an image or a bill of materials: severity, id, package, version, fixed versions."""
    tool, of_file = shutil.which("trivy") or shutil.which("grype"), Path(subject).is_file()
    if tool is None:
        message = "neither trivy nor grype is on PATH"
        raise UnavailableError(message, fix="install one: github.com/aquasecurity/trivy, github.com/anchore/grype")
    words = ["--quiet", "--output=json", f"sbom:{subject}" if of_file else subject]
    if Path(tool).name == "trivy":
        words = ["sbom" if of_file else "image", "--quiet", "--format=json", subject]
    try:
        return [*_found(json.loads(subprocesses.output(Path(tool), *words, timeout=_SCAN_SECONDS)))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"{tool} could not tell: {getattr(error, 'strerror', None) or repr(error)}"
        raise UnavailableError(message, fix=f"run `{shlex.join([tool, *words])}`") from error


def _found(document: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for match in document.get("matches", ()):
        known, artifact = match["vulnerability"], match["artifact"]
        package = artifact["name"], artifact["version"], ", ".join(known["fix"]["versions"])
        yield known["severity"].lower(), known["id"], *package
    # Trivy leaves its results out where it knows nothing of what it read, which is no pass.
    for result in () if "matches" in document else document["Results"]:
        for one in result.get("Vulnerabilities") or ():
            package = one["PkgName"], one["InstalledVersion"], one.get("FixedVersion") or ""
            yield one["Severity"].lower(), one["VulnerabilityID"], *package
