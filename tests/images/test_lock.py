"""A lock holds exact, hashed pins and nothing else, in one form."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.images.lock import digest, divide, format_lock, group_of, parse_lock, version_of
from envcheck.images.pins import Lock, Pin

SHA = "a" * 64
GOOD = f"# title\n# index: pypi\nsix==1.17.0 \\\n    --hash=sha256:{SHA}\n"

names = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,3}){1,3}(\+(cpu|cu128))?", fullmatch=True)
hashes = st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), min_size=1, max_size=3, unique=True)
pins = st.builds(Pin, name=names, version=versions, sha256=hashes)


@given(st.lists(pins, min_size=1, max_size=6, unique_by=lambda pin: pin.name), st.sampled_from(["pypi", "pytorch/cpu"]))
def test_what_is_written_is_read_again_in_one_canonical_form(members: list[Pin], index: str) -> None:
    text = format_lock(Lock(group="base", index=index, pins=members), "any title")
    again = parse_lock(text, "base", "x.lock")
    assert again.index == index
    assert {(p.name, p.version, frozenset(p.sha256)) for p in again.pins} == {
        (p.name, p.version, frozenset(p.sha256)) for p in members
    }
    assert format_lock(again, "any title") == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("# index: pypi\n", ""), "x.lock:1: no `# index"),
        (GOOD.replace("pypi", "conda"), "x.lock:1: no `# index"),
        (GOOD.replace("==1.17.0", ">=1.17.0"), "x.lock:3: 'six>=1.17.0"),
        (GOOD.replace("1.17.0", "1.17.*"), "x.lock:3: '1.17.*' is no version"),
        (GOOD.replace("six==1.17.0", "six @ https://mirror.example/six.whl"), "x.lock:3:"),
        (GOOD.replace(SHA, SHA[1:]), "x.lock:4: no sha256"),
        (GOOD.replace("sha256", "md5"), "x.lock:4: no sha256"),
        (GOOD.replace(" \\\n", "\n"), "x.lock:3:"),
        (GOOD.rstrip("\n") + " \\\n", "x.lock:4: ends early"),
        ("# index: pypi\n", "x.lock:1: ends early"),
        (GOOD + "--extra" + "-index-url https://mirror.example\n", "x.lock:5:"),
    ],
)
def test_whatever_is_no_exact_hashed_pin_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_lock(text, "base", "x.lock")
    assert refused.value.message.startswith(said)


def test_layers_go_from_the_rarest_change_to_the_most_frequent() -> None:
    members = [
        Pin(name=n, version="1", sha256=[SHA])
        for n in ("numpy", "torch", "triton", "nvidia-nccl-cu12", "cuda-bindings")
    ]
    found = divide(members, "pytorch/cu128")
    assert [(lock.group, lock.index) for lock in found] == [
        ("nvidia", "pypi"),
        ("torch", "pytorch/cu128"),
        ("base", "pypi"),
    ]
    assert [pin.name for pin in found[0].pins] == ["cuda-bindings", "nvidia-nccl-cu12", "triton"]


def test_a_package_that_only_sounds_like_torch_is_not_in_its_layer() -> None:
    assert group_of("torchmetrics") == "base"
    assert group_of("torchvision") == "torch"
    assert group_of("tritonclient") == "base"


def test_the_digest_stands_for_the_pins_and_for_nothing_else(locks: list[Lock]) -> None:
    title = [parse_lock(format_lock(lock, "another title"), lock.group, "x") for lock in locks]
    assert digest(title) == digest(locks)
    pin = msgspec.structs.replace(locks[2].pins[0], sha256=["0" * 64])
    assert digest([*locks[:2], msgspec.structs.replace(locks[2], pins=[pin])]) != digest(locks)


def test_a_version_is_found_by_the_whole_name(locks: list[Lock]) -> None:
    assert version_of(locks, "nvidia-cudnn(-cu[0-9]+)?") == "9.10.2.21"
    assert version_of(locks, "nvidia-cudnn") is None
