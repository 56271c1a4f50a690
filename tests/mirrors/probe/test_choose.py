"""The order that a probe found becomes the order of the sources, for packages and for a model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.hub.revision import HubFile, Revision
from envcheck.mirrors.index import LockedPackage
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.probe.choose import choose_for_locks, choose_for_model, default_mirrors, hub_target
from envcheck.mirrors.probe.measure import Budget, Mirror
from envcheck.mirrors.probe.ranking import REDIRECT_NOTE, RankedMirror
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Index, Profile
from tests.http_server import Answer, Request, Server, Servers, ranged

Serve = Callable[..., Any]
Make = Callable[..., Mirror]
BODY = b"weights" * 30_000
SHA256 = hashlib.sha256(BODY).hexdigest()
COMMIT = "a" * 40
FILES = [
    HubFile(path="empty.txt", size=0, sha256=hashlib.sha256(b"").hexdigest()),
    HubFile(path="model.safetensors", size=len(BODY), sha256=SHA256),
]
REVISION = Revision(repo="org/tiny", revision=COMMIT, files=FILES)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def urls(indexes: list[Index]) -> list[str]:
    return [index.url for index in indexes]


def test_the_best_comes_first_and_who_fails_is_left_out(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    sites = {
        "whole": serve(ranges=False),
        "slow": serve(pause=0.02),
        "gone": serve(gone="other-2.0-py3-none-any.whl"),
        "fast": serve(),
    }
    choice = choose_for_locks(wanted_packages, [mirror(name, site.url) for name, site in sites.items()])
    assert urls(choice.profile.pypi) == [sites[name].url for name in ("fast", "slow", "whole")]
    assert [line.split(" ")[1] for line in choice.reasons] == ["fast", "slow", "whole", "not"]
    assert choice.reasons[3].startswith("pypi: not gone: has 1 of 2 files")
    with pytest.raises(UnavailableError, match="no mirror has all files of pypi: gone: has 1 of 2 files"):
        choose_for_locks(wanted_packages, [mirror("gone", sites["gone"].url)])


def test_each_part_of_a_lock_has_an_order_of_its_own(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    python, torch = serve(), serve()
    both = [wanted_packages[0], dataclasses.replace(wanted_packages[1], index="pytorch/cpu")]
    first, second = mirror("first", python.url), mirror("second")
    with pytest.raises(UnavailableError, match="no mirror has all files of pytorch/cpu: no mirror is known"):
        choose_for_locks(both, [first])
    profile = msgspec.structs.replace(second.profile, pytorch=[Index(url=torch.url)])
    choice = choose_for_locks(both, [first, dataclasses.replace(second, profile=profile)])
    assert (urls(choice.profile.pypi), urls(choice.profile.pytorch)) == ([python.url], [torch.url])


def test_a_source_that_needs_another_ca_is_left_out(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    one, other = serve(), mirror("two", serve(pause=0.05).url)
    other = dataclasses.replace(other, profile=msgspec.structs.replace(other.profile, ca="/other.pem"))
    choice = choose_for_locks(wanted_packages, [mirror("one", one.url), other])
    assert urls(choice.profile.pypi) == [one.url]
    assert choice.reasons[1] == "pypi: not two: it needs another CA or netrc file"


def test_this_machine_the_users_choice_and_the_presets_are_asked(tmp_path: Path) -> None:
    (tmp_path / "config/envcheck").mkdir(parents=True)
    (tmp_path / "site.yaml").write_text("pypi: [{url: 'https://mirror.example/simple'}]\n")
    (tmp_path / "config/envcheck/mirror").write_text(f"{tmp_path / 'site.yaml'}\n")
    names = [mirror.name for mirror in default_mirrors()]
    assert names[:2] == ["host", "site"]
    assert {"tuna", "ustc"} <= set(names)


@dataclasses.dataclass
class Faults:
    """What a hub's endpoint does wrong."""

    commit: str | None = COMMIT
    linked: str = SHA256
    body: bytes = BODY
    at: str = ""
    lacks: bool = False


def answer(faults: Faults, request: Request) -> Answer:
    headers = {"X-Repo-Commit": faults.commit} if faults.commit else {}
    if faults.lacks and COMMIT in request.path:
        return Answer(404)
    if request.path.endswith("model.safetensors"):
        headers |= {"X-Linked-Etag": f'"{faults.linked}"'}
        if faults.at:
            return Answer(302, headers={**headers, "Location": f"{faults.at}/cdn"})
    return ranged(request, b"" if request.path.endswith("empty.txt") else faults.body, headers)


