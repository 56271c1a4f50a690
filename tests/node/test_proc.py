"""Text as Linux and the NVIDIA driver write it; anything else never raises."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.node import containers, host
from tests.tables import each

PROPRIETARY = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16)
GCC version:  gcc version 13.2.0
"""


def test_the_kernel_module_and_which_flavour_it_is() -> None:
    assert host.kernel_module(PROPRIETARY) == ("535.104.05", "proprietary")
    assert host.kernel_module(OPEN) == ("560.35.03", "open")
    assert host.kernel_module("GCC version: 12.3.0") == (None, None)


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Za-z()_]{0,20}", fullmatch=True), st.integers(0, 1 << 50)))
def test_meminfo_is_read_in_bytes(fields: dict[str, int]) -> None:
    text = "".join(f"{name}:{kib:>16} kB\n" for name, kib in fields.items()) + "HugePages_Total:       0\n"
    assert host.meminfo(text) == {name: kib * 1024 for name, kib in fields.items()}


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    host.kernel_module(text)
    assert all(size >= 0 for size in host.meminfo(text).values())
    host.after(text, "model name", ":")
    host.soft_limit(text, "Max locked memory")
    host.gpu_modules(text)
    host.hypervisor(text)
    host.cached_libraries(text.encode(), "libcuda.so.1")
    containers.cgroup_path(text)
    host.cpu_list(text)


@each(
    ("text", "cpus"),
    [("0-2,5\n", {0, 1, 2, 5}), ("7", {7}), ("", set()), ("0-x", set()), ("3-1", set()), ("0-99999999", set())],
)
def test_a_list_of_cpus(text: str, cpus: set[int]) -> None:
    assert host.cpu_list(text) == cpus


def test_names_of_cpu_os_modules_and_libraries() -> None:
    assert host.after("processor : 0\nmodel name\t: AMD EPYC 9654\n", "model name", ":") == "AMD EPYC 9654"
    assert host.after("processor : 0\n", "model name", ":") is None
    assert host.hypervisor("processor : 0\nflags\t\t: fpu hypervisor sse\n") is True
    assert (host.hypervisor("flags\t\t: fpu sse\n"), host.hypervisor("Features : fp\n")) == (False, None)
    debian = 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
    assert host.after(debian, "PRETTY_NAME", "=") == "Debian GNU/Linux 12 (bookworm)"
    assert host.gpu_modules("nvidia 1 2 -\nnouveau 1 0 -\nxfs 1 -\n") == ["nouveau", "nvidia"]
    cache = b"glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib/libcuda.so.1\0/usr/lib/libcuda.so\0"
    assert host.cached_libraries(cache, "libcuda.so.1") == ["/usr/lib/libcuda.so.1"]
    assert host.library_version("/usr/lib/libcuda.so") is None


def test_cgroup_limits_of_both_versions() -> None:
    assert containers.memory_limit("max\n") == "unlimited"
    assert containers.memory_limit("9223372036854771712\n") == "unlimited"
    assert containers.memory_limit("2147483648\n") == 1 << 31
    assert containers.cgroup_path("0::/system.slice/x\n") == "/system.slice/x"
    assert containers.cgroup_path("5:memory:/docker/1\n") is None
    with pytest.raises(ValueError, match="x"):
        containers.memory_limit("x")


@each(
    ("marks", "name"),
    [
        ({"environ": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "dockerenv": True}, "kubernetes"),
        ({"environ": {"APPTAINER_CONTAINER": "/x.sif"}}, "apptainer"),
        ({"containerenv": True}, "podman"),
        ({"dockerenv": True}, "docker"),
        ({"environ": {"container": "lxc"}}, "lxc"),
        ({"init_cgroup": "1:name=systemd:/docker/abc"}, "docker"),
        ({}, "none"),
    ],
)
def test_each_container_runtime_leaves_its_mark(marks: dict[str, object], name: str) -> None:
    nothing: dict[str, object] = {"dockerenv": False, "containerenv": False, "environ": {}, "init_cgroup": ""}
    assert containers.runtime(**{**nothing, **marks}) == name  # type: ignore[arg-type] # one dict of all kinds


def test_systemd_tells_what_started_it(tmp_path: Path) -> None:
    (tmp_path / "run/systemd").mkdir(parents=True)
    (tmp_path / "run/systemd/container").write_text("lxc\n")
    assert containers.sources(tmp_path, {})["container.runtime"].signal().value == "lxc"
