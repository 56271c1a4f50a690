"""The order that a probe found becomes the order of the sources."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.probe.file_matches import WantedPackage
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.profiles.model import Index
from envcheck.mirrors.select.by_lock import choose, default_mirrors, rank_mirrors
from tests.mirrors.probe.conftest import WHEELS

Serve = Callable[..., Any]
Make = Callable[..., Mirror]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def urls(indexes: list[Index]) -> list[str]:
    return [index.url for index in indexes]


def test_the_best_comes_first_and_who_fails_is_left_out(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]
) -> None:
    whole, slow, fast, missing = (
        serve(ranges=False),
        serve(pause=0.02),
        serve(),
        serve(gone="other-2.0-py3-none-any.whl"),
    )
    named = {"whole": whole, "slow": slow, "gone": missing, "fast": fast}
    choice = choose(wanted_packages, mirrors=[mirror(name, site.url) for name, site in named.items()])
    assert urls(choice.profile.pypi) == [fast.url, slow.url, whole.url]
    assert [line.split(" ")[1] for line in choice.reasons] == ["fast", "slow", "whole", "not"]
    assert choice.reasons[3].startswith("pypi: not gone: has 1 of 2 files")


def test_the_region_is_a_prior_of_auto_too(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = [mirror("here", serve().url, region="cn")]
    monkeypatch.delenv("ENVCHECK_MIRROR_PROBE_REGION", raising=False)
    points = [rank_mirrors(wanted_packages, mirrors)[0].score_parts[0].points]
    monkeypatch.setenv("ENVCHECK_MIRROR_PROBE_REGION", "cn")
    points += [
        rank_mirrors(wanted_packages, mirrors)[0].score_parts[0].points,
        rank_mirrors(wanted_packages, mirrors, own_region="us")[0].score_parts[0].points,
    ]
    assert points == [0.0, 5.0, 0.0]


def test_nobody_has_it(serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]) -> None:
    site = serve(gone="demo-1.0-py3-none-any.whl")
    with pytest.raises(UnavailableError, match="no mirror has all files of pypi: gone: has 1 of 2 files"):
        choose(wanted_packages, mirrors=[mirror("gone", site.url)])


def test_a_part_that_no_profile_has_an_index_for(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]
) -> None:
    both = [wanted_packages[0], dataclasses.replace(wanted_packages[1], part="pytorch/cpu")]
    with pytest.raises(UnavailableError, match="no mirror has all files of pytorch/cpu: no mirror is known"):
        choose(both, mirrors=[mirror("python", serve().url)])


def test_each_part_of_a_lock_has_an_order_of_its_own(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]
) -> None:
    python, torch = serve(), serve()
    both = [wanted_packages[0], dataclasses.replace(wanted_packages[1], part="pytorch/cpu")]
    first = mirror("first", python.url)
    second = mirror("second")
    profile = msgspec.structs.replace(second.profile, pytorch=[Index(url=torch.url)])
    choice = choose(both, mirrors=[first, dataclasses.replace(second, profile=profile)])
    assert (urls(choice.profile.pypi), urls(choice.profile.pytorch)) == ([python.url], [torch.url])


def test_a_source_that_needs_another_ca_is_left_out_and_said(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], tmp_path: Path
) -> None:
    one, two = serve(), serve(pause=0.05)
    other = mirror("two", two.url)
    (tmp_path / "other.pem").write_text("elsewhere")
    other = dataclasses.replace(other, profile=msgspec.structs.replace(other.profile, ca=str(tmp_path / "other.pem")))
    choice = choose(wanted_packages, mirrors=[mirror("one", one.url), other])
    assert urls(choice.profile.pypi) == [one.url]
    assert choice.reasons[1] == "pypi: not two: it needs another CA or netrc file"


def test_this_machine_the_users_choice_and_the_presets_are_asked(tmp_path: Path) -> None:
    (tmp_path / "config/envcheck").mkdir(parents=True)
    (tmp_path / "site.yaml").write_text("pypi: [{url: 'https://mirror.example/simple'}]\n")
    (tmp_path / "config/envcheck/mirror").write_text(f"{tmp_path / 'site.yaml'}\n")
    names = [mirror.name for mirror in default_mirrors()]
    assert names[:2] == ["host", "site"]
    assert {"tuna", "ustc"} <= set(names)


def test_wheels_of_this_machine_do_where_no_mirror_does(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], tmp_path: Path
) -> None:
    indexes = mirror("gone", serve(gone="demo-1.0-py3-none-any.whl").url)
    local = Index(url=str(tmp_path), kind="find-links")
    profile = msgspec.structs.replace(indexes.profile, pypi=[*indexes.profile.pypi, local])
    choice = choose(wanted_packages, mirrors=[dataclasses.replace(indexes, profile=profile)])
    assert choice.profile.pypi == [local]
    assert choice.reasons[0] == "pypi: no mirror, only this machine's directories of wheels"
    for name, body in WHEELS.items():
        (tmp_path / name).write_bytes(body)
    choice = choose(wanted_packages, mirrors=[dataclasses.replace(indexes, profile=profile)])
    assert choice.reasons == ("pypi: gone (all files are in this machine's directories)",)
