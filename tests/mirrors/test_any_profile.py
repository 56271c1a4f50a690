"""Whatever YAML a site's profile holds, it is a profile, or one line names the file, the line and the key."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.load import parse
from envcheck.mirrors.profiles.model import Conda, Credential, HuggingFace, Index, Profile

STRUCTS = (Profile, HuggingFace, Conda, Credential, Index)
KEYS = sorted({field.name for struct in STRUCTS for field in msgspec.structs.fields(struct)})
# What an error's text could be taken apart at, and what is read as a path, a URL or a host.
TEXTS = [
    "$.registries[...]",
    " - at `$.credentials[...]`",
    "unknown field `x`",
    "~no.such.user/x",
    "~",
    "default",
    "a" * 5000,
]
TEXTS += ["https://a.example/x", "http://[x", "https://a:1@b", "/srv", "host:80", "x\0", "{variant}", "{", "file://%"]
TEXT = st.sampled_from([*TEXTS, *KEYS, "never", "simple"]) | st.text(max_size=8)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.dates() | st.binary(max_size=4)
NAMES = TEXT | st.none() | st.booleans() | st.integers() | st.dates()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@pytest.mark.parametrize("key", [field.name for field in msgspec.structs.fields(Profile)])
@settings(max_examples=40)
@given(value=VALUES)
@example(value=[{"a": {"b": 1}}])
@example(value={"a": [{"b": 1}]})
@example(value={1: ["x"]})
@example(value="~no.such.user/x")
@example(value="a" * 5000)
@example(value="http://[x")
@example(value={" - at `$.credentials[...]`": None})
@example(value=[{" - at `$.hf": None}])
@example(value={"a": {"b": "c"}})
def test_any_value_of_a_key_is_accepted_or_refused_by_name(key: str, value: Any) -> None:
    message = outcome({key: value})
    assert message is None or re.fullmatch(rf"x\.yaml:\d+: {key}\b.*", message), message


class UnaliasedDumper(yaml.SafeDumper):
    """Writes what is in two places twice: an alias is refused before anything else is read."""

    def ignore_aliases(self, data: Any) -> bool:
        """Tell that nothing is to become an alias."""
        return data is not self


def outcome(value: Any) -> str | None:
    """Return what is said of a profile of this value, or None if it is one."""
    text = yaml.dump(value, Dumper=UnaliasedDumper)
    try:
        parse(text.encode(), Path("x.yaml"))
    except ConfigError as error:
        return str(error)
    return None
