"""The mirrors that can be named: each is a profile that could be a file, says who tells of it, and names no secret."""

import datetime as dt
import errno
import os
from pathlib import Path
from typing import Any, get_args

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import (
    Kind,
    Preset,
    PresetEntry,
    load,
    parse_presets,
    preset_profile,
    presets,
    validate,
)
from envcheck.mirrors.profiles.model import Conda, Index, Profile
from tests.tables import each

NAMES = ("tuna", "ustc", "sjtu", "aliyun", "tencent", "huawei", "nju", "hf-mirror", "modelscope")


def test_the_mirrors_people_use_are_there_in_order() -> None:
    assert set(NAMES) <= set(presets())
    places = zip(presets(), sorted(presets()), strict=True)
    assert [f"{name}: {first} comes before it" for name, first in places if name != first] == [], "sort them by name"


@each("name", presets())
def test_a_preset_is_a_profile_that_a_file_could_hold(name: str) -> None:
    profile = validate(load(name), str)
    assert profile.name == name
    assert profile != Profile(name=name)
    assert profile.credentials == {}
    assert profile.netrc is None


@each("name", presets())
def test_every_address_has_its_source_and_what_its_kind_may_have(name: str) -> None:
    kinds = [entry.kind for entry in presets()[name].entries]
    assert [kind for kind in set(kinds) - {"pypi", "pytorch", "apt", "registry"} if kinds.count(kind) > 1] == []
    for entry in presets()[name].entries:
        assert len(entry.source) > 8
        assert entry.url.startswith("https://") == (entry.kind not in {"registry", "modelscope"})
        assert not entry.url.endswith("/")
        assert entry.last_verified is None or entry.last_verified <= dt.datetime.now(tz=dt.timezone.utc).date()
        assert entry.layout == "simple" or entry.kind in {"pypi", "pytorch"}
        assert entry.upstream == "docker.io" or entry.kind == "registry"
        assert not entry.channels or entry.kind == "conda"


def test_a_wrong_preset_is_named_with_its_key_and_line() -> None:
    text = (
        "example:\n  title: Example\n  region: eu\n  entries:\n    - {kind: pypi, url: 'https://u:s3cr3t@m.example'}\n"
    )
    for change, message in (
        ("", ":5: example.entries[0].url: a user"),
        ("u:s3cr3t@", ":5: example.entries[0]: missing key `source`"),
    ):
        with pytest.raises(ConfigError) as refused:
            parse_presets(text.replace(change, "").encode(), Path("p.yaml"))
        assert str(refused.value).startswith(f"p.yaml{message}")
        assert "s3cr3t" not in str(refused.value)


def test_every_kind_and_both_layouts_of_torch_are_among_them() -> None:
    entries = [entry for preset in presets().values() for entry in preset.entries]
    assert {entry.kind for entry in entries} == set(get_args(Kind))
    assert {entry.layout for entry in entries if entry.kind == "pytorch"} == {"simple", "find-links"}


def test_each_kind_of_entry_becomes_its_part_of_the_profile() -> None:
    fields: list[dict[str, Any]] = [
        {"kind": "pypi", "url": "https://a.example/simple"},
        {"kind": "pytorch", "url": "https://a.example/{variant}", "layout": "find-links"},
        {"kind": "hf", "url": "https://hf.example"},
        {"kind": "apt", "url": "https://a.example"},
        {"kind": "conda", "url": "https://a.example/c", "channels": ["pytorch"]},
        {"kind": "npm", "url": "https://npm.example"},
        {"kind": "registry", "url": "r.example", "upstream": "ghcr.io"},
        {"kind": "modelscope", "url": "ms.example"},
    ]
    entries = [PresetEntry(source="s", last_verified=None, **entry) for entry in fields]
    assert {entry.kind for entry in entries} == set(get_args(Kind))
    profile = preset_profile("x", Preset(title="t", region="cn", entries=entries))
    assert profile.pypi == [Index(url="https://a.example/simple")]
    assert profile.pytorch == [Index(url="https://a.example/{variant}", kind="find-links")]
    assert profile.hf.endpoint == "https://hf.example"
    assert profile.apt == ["https://a.example"]
    assert profile.conda == Conda(
        default_channels=[f"https://a.example/c/pkgs/{name}" for name in ("main", "r", "msys2")],
        custom_channels={"pytorch": "https://a.example/c/cloud"},
    )
    assert profile.npm == "https://npm.example"
    assert profile.registries == {"ghcr.io": ["r.example"]}
    assert profile.modelscope == "ms.example"


def test_user_is_what_was_chosen_and_none_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load("user") == Profile(name="none")
    assert model.write_choice("tuna") == tmp_path / "envcheck/mirror"
    assert load("user") == load("tuna")
    model.write_choice("/gone.yaml")
    with pytest.raises(ConfigError, match=r"no mirror profile '/gone\.yaml'; .*`envcheck mirror use none`"):
        load("user")
    assert model.write_choice(None) == model.write_choice(None) == tmp_path / "envcheck/mirror"
    assert load("user") == Profile(name="none")
    (tmp_path / "envcheck/mirror").write_text("tuna")
    monkeypatch.setattr(Path, "read_text", _refuse)
    with pytest.raises(ConfigError, match=r"/mirror: cannot read the chosen mirror: Permission denied.* --mirror none"):
        model.read_choice()


def _refuse(*_: object, **__: object) -> str:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
