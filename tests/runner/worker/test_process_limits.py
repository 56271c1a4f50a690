"""A failure that a limit of this process explains names that limit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.checks.support import control_group
from envcheck.runner import worker_session
from envcheck.runner.schema import OutcomeRow
from envcheck.runner.worker import process_limits, rank_group
from tests.tables import beside

LIMITED = beside(__file__)


@pytest.fixture(autouse=True)
def _no_group_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a group of ranks of another test in this process remembered."""
    monkeypatch.setattr(process_limits, "_kills_before", float("inf"))


@pytest.mark.parametrize("kind", LIMITED)
def test_a_limit_that_a_rank_meets_is_named(outcome: Callable[..., OutcomeRow], kind: str) -> None:
    limit, does, says, names = LIMITED[kind]
    actual = outcome(f"import resource\nresource.setrlimit(resource.{limit})\n{does}", options="ranks=1, timeout=30")
    assert actual.status == "error"
    assert says in actual.summary
    assert actual.summary.count(names) == 1
    assert "raise it with `ulimit" in actual.remedy


def test_no_limit_explains_what_it_did_not_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_group, "ROOT", tmp_path)
    assert process_limits.explained("ValueError: no") == "ValueError: no"
    (tmp_path / "pids.max").write_text("64\n")
    assert "pids.max of the control group is 64" in process_limits.explained("RuntimeError: can't start new thread")
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    assert process_limits.explained("MemoryError") == "MemoryError"


def test_a_full_gpu_is_no_limit_of_the_process(outcome: Callable[..., OutcomeRow]) -> None:
    """As an H200 said it whose memory another process held, to torch and to NCCL, in a group of limited memory."""
    for name, said in (
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 139.80"),
        ("DistBackendError", "NCCL error, unhandled cuda error\nLast error:\nFailed to CUDA calloc async 608 bytes"),
    ):
        actual = outcome(f"class {name}(Exception): pass\nraise {name}({said!r})", options="ranks=1, timeout=30")
        assert (actual.status, "limit:" in actual.summary) == ("error", False)
        assert "that gpu-in-use names" in actual.remedy
    assert "CUDA calloc" in actual.summary


