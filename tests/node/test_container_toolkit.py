"""The container toolkit, read off small trees with tools that are scripts."""

from pathlib import Path

import pytest

from envcheck.node import host, subprocesses
from tests.builders import plant
from tests.node.conftest import read
from tests.tables import each

# As `nvidia-ctk cdi generate` writes it (NVIDIA Container Toolkit documentation, Container Device Interface).
SPEC = """---
cdiVersion: 0.5.0
containerEdits:
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14
  - containerPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14
    hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- name: all
kind: nvidia.com/gpu
"""
PATH = {"PATH": "relative:/usr/bin"}


def tool(root: Path, name: str, body: str) -> Path:
    plant(root, {f"usr/bin/{name}": f"#!/bin/sh\n{body}\n"})
    (root / "usr/bin" / name).chmod(0o755)
    return root / "usr/bin" / name


def test_tools_and_engines_are_found_with_their_versions(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-ctk", 'echo "NVIDIA Container Toolkit CLI version 1.17.4"; echo "commit: 9b69590c"')
    tool(tmp_path, "nvidia-container-cli", "echo broken >&2; exit 127")
    tool(tmp_path, "podman", "exit 1")
    signals = read(host.container_sources(tmp_path, PATH))
    versions = {"nvidia-ctk": "1.17.4", "nvidia-container-cli": "unknown: exit code 127: broken"}
    assert signals["toolkit.tools"].value == versions
    assert signals["toolkit.engines"].value == ["podman"]


def test_a_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"no answer in 0\.2 s"):
        subprocesses.output(tool(tmp_path, "slow", "exec sleep 60"), timeout=0.2)


def test_specifications_say_of_which_driver_they_are(tmp_path: Path) -> None:
    other = '{"cdiVersion": "0.6.0",\n "kind": "nvidia.com/gpu",\n "devices": []}'
    plant(tmp_path, {"etc/cdi/nvidia.yaml": SPEC, "etc/cdi/notes.txt": SPEC, "var/run/cdi/nvidia.json": other})
    plant(tmp_path, {"etc/cdi/other.yaml": "kind: vendor.example/net\n"})
    actual = read(host.container_sources(tmp_path, PATH))["toolkit.cdi"].value
    assert [(row["path"], row["kind"], row["drivers"]) for row in actual] == [
        ("/etc/cdi/nvidia.yaml", "nvidia.com/gpu", ["550.54.14"]),
        ("/var/run/cdi/nvidia.json", "nvidia.com/gpu", []),
    ]


@each(
    "nodes, moved",
    [
        ("- path: /dev/nvidia0\n  major: 195\n- path: /dev/nvidia-uvm\n  major: 510\n", True),
        ("- major: 510\n  path: /dev/nvidia-uvm\n- major: 195\n  path: /dev/nvidia0\n", True),
        ('{"deviceNodes": [{"path": "/dev/nvidia-uvm-tools", "major": 510, "minor": 1}]}', True),
        ("- major: 510\n  path: /dev/nvidia-caps/cap1\n- path: /dev/nvidia-uvm\n", False),
        ("- major: 509\n  minor: 1\n  path: /dev/nvidia-uvm-tools\n- path: /dev/nvidiactl\n", False),
    ],
)
def test_a_specification_that_names_another_device_number_is_told(tmp_path: Path, nodes: str, *, moved: bool) -> None:
    plant(tmp_path, {"etc/cdi/nvidia.yaml": nodes, "proc/devices": "195 nvidia\n509 nvidia-uvm\n"})
    actual = read(host.container_sources(tmp_path, PATH))["toolkit.cdi_uvm"].value
    assert actual == ({"/etc/cdi/nvidia.yaml": 510} if moved else {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"runtimes": {"nvidia": {}}, "default-runtime": "nvidia"}', {"runtimes": ["nvidia"], "default": "nvidia"}),
        ("{}", {"runtimes": [], "default": None}),
        (None, {"runtimes": [], "default": None}),
        ("{,}", None),
        ("[]", None),
    ],
)
def test_dockers_settings(tmp_path: Path, text: str | None, value: object) -> None:
    if text is not None:
        plant(tmp_path, {"etc/docker/daemon.json": text})
    signal = read(host.container_sources(tmp_path, PATH))["toolkit.docker"]
    assert signal.value == value
    assert (signal.reason is None) == (value is not None)
