"""What a site demands of a node, written down in TOML.

`runner/requirements/node_checks.py` judges what the snapshot shows, as a check of the node does.
`runner/requirements/measured.py` judges what checks measured: a measurement that did not run is an error, never a pass.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.matrix.facts.gpu_names import find_gpu, suggest
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.facts.versions import key
from envcheck.matrix.file.load import load
from envcheck.runner.requirements import measured as requirements_measured

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST: Final = 1 << 20  # bytes of a file
PROFILES: Final = Path(__file__).with_name("profiles")
Some = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]


class GpuDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """At least so many GPUs, each of them of this model and with at least so much of everything.

    `pcie_gb_s` is the slower of the two ways between host and GPU, `hbm_gb_s` a copy on the card, `bf16_tflops` a large
    matrix product, `peer_gb_s` the slowest pair of GPUs, `all_reduce_gb_s` the bus bandwidth over all of them.
    """

    count: Count = 1
    model: str | None = None
    memory_gib: Some | None = None
    pcie_gen: Count | None = None
    pcie_width: Count | None = None
    nvlinks: Count | None = None
    pcie_gb_s: Some | None = None
    hbm_gb_s: Some | None = None
    bf16_tflops: Some | None = None
    peer_gb_s: Some | None = None
    all_reduce_gb_s: Some | None = None


class DriverDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A driver of at least `min`, and lower than `below`."""

    min: str | None = None
    below: str | None = None


class HostDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """At least so much RAM, so many CPUs, so much free disk in the working directory and read so fast.

    `hugepages` is what the kernel's transparent huge pages have to be set to.
    """

    ram_gib: Some | None = None
    cpus: Count | None = None
    disk_gib: Some | None = None
    disk_read_gb_s: Some | None = None
    shm_gib: Some | None = None
    open_files: Count | None = None
    hugepages: Literal["always", "madvise", "never"] | None = None


class NetworkDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """At least so many active InfiniBand or RoCE ports, each at so many Gb/s; the smallest all-reduce between nodes."""

    ports: Count = 1
    gbit_s: Some | None = None
    latency_us: Some | None = None


class Requirements(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole file."""

    name: str = "requirements"
    gpu: GpuDemand | None = None
    driver: DriverDemand | None = None
    host: HostDemand | None = None
    network: NetworkDemand | None = None


def read(source: str, matrix: Matrix | None = None) -> Requirements:
    """Read a file, or a shipped profile by its name. Raises ConfigError if it is not a requirements file."""
    path = Path(source) if Path(source).exists() else PROFILES / f"{source}.toml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in PROFILES.glob("*.toml")))
        message = f"no requirements at {source}"
        raise ConfigError(message, fix=f"give a TOML file, or one of {names}")
    try:
        text = safe_files.read_whole(path, most=_MOST).decode()
        requirements = msgspec.convert(tomllib.loads(text), Requirements)
    except RecursionError as error:
        message = f"{path}: nested deeper than any setting"
        raise ConfigError(message, fix="close the brackets") from error
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="give a TOML file that you may read") from error
    except UnicodeError as error:
        message = f"{path} is not UTF-8 text"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all settings") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        message = f"{path}: {error}"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all settings") from error
    _something(requirements, path)
    _finite(msgspec.to_builtins(requirements), path)
    _versions(requirements.driver, path)
    model = requirements.gpu.model if requirements.gpu else None
    facts = matrix or load()
    if model and find_gpu(facts, model) is None:
        message = f"{path}: gpu.model {model} is not known"
        near = suggest(facts, model)
        raise ConfigError(message, fix=f"did you mean {' or '.join(near)}?" if near else "see `envcheck matrix show`")
    return requirements


def _finite(content: dict[str, Any], path: Path) -> None:
    tables = [(table, values) for table, values in content.items() if isinstance(values, dict)]
    endless = [f"{t}.{k}" for t, vs in tables for k, v in vs.items() if isinstance(v, float) and not math.isfinite(v)]
    if endless:
        message = f"{path}: {', '.join(endless)} is not a number"
        raise ConfigError(message, fix="give a finite one, or leave it out")


def _versions(driver: DriverDemand | None, path: Path) -> None:
    versions = [version for version in (driver.min, driver.below) if version] if driver else []
    try:
        keys = [key(version) for version in versions]
    except ValueError as error:
        message = f"{path}: driver {' or '.join(versions)} is not a version"
        raise ConfigError(message, fix='write it as NVIDIA does, in quotes: "570.124.06"') from error
    if driver and driver.min and driver.below and keys[0] >= keys[1]:
        message = f"{path}: no driver is at least {driver.min} and below {driver.below}"
        raise ConfigError(message, fix="give a `below` that is above `min`")


def _something(requirements: Requirements, path: Path) -> None:
    """Refuse a file without requirements: it would let every node pass."""
    tables = (requirements.gpu, requirements.driver, requirements.host, requirements.network)
    if all(table is None or table == type(table)() for table in tables):
        message = f"{path} contains no requirements"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all settings")
    if requirements.gpu and requirements.gpu.model is not None and not requirements.gpu.model.strip():
        message = f"{path}: gpu.model is empty"
        raise ConfigError(message, fix="name the model, or leave it out")


def measured(requirements: Requirements) -> list[requirements_measured.Demand]:
    """Return the demands on what the run's checks measure; they are judged when those are done."""
    bounds = {
        "pcie-speed": requirements.gpu and requirements.gpu.pcie_gb_s,
        "hbm-speed": requirements.gpu and requirements.gpu.hbm_gb_s,
        "bf16": requirements.gpu and requirements.gpu.bf16_tflops,
        "peer-speed": requirements.gpu and requirements.gpu.peer_gb_s,
        "all-reduce-speed": requirements.gpu and requirements.gpu.all_reduce_gb_s,
        "disk-read": requirements.host and requirements.host.disk_read_gb_s,
        "network-latency": requirements.network and requirements.network.latency_us,
    }
    return [requirements_measured.demand(name, bound, requirements.name) for name, bound in bounds.items() if bound]
