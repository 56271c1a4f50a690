"""What a name of an image means, and what is none."""

from __future__ import annotations

import pytest

from envcheck.errors import ConfigError
from envcheck.registry.references import parse_reference
from tests.tables import each

DIGEST = "sha256:" + "a" * 64


@each(
    "text, shown, url",
    [
        ("torch", "docker.io/library/torch", "https://registry-1.docker.io"),
        ("torch:2.8", "docker.io/library/torch:2.8", "https://registry-1.docker.io"),
        ("team/torch", "docker.io/team/torch", "https://registry-1.docker.io"),
        ("index.docker.io/torch", "docker.io/library/torch", "https://registry-1.docker.io"),
        ("registry.example/torch", "registry.example/torch", "https://registry.example"),
        (
            f"registry.example:5000/a/b:tag@{DIGEST}",
            f"registry.example:5000/a/b:tag@{DIGEST}",
            "https://registry.example:5000",
        ),
        ("Registry.Example/a__b/c-d.e:Tag_1", "registry.example/a__b/c-d.e:Tag_1", "https://registry.example"),
        ("localhost/a", "localhost/a", "http://localhost"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a", "http://127.0.0.1:5000"),
        ("[::1]:5000/a", "[::1]:5000/a", "http://[::1]:5000"),
        ("https://127.0.0.1:5000/a", "127.0.0.1:5000/a", "https://127.0.0.1:5000"),
        ("http://registry.example/a", "registry.example/a", "http://registry.example"),
    ],
)
def test_a_reference_names_a_registry_a_repository_and_what_is_in_it(text: str, shown: str, url: str) -> None:
    reference = parse_reference(text)
    assert (str(reference), reference.url) == (shown, url)


@each(
    "text, why",
    [
        ("", "names no repository"),
        ("registry.example/", "names no repository"),
        ("registry.example/Torch", "not the name of a repository"),
        ("registry.example/a//b", "not the name of a repository"),
        ("registry.example/../b", "not the name of a repository"),
        ("registry.example/" + "a" * 256, "not the name of a repository"),
        ("registry.example/a\n", "not the name of a repository"),
        ("registry.example/a:", "is not a tag"),
        ("registry.example/a:b c", "is not a tag"),
        ("registry.example/a:" + "b" * 129, "is not a tag"),
        ("registry.example/a@sha256:abc", "64 hexadecimal digits"),
        (f"registry.example/a@{DIGEST.upper()}", "64 hexadecimal digits"),
        ("registry.example/a@", "no digest"),
        ("registry.example:0/a", "HOST or HOST:PORT"),
        ("registry.example:65536/a", "HOST or HOST:PORT"),
        ("-registry.example/a", "HOST or HOST:PORT"),
        ("ftp://registry.example/a", "http or https"),
    ],
)
def test_what_is_no_reference_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_reference(text)
    assert str(refused.value).isprintable()


@each("text", ["{}@registry.example/a", "https://{}@registry.example/a", "http://u:{}@r.example/a:b"])
def test_a_password_in_a_reference_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="no digest") as refused:
        parse_reference(text.format("user:CANARY"))
    assert "CANARY" not in str(refused.value)
