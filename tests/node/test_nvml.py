"""What NVML refuses is a reason on that one signal, and never costs another."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.node import nvml, subprocesses
from tests.node.conftest import ASKED, field
from tests.tables import each
from tests.waiting import eventually, runs

Fake = Callable[..., Any]
# Neither a value nor a reason, as a NaN is written; and another form than ours.
ODD = '{"gpus": [{"uuid": "a", "signals": {"power_draw": {"value": null}}}]}'
OTHER = '{"schema": "envcheck/snapshot/2"}'

# An id may begin with a zero.
FABRIC = {"state": "completed", "status": "ok", "health": "healthy", "cluster": "00" * 15 + "07", "clique": 32766}


def test_every_query_has_its_value_with_its_unit(fake_nvml: Fake) -> None:
    signals, [gpu] = nvml.read(fake_nvml())
    assert {name for name, signal in gpu.signals.items() if signal.value is None} == set()
    assert {name for name, signal in signals.items() if signal.value is None} == set()
    assert {query.name for query in nvml.QUERIES if not query.type(gpu.signal(query.name).value)} == set()
    assert {name: signal.value for name, signal in signals.items() if not nvml.TYPES[name](signal.value)} == {}, (
        "the fake NVML answers 0: set another answer in tests/node/conftest.py, or correct the type"
    )
    assert signals["driver.cuda"].value == "12.8"
    assert gpu.uuid == "GPU-1"
    assert gpu.signal("name").value == "NVIDIA H100 80GB HBM3"
    assert (gpu.signal("power_draw").value, gpu.signal("power_draw").unit) == (71.5, "W")
    for name, value in {
        "nvlinks_active": 4,
        "remapped_rows": {"correctable": 0, "uncorrectable": 1, "pending": 0, "failed": 0},
        "ecc_sram": {"uncorrectable": 3, "threshold_exceeded": False},
        "fabric": FABRIC,
        "repairs": {"channel": False, "tpc": True},
        "row_histogram": {"max": 638, "high": 1, "partial": 0, "low": 0, "none": 1},
        "bank_remaps": {"active": 0, "inactive": 0, "none": 0, "pending": 0},
        "reset_status": {"reset": False, "drain_and_reset": False},
    }.items():
        assert gpu.signal(name).value == value


@each("function, signal", [("nvmlDeviceGetGpuFabricInfoV", "fabric"), ("nvmlDeviceGetName", "name")])
def test_one_refused_query_is_one_reason(fake_nvml: Fake, function: str, signal: str) -> None:
    _, [gpu] = nvml.read(fake_nvml({function: "Not Supported"}))
    assert gpu.signal(signal).reason == "NVML: Not Supported"
    assert [name for name, s in gpu.signals.items() if s.value is None] == [signal]


@pytest.mark.parametrize("error", [TypeError, ValueError, LookupError, AttributeError])
def test_a_wrapper_that_breaks_costs_one_signal(fake_nvml: Fake, error: type[Exception]) -> None:
    fake = fake_nvml()

    def breaks(*_: object) -> int:
        raise error("not this way")  # noqa: EM101, TRY003 (a wrapper's own words)

    fake.answers["nvmlDeviceGetPersistenceMode"] = breaks
    _, [gpu] = nvml.read(fake)
    assert gpu.signal("persistence").reason == "nvidia-ml-py: not this way"
    assert [name for name, signal in gpu.signals.items() if signal.value is None] == ["persistence"]


@pytest.mark.parametrize(("count", "on", "word"), [(0, 0, "not needed"), (1, 0, "unlicensed"), (1, 1, "licensed")])
def test_a_vgpu_without_a_feature_that_needs_a_licence_is_not_unlicensed(
    fake_nvml: Fake, count: int, on: int, word: str
) -> None:
    said = SimpleNamespace(licensableFeaturesCount=count, gridLicensableFeatures=[SimpleNamespace(featureState=on)])
    _, [gpu] = nvml.read(fake_nvml(nvmlDeviceGetGridLicensableFeatures_v4=said))
    assert gpu.signal("license").value == word


def test_a_shutdown_that_fails_leaves_what_was_read(fake_nvml: Fake) -> None:
    signals, [gpu] = nvml.read(fake_nvml({"nvmlShutdown": "Unknown Error"}))
    assert signals["driver.version"].value
    assert gpu.signal("name").value == "NVIDIA H100 80GB HBM3"


def test_bytes_that_are_no_text_are_told_as_far_as_they_are(fake_nvml: Fake) -> None:
    _, [gpu] = nvml.read(fake_nvml(nvmlDeviceGetVbiosVersion=b"96.\xff"))
    assert gpu.signal("vbios").value == "96.\ufffd"


def test_a_gpu_without_nvlink_says_so_of_all_that_is_asked_of_links(fake_nvml: Fake) -> None:
    for refusal in ("Not Supported", "Invalid Argument"):
        _, [gpu] = nvml.read(fake_nvml({"nvmlDeviceGetNvLinkState": refusal}))
        signals = [gpu.signal(name) for name in ("nvlinks", "nvlinks_active", "nvlink_errors")]
        assert {(signal.why, signal.reason) for signal in signals} == {("unsupported", "NVML: Not Supported")}, refusal


def test_links_that_are_down_are_told_from_links_that_are_not_there(fake_nvml: Fake) -> None:
    fake = fake_nvml()

    def state(_gpu: object, link: int) -> int:
        if link == 3:
            raise fake.NVMLError("Invalid Argument")  # noqa: EM101, TRY003 (NVML's own words)
        return int(link != 1)

    fake.answers["nvmlDeviceGetNvLinkState"] = state
    _, [gpu] = nvml.read(fake)
    assert gpu.signal("nvlinks").value == ["up", "down", "up"]
    assert gpu.signal("nvlinks_active").value == 2
    assert gpu.signal("nvlink_errors").value == {"replay": 6, "recovery": 6, "crc": 6}


def test_clock_reasons_have_names_under_both_of_nvmls_names_for_them(fake_nvml: Fake) -> None:
    fake = fake_nvml(nvmlDeviceGetCurrentClocksEventReasons=0x1044)
    _, [gpu] = nvml.read(fake)
    assert gpu.signal("clock_reasons").value == ["software power cap", "hardware thermal slowdown", "unknown 0x1000"]
    old = fake_nvml(
        {"nvmlDeviceGetCurrentClocksEventReasons": "Function Not Found"}, nvmlDeviceGetCurrentClocksThrottleReasons=0x8
    )
    _, [gpu] = nvml.read(old)
    assert gpu.signal("clock_reasons").value == ["hardware slowdown"]


def test_the_margin_is_computed_where_it_cannot_be_asked_for(fake_nvml: Fake) -> None:
    _, [gpu] = nvml.read(
        fake_nvml({"nvmlDeviceGetMarginTemperature": "Not Supported"}, nvmlDeviceGetTemperatureThreshold=90)
    )
    assert gpu.signal("temperature_margin").value == 90 - 33


def test_a_fields_own_return_code_counts_and_a_newer_one_than_the_driver_is_no_fault(fake_nvml: Fake) -> None:
    _, [gpu] = nvml.read(fake_nvml(nvmlDeviceGetFieldValues=[field(4)]))
    assert gpu.signal("recovery_action").value == "drain and reset"
    for code in (2, 3):
        _, [gpu] = nvml.read(fake_nvml(nvmlDeviceGetFieldValues=[field(code=code)]))
        assert gpu.signal("recovery_action").reason == "NVML: Not Supported"


def test_a_driver_with_the_older_fabric_structure_is_asked_with_that(fake_nvml: Fake) -> None:
    fake = fake_nvml()

    def older_only(_gpu: object, place: Any) -> int:
        if hasattr(place._obj, "healthSummary"):  # noqa: SLF001 (what ctypes.byref was given)
            raise fake.NVMLError("Argument Version Mismatch")  # noqa: EM101, TRY003 (NVML's own words)
        place._obj.state = 2  # noqa: SLF001 (what ctypes.byref was given)
        return 0

    fake.answers["nvmlDeviceGetGpuFabricInfoV"] = older_only
    _, [gpu] = nvml.read(fake)
    none = {"status": "ok", "health": "not supported", "cluster": "", "clique": 0}
    assert gpu.signal("fabric").value == {"state": "in progress", **none}


def test_every_name_asked_of_nvml_is_one_that_nvidia_ml_py_has() -> None:
    import pynvml  # noqa: PLC0415 (only this test needs the real one)

    assert len(ASKED) > 60
    assert [name for name in sorted(ASKED) if not hasattr(pynvml, name)] == [], "nvidia-ml-py has no such function"


def test_an_nvml_that_does_not_open_says_why_everywhere(fake_nvml: Fake) -> None:
    signals, gpus = nvml.read(fake_nvml({"nvmlInit": "Driver/library version mismatch"}))
    assert gpus == []
    assert {signal.reason for signal in signals.values()} == {"NVML: Driver/library version mismatch"}


def test_a_lost_gpu_is_still_a_gpu(fake_nvml: Fake) -> None:
    signals, gpus = nvml.read(fake_nvml({"nvmlDeviceGetHandleByIndex": "GPU is lost"}, nvmlDeviceGetCount=2))
    assert signals["gpu.count"].value == 2
    assert [gpu.uuid for gpu in gpus] == ["lost-0", "lost-1"]
    assert gpus[1].signal("name").reason == "NVML: GPU is lost"


def test_an_uncounted_node_has_the_reason(fake_nvml: Fake) -> None:
    signals, gpus = nvml.read(fake_nvml({"nvmlDeviceGetCount": "Unknown Error"}))
    assert gpus == []
    assert signals["gpu.count"].reason == "NVML: Unknown Error"


def test_gpus_of_other_containers_are_not_ours_to_judge(fake_nvml: Fake) -> None:
    fake = fake_nvml(nvmlDeviceGetCount=3)

    def first_only(index: int) -> str:
        if index:
            raise fake.NVMLError("Insufficient Permissions")  # noqa: EM101, TRY003 (NVML's own words)
        return "handle"

    fake.answers["nvmlDeviceGetHandleByIndex"] = first_only
    signals, gpus = nvml.read(fake)
    assert signals["gpu.count"].value == 3
    assert [gpu.uuid for gpu in gpus] == ["GPU-1"]


@pytest.mark.parametrize(
    ("refused", "value", "why"),
    [
        ({}, "intact", None),
        ({"nvmlDeviceValidateInforom": "Corrupted infoROM"}, "corrupted", None),
        ({"nvmlDeviceValidateInforom": "Not Supported"}, None, "unsupported"),
        ({"nvmlDeviceValidateInforom": "Unknown Error"}, None, "failed"),
    ],
)
def test_only_a_wrong_checksum_is_a_corrupted_inforom(
    fake_nvml: Fake, refused: dict[str, str], value: str | None, why: str | None
) -> None:
    _, [gpu] = nvml.read(fake_nvml(refused))
    assert (gpu.signal("inforom").value, gpu.signal("inforom").why) == (value, why)


def test_what_nvml_says_there_is_what_it_would_say_here(installed_nvml: Fake, fake_nvml: Callable[..., Any]) -> None:
    installed_nvml({"nvmlDeviceGetMigMode": "Not Supported"})
    there, here = nvml.ask("all"), nvml.read(fake_nvml({"nvmlDeviceGetMigMode": "Not Supported"}))
    latency = there.signals.pop("nvml.latency"), here.signals.pop("nvml.latency")
    assert there.signals == here.signals
    assert [*there.gpus] == [*here.gpus]
    assert latency[0].value > 0
    assert latency[0].unit == latency[1].unit == "s"


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("os.abort()", "asking NVML: died of SIGABRT"),
        ("os._exit(7)", "asking NVML: exit code 7"),
        ("raise OSError('odd')", "asking NVML: exit code 1: OSError: odd"),
        ("print('hello')", "asking NVML: JSON is malformed"),
        ("os.kill(os.getpid(), 40)", "asking NVML: 40 is not a valid Signals"),
        (f"os.write(1, b'{ODD}'); os._exit(0)", "asking NVML: it answered what is no snapshot"),
        (f"os.write(1, b'{OTHER}'); os._exit(0)", "asking NVML: it answered what is no snapshot"),
        ("raise ModuleNotFoundError(\"No module named 'pynvml'\")", "nvidia-ml-py: No module named 'pynvml'"),
    ],
)
def test_however_it_ends_there_it_is_a_reason_here(installed_nvml: Fake, first: str, reason: str) -> None:
    installed_nvml(first=first)
    signals, gpus = nvml.ask("all")
    assert [*gpus] == []
    assert [*signals] == [*nvml.TYPES]
    assert {str(signal.reason)[: len(reason)] for signal in signals.values()} == {reason}


def test_a_driver_that_never_answers_is_a_reason_and_leaves_nothing_running(
    installed_nvml: Fake, tmp_path: Path
) -> None:
    result = tmp_path / "pids"
    child = "subprocess.Popen(['sleep', '600'])"
    installed_nvml(
        first=f"print(os.getpid(), {child}.pid, file=open({str(result)!r}, 'w'), flush=True); time.sleep(600)"
    )
    signals, gpus = nvml.ask("identity", timeout=6.0)
    assert [*gpus] == []
    assert signals["driver.version"].reason == "NVML gave no answer in 6 s"
    assert not eventually(lambda: any(map(runs, result.read_text().split())), expected=False)


def test_a_module_that_lies_in_the_working_directory_is_not_imported(
    installed_nvml: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_nvml()
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    assert nvml.ask("identity").signals["driver.version"].value == "570.124.06"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left running
def test_what_no_signal_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, kill = tmp_path / "pid", os.killpg
    requests: list[tuple[int, int]] = []
    monkeypatch.setattr(subprocesses, "_GRACE", 0.05)
    monkeypatch.setattr(os, "killpg", lambda group, number: requests.append((group, number)))
    with pytest.raises(TimeoutError, match="no answer"):
        subprocesses.output(Path("/bin/sh"), "-c", f"trap '' INT; echo $$ > {pids}; exec sleep 600", timeout=2.0)
    assert [group for group, _ in requests] == [int(pids.read_text())]
    kill(*requests[0])
    os.waitpid(requests[0][0], 0)
