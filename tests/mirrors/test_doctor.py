"""The doctor finds each mistake people make with its line, finds nothing in what is right, and repeats no secret."""

import functools
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.cli import cli
from envcheck.mirrors import doctor
from envcheck.mirrors.doctor import DoctorFinding, Document, Kind, PreparedDocument, examine, kind_of, rules
from tests.tables import each

DATA = Path(__file__).parents[1] / "data/doctor"
# A text of a kind, and the line and rule of each finding in it.
CASES = [
    (row["content"], row["kind"], row["expected"])
    for row in map(json.loads, DATA.with_name("doctor-cases.jsonl").read_text(encoding="utf-8").splitlines())
]
CANARIES = "hunter2-canary|CANARYcanary"
EXPECTED = {
    "Dockerfile": """
        3 E105; 3 W009; 4 W002; 5 W001; 6 W011; 7 W016; 8 W005; 9 W010; 10 W010; 11 W005; 12 W004; 13 W013; 14 W012
        15 E103; 16 E102; 16 W003; 17 W003; 18 W007; 19 W010; 20 W003; 21 W010; 22 W005; 23 W028
    """,
    "bashrc": """
        2 W001; 3 W011; 4 W007; 5 W007; 6 E104; 6 W009; 7 W004; 8 W005; 9 W007; 10 W012; 11 W003; 12 W010; 13 E103
        14 W011; 14 W019; 15 W023; 16 W024; 17 W026; 18 W030
    """,
    "train.py.sample": """
        8 W011; 8 W015; 9 W002; 11 E101; 13 W007; 14 W007; 16 E101; 17 W006; 20 W003; 21 W010; 24 E101; 25 E101
        26 W001; 27 W010; 28 W005; 29 E106; 30 E107; 32 E108; 33 W018
    """,
    "requirements.txt": "2 W004; 3 W008; 5 W017; 6 W004; 6 W020",
    "uv.toml": "1 W021",
    "daemon.json": "1 W022; 1 W027",
    "registries.conf": "7 W029",
}


def found_in(*paths: Path) -> list[DoctorFinding]:
    """Examine samples; one in Python has another name, so that nothing takes it for ours."""
    texts, errors = doctor.read_files(paths)
    assert not errors
    return examine(t._replace(kind=kind_of(t.name.removesuffix(".sample"))) for t in texts)


def lines(findings: list[DoctorFinding]) -> list[str]:
    return [f"{finding.line} {finding.id}" for finding in findings]


@each("name", EXPECTED)
def test_each_mistake_is_found_on_its_line_and_nothing_else(name: str) -> None:
    expected = [entry for row in EXPECTED[name].split("\n") for entry in map(str.strip, row.split(";")) if entry]
    assert lines(found_in(DATA / name)) == expected


@pytest.mark.parametrize("path", sorted((DATA / "clean").iterdir()), ids=lambda path: path.name)
def test_nothing_is_found_in_what_is_right(path: Path) -> None:
    assert found_in(path) == []


def test_the_samples_have_every_rule() -> None:
    actual = {finding.id for finding in found_in(*(path for path in DATA.iterdir() if path.is_file()))}
    assert {rule.id for rule in rules()} - actual == {"W014", "W025"}


def one(content: str, kind: Kind = "settings") -> list[str]:
    return lines(examine([Document("x", content, kind)]))


@each(("content", "kind", "expected"), CASES)
def test_each_client_is_understood(content: str, kind: Kind, expected: list[str]) -> None:
    assert one(content, kind) == expected


def test_a_variable_that_the_same_file_hands_on_is_no_mistake() -> None:
    assert one("ARG PYTORCH_MIRROR\nRUN pip install --index-url $PYTORCH_MIRROR torch\n", "dockerfile") == []
    assert one("import os\nurl = os.environ.get('HF_MIRROR')\nos.environ['HF_MIRROR'] = 'x'\n", "python") == []


@each(
    ("imported", "expected"),
    [
        ("import huggingface_hub", []),
        ("import huggingface_hub as h", []),
        ("from huggingface_hub import HfApi", ["3 W015"]),
        ("import huggingface_hub.constants", ["3 W015"]),
        ("import transformers", ["3 W015"]),
    ],
)
def test_an_endpoint_that_is_set_too_late_is_told_from_one_that_is_not(imported: str, expected: list[str]) -> None:
    """huggingface_hub loads its parts when they are first used."""
    code = f"import os\n{imported}\nos.environ['HF_HOME'] = '/x'\n"
    assert one(code, "python") == expected


def test_kinds_are_told_by_name() -> None:
    names = ("Dockerfile.gpu", "gpu.dockerfile", "a.py", "daemon.json", "requirements-dev.txt", ".bashrc", "notes.txt")
    kinds = ["dockerfile", "dockerfile", "python", "json", "requirements", "settings", "settings"]
    assert [kind_of(name) for name in names] == kinds


