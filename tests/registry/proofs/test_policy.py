"""A policy is read whole or refused with the setting; without a file there is a strict default."""

import datetime as dt
from pathlib import Path

import pytest
from msgspec import structs

from envcheck.errors import ConfigError
from envcheck.registry.judge import DEFAULT, NamedGpus, Policy, read_policy
from envcheck.signing import new_key
from tests.tables import each

WHOLE = """\
[proof]
level = "quick"
max_age = "12h"
keys = ["gate.pub", "sub/release.pub"]
required = ["all-reduce", "ddp"]        # must be among passedTests
warnings = "refuse"
rejudge = false
mode = "gpu"

[promote]
gpus = ["H100 x8", "RTX 4090 x1"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    new_key(tmp_path / "gate")
    new_key(tmp_path / "sub/release")
    return tmp_path


def written(site: Path, text: str) -> Path:
    path = site / "envcheck-policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_setting_is_read_and_keys_lie_beside_the_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    policy = read_policy(written(site, WHOLE))
    assert [Path(key.where).name for key in policy.keys] == ["gate.pub", "release.pub"]
    assert structs.astuple(structs.replace(policy, keys=())) == (
        "quick",
        dt.timedelta(hours=12),
        (),
        None,
        ("all-reduce", "ddp"),
        "refuse",
        False,
        "gpu",
        (NamedGpus("H100", 8), NamedGpus("RTX 4090", 1)),
    )


def test_the_default_is_strict() -> None:
    assert (DEFAULT.level, DEFAULT.max_age, DEFAULT.mode) == ("standard", dt.timedelta(days=30), "gpu")
    assert (DEFAULT.rejudge, DEFAULT.keys) == (True, ())
    assert Policy() == DEFAULT


def test_what_is_left_out_is_as_in_the_default(site: Path) -> None:
    policy = read_policy(written(site, '[proof]\nkeys = ["gate.pub"]\n'))
    assert structs.replace(policy, keys=()) == DEFAULT


PROOF = "[proof]\nkeys = ['gate.pub']\n"


@each(
    "text, setting",
    [
        ('\n[proof]\nlevel = "most"\n', "$.proof.level"),
        ("[proof]\nlevle = 'quick'\n", "unknown field `levle`"),
        ("[prof]\nlevel = 'quick'\n", "unknown field `prof`"),
        ("[proof]\nkeys = 'gate.pub'\n", "Expected `array`, got `str` - at `$.proof.keys`"),
        ("[proof]\nkeys = ['gone.pub']\n", "proof.keys: "),
        ("[proof]\nkeys = ['gate']\n", "proof.keys: "),
        ('[proof]\nkeys = ["gate\\u0000.pub"]\n', "proof.keys: not the name of a file"),
        ("# none\n[proof]\nlevel = 'quick'\n", "proof.keys: no key: no proof would hold"),
        (f"{PROOF}required = ['']\n", "$.proof.required"),
        (f"{PROOF}rejudge = 'no'\n", "Expected `bool`, got `str` - at `$.proof.rejudge`"),
        *((f"{PROOF}max_age = '{age}'\n", "$.proof.max_age") for age in ("30", "0d", "-1d", "999999d", "٣d", "30d ")),
        (f"{PROOF}unsigned = true\n", "unknown field `unsigned`"),
        *((f"{PROOF}[promote]\ngpus = ['{gpus}']\n", "$.promote.gpus") for gpus in ("H100", "x8", "H100 x0", " x1")),
        ("proof = 1\n", "$.proof"),
    ],
)
def test_what_is_wrong_is_named(site: Path, text: str, setting: str) -> None:
    path = written(site, text)
    with pytest.raises(ConfigError) as refused:
        read_policy(path)
    assert refused.value.message.startswith(f"{path}: ")
    assert setting in refused.value.message, text
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@each(
    "content, why",
    [
        (b"[proof\n", "line 1"),
        (b"[proof]\nlevel = 'quick'\nlevel = 'full'\n", "line 3"),
        (b"\xff\xfe", "utf-8"),
        (b"a = " + b"[" * 100_000, "nested"),
        (b"a = " + b"9" * 9999, "envcheck-policy.toml: "),
        (b"#" * (2 << 20), "longer than 1 MiB"),
    ],
)
def test_what_is_no_toml_is_one_line(site: Path, content: bytes, why: str) -> None:
    path = written(site, "")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as refused:
        read_policy(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone: No such file"):
        read_policy(tmp_path / "gone")