def test_the_line_of_a_log_that_a_limit_explains_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "Traceback\nobject type name: MemoryError\nlost sys.stderr\n"
    assert process_limits.telling_line("") == ""
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    monkeypatch.setattr(control_group, "ROOT", Path("/nowhere"))
    assert process_limits.telling_line(log) == "lost sys.stderr"
    monkeypatch.setattr("resource.getrlimit", lambda _: (10**9, 10**9))
    assert process_limits.telling_line(log) == "object type name: MemoryError"
    text = worker_session.ending(1, log, "", importing=False, own_limits=True)
    assert text.startswith("the worker exited with code 1: object type name: MemoryError (limit: 1000000000 bytes")
    elsewhere = worker_session.ending(1, log, "", importing=False, own_limits=False)
    assert elsewhere == "the worker exited with code 1: lost sys.stderr"


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the directory that stands for /sys/fs/cgroup; its file `cgroup` names the groups of this process."""
    monkeypatch.setattr(control_group, "ROOT", tmp_path)
    monkeypatch.setattr(control_group, "OWN", tmp_path / "cgroup")
    return tmp_path


def test_a_kill_for_lack_of_memory_is_named(groups: Path) -> None:
    (groups / "cgroup").write_text("0::/job\n")
    (groups / "job").mkdir()
    (groups / "job" / "memory.max").write_text("1048576\n")
    (groups / "job" / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert process_limits.explained("died of SIGKILL") == "died of SIGKILL"
    (groups / "job" / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    text = process_limits.explained("died of SIGKILL")
    assert "ended processes of the control group for lack of memory (2)" in text
    assert "memory.max of the control group is 1048576" in text


def test_control_groups_of_version_1_are_read_too(groups: Path) -> None:
    # What a container sees: the path of the outside, and below the mount only its own group.
    (groups / "cgroup").write_text("8:pids:/docker/0b17\n4:memory:/docker/0b17\n0::/docker/0b17\n")
    for name in ("pids", "memory"):
        (groups / name).mkdir()
    (groups / "pids/pids.max").write_text("30\n")
    (groups / "memory/memory.limit_in_bytes").write_text("314572800\n")
    (groups / "memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    # Who could start no thread hangs without a word: what the group was refused says it.
    (groups / "pids/pids.events").write_text("max 0\n")
    assert process_limits.explained("still running after 180 s") == "still running after 180 s"
    (groups / "pids/pids.events").write_text("max 7\n")
    text = process_limits.explained("still running after 180 s")
    assert text.endswith(
        "(limit: the control group was refused processes or threads (7), pids.max of the control group is 30)"
    )
    assert process_limits.explained("RuntimeError: Resource temporarily unavailable").endswith(
        "(limit: pids.max of the control group is 30)"
    )
    text = process_limits.explained("died of SIGKILL")
    assert "for lack of memory (1), memory.limit_in_bytes of the control group is 314572800" in text
    assert process_limits.explained(text) == text
    assert "--memory" in process_limits.lifted(text)
    (groups / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert "no limit of memory of its own" in process_limits.explained("died of SIGKILL")


@pytest.mark.parametrize("version", [1, 2])
def test_the_quota_that_holds_processes_back_is_told(groups: Path, version: int) -> None:
    (groups / "cgroup").write_text("3:cpu,cpuacct:/pod/a\n" if version == 1 else "0::/pod/a\n")
    pod = groups / ("cpu/pod" if version == 1 else "pod")
    (pod / "a").mkdir(parents=True)
    (pod / "a/cpu.stat").write_text("nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")  # no quota of its own
    quota = {"cpu.cfs_quota_us": "30000\n", "cpu.cfs_period_us": "100000\n"}
    for name, said in (quota if version == 1 else {"cpu.max": "30000 100000\n"}).items():
        (pod / name).write_text(said)
    (pod / "cpu.stat").write_text("usage_usec 9\nnr_periods 10\nnr_throttled 9\nthrottled_time 1\n")
    before = control_group.quotas()
    assert control_group.held(before) == {}
    (pod / "cpu.stat").write_text("usage_usec 9\nnr_periods 30\nnr_throttled 24\nthrottled_time 1\n")
    held = control_group.held(before)
    assert held == {"quota": 0.3, "periods": 20, "throttled": 15, "share": 0.75}
    assert control_group.told(held) == "a CPU quota of 0.3 cores held processes back in 15 of 20 periods"


def test_a_rank_that_has_no_room_for_its_result_says_so(outcome: Callable[..., OutcomeRow]) -> None:
    # No file may have a byte: what it raises cannot be left in a file, and is told on its log.
    body = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nreturn {}"
    actual = outcome(body, options="ranks=1, timeout=30")
    assert actual.status == "error"
    assert "exited with code 1: OSError: [Errno 27] File too large" in actual.summary


def test_a_fork_that_fails_is_the_result_of_its_group_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", refused)
    data = rank_group.run_group(rank_group.Job("module:none", world=2), tmp_path / "group", 5.0, lambda: None)
    assert data["error"]["text"].startswith("could not be started: Resource temporarily unavailable")
    assert (data["error"]["rank"], data["ranks"]) == (0, [None, None])


def test_loopback_is_ipv6_where_it_has_no_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_group.loopback() == "127.0.0.1"

    def refused(*_: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("socket.socket.bind", refused)
    assert rank_group.loopback() == "::1"


def test_ranks_are_the_first_to_be_ended_where_memory_ends(outcome: Callable[..., OutcomeRow]) -> None:
    actual = outcome("return {'score': open('/proc/self/oom_score_adj').read().strip()}", options="ranks=1, timeout=30")
    assert actual.ranks == [{"score": "1000"}]