KINDS = st.sampled_from(["python", "json", "dockerfile", "requirements", "environment", "settings"])
PIECES = st.sampled_from(
    [line for path in sorted(DATA.iterdir()) if path.is_file() for line in path.read_text().split("\n")]
    + ['"""', "'", '"', "#", "\\", "\n", "\r\n", "\f", "\0", "//", "@", "(" * 200, "[" * 200]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text(max_size=60), max_size=25), st.sampled_from(["", " ", "\n"]), KINDS)
def test_no_input_breaks_it_and_every_line_is_there(parts: list[str], joint: str, kind: Kind) -> None:
    content = joint.join(parts)
    text = Document("x", content, kind)
    assert len(PreparedDocument(text).code) == len(content)
    for finding in examine([text]):
        assert 1 <= finding.line <= content.count("\n") + 1
        assert not re.search(CANARIES, finding.what + finding.fix)


def test_this_machine_is_read_and_a_root_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text('{"registry-mirrors": ["http://hub.example"]}')
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.bashrc").write_text("export HF_MIRROR=https://m.example\n")
    (tmp_path / "pip.conf").write_bytes(b"[global]\ntrusted-host = m.example\n\xff\xfe")
    environ = {
        "HOME": str(tmp_path / "home"),
        "HF_HUB_ENABLE_HF_TRANSFER": "1",
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
    }
    doctor_findings = examine(doctor.read_machine(environ, tmp_path).documents)
    assert [(Path(f.where).name, f.id) for f in doctor_findings] == [
        ("daemon.json", "W005"),
        (".bashrc", "W001"),
        ("pip.conf", "W010"),
        ("environment", "W007"),
    ]


def test_a_token_that_a_login_left_goes_to_the_mirror_too(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HF_ENDPOINT": "https://m.example", "HF_HUB_DISABLE_XET": "1"}
    assert examine(doctor.read_machine(environ, tmp_path).documents) == []
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("hf_hunter2-canary")
    (actual,) = examine(doctor.read_machine(environ, tmp_path).documents)
    assert (actual.id, actual.where) == ("W009", "environment")
    assert examine(doctor.read_machine({**environ, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, tmp_path).documents) == []


def test_a_home_of_somebody_else_ends_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\ntrusted-host = m.example\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    documents, [error] = doctor.read_machine(environ, tmp_path)
    assert [Path(one.where).name for one in examine(documents)] == ["pip.conf"]
    assert error.message.startswith(f"{tmp_path}: ")


def test_a_setting_that_cannot_be_read_is_named_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_bytes(b"[global]\n\0")
    read = functools.partial(doctor.read_machine, {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}, tmp_path)
    monkeypatch.setattr(doctor, "read_machine", read)
    result = CliRunner().invoke(cli, ["mirror", "doctor"], standalone_mode=False)
    assert result.return_value == 3
    assert f"{tmp_path}/pip.conf is not a text file" in result.stderr
    assert result.stdout.endswith("1 examined, 1 cannot be read: no findings\n")
    named = CliRunner().invoke(cli, ["mirror", "doctor", str(tmp_path / "pip.conf")], standalone_mode=False)
    assert named.return_value == 2


def test_what_is_too_large_for_settings_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate(doctor.LARGEST + 1)
    texts, (large, endless) = doctor.read_files([tmp_path / "model.bin", Path("/dev/zero")])
    assert "model.bin has more than 2 MiB; name Dockerfiles" in str(large)
    assert "/dev/zero has more than 2 MiB" in str(endless)
    assert not texts


def test_what_is_no_text_is_refused_and_what_windows_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"HF_MIRROR=https://m.example\n\0")
    texts, [error] = doctor.read_files([tmp_path / "a.bin"])
    assert (texts, "a.bin is not a text file" in str(error)) == ([], True)
    for encoding in ("utf-16", "utf-8-sig"):
        (tmp_path / "a.sh").write_bytes("HF_MIRROR=https://m.example\n".encode(encoding))
        assert lines(found_in(tmp_path / "a.sh")) == ["1 W001"]


def test_the_command_says_place_level_and_fix_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner().invoke(cli, ["mirror", "doctor", str(DATA / "bashrc")], standalone_mode=False)
    assert result.return_value == 1
    assert (
        f"{DATA}/bashrc:2: unreal W001\n    no program reads HF_MIRROR\n    fix: set HF_ENDPOINT instead\n"
        in result.output
    )
    assert result.output.endswith("1 examined: 7 danger, 9 unreal, 3 outdated\n")
    assert not re.search(CANARIES, result.output)
    clean = CliRunner().invoke(cli, ["mirror", "doctor", str(DATA / "clean/bashrc")], standalone_mode=False)
    assert (clean.return_value or 0, clean.output) == (0, "1 examined: no findings\n")


@each("unit", ["curl -s ", "sed /etc ", "\n", "'", " #", "http://a", "UV_INDEX=https://", "from_pretrained(", "a=b\n"])
def test_a_long_line_of_the_same_is_read_to_its_end(unit: str) -> None:
    content = unit * (50_000 // len(unit))
    assert one(f"{content}\nexport HF_MIRROR=https://m.example")[-1] == f"{content.count(chr(10)) + 2} W001"