@pytest.fixture
def hub(servers: Servers) -> Callable[..., Server]:
    """Give a function that starts an endpoint, each on an address of its own."""
    addresses = (f"127.0.1.{number}" for number in itertools.count(2))
    return lambda **faults: servers.start(Server(functools.partial(answer, Faults(**faults)), next(addresses)))


def judged(*endpoints: str, **options: Any) -> RankedMirror:
    profile = Profile(name="hub", hf=HuggingFace(endpoint=endpoints[0], fallbacks=list(endpoints[1:])))
    mirror = Mirror("hub", profile, Client(connect=1.0, read=2.0))
    verify = options.pop("verify", False)
    return hub_target(REVISION, verify=verify).ranked([mirror], Budget(32 << 20, 10.0), **options)[0]


def why(ranked: RankedMirror, gate: str) -> str:
    return next(one.why for one in ranked.criteria if one.name == gate)


def test_an_endpoint_that_is_right_passes_every_gate(hub: Serve) -> None:
    ranked = judged(hub().url, no_redirects=True, verify=True)
    assert ranked.passed, ranked.criteria
    assert why(ranked, "commit") == "aaaaaaaaaaaa for every file"
    assert why(ranked, "hash").startswith("2 by hashing the file")
    assert ranked.measured.rate is not None
    assert judged(hub(lacks=True).url, hub().url).passed


@pytest.mark.parametrize(
    ("faults", "gate", "message"),
    [
        ({"commit": "b" * 40}, "commit", "empty.txt: X-Repo-Commit is bbbbbbbbbbbb"),
        ({"commit": None}, "commit", "empty.txt: no X-Repo-Commit, so huggingface_hub refuses the file"),
        ({"linked": "0" * 64}, "hash", "model.safetensors: served with sha256 000000000000..., expected "),
        ({"body": BODY + b"x"}, "hash", f"has {len(BODY) + 1} bytes, expected {len(BODY)}"),
        ({"lacks": True}, "coverage", "lacks commit aaaaaaaaaaaa: has 0 of 2 files; empty.txt: "),
    ],
)
def test_what_is_not_what_was_pinned_fails_its_gate(
    hub: Serve, faults: dict[str, object], gate: str, message: str
) -> None:
    ranked = judged(hub(**faults).url)
    assert ranked.failed_criteria == {gate}
    assert message in why(ranked, gate)
    assert ranked.measured.rate is None


def test_the_commit_is_read_off_the_first_host_and_the_bytes_off_the_last(hub: Serve) -> None:
    cdn = hub(commit=None)
    front = hub(at=cdn.url)
    result = judged(front.url)
    assert result.passed, result.criteria
    assert judged(front.url, no_redirects=True).failed_criteria == {"stays"}
    assert why(result, "stays") == f"1 of 2 files from {cdn.netloc}"
    assert result.notes == [REDIRECT_NOTE]


def test_a_token_is_for_the_endpoints_of_the_profile_that_allows_it(hub: Serve) -> None:
    """Joined to one profile, a mirror that may see HF_TOKEN does not take another one along."""
    at = {name: hub().url for name in "abc"}
    own = Credential(token_env="OTHER")  # noqa: S106
    hosts = {name: url.removeprefix("http://") for name, url in at.items()}
    profiles = [
        Profile(name="a", hf=HuggingFace(endpoint=at["a"], token="allow")),  # noqa: S106
        Profile(name="b", hf=HuggingFace(endpoint=at["b"])),
        Profile(name="c", hf=HuggingFace(endpoint=at["c"]), credentials={hosts["c"]: own}),
    ]
    mirrors = [Mirror(profile.name, profile, Client()) for profile in profiles]
    joined = choose_for_model(REVISION, mirrors, {"HF_TOKEN": "canary"}).profile
    assert set(joined.hf.endpoints) == set(at.values())
    assert joined.credentials == {hosts["a"]: Credential(token_env="HF_TOKEN"), hosts["c"]: own}  # noqa: S106
    logins = hub_api.logins(joined, environ={"HF_TOKEN": "canary", "OTHER": "other"})
    sent = {url: [header for one in logins if (header := one.header(f"{url}/x"))] for url in joined.hf.endpoints}
    assert sent == {at["a"]: ["Bearer canary"], at["b"]: [], at["c"]: ["Bearer other"]}
    with pytest.raises(UnavailableError, match="no mirror has all files: no mirror is known"):
        choose_for_model(REVISION, [])
