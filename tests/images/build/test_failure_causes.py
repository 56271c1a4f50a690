"""A failed build names its step, its last words and what to do; texts are what the tools really print."""

from envcheck.images.build_log import diagnose, explain
from tests.tables import each

REAL = {
    "disk": "OSError: [Errno 28] No space left on device",
    "disk apt": "E: You don't have enough free space in /var/cache/apt/archives/.",
    "disk docker": "write /var/lib/docker/tmp/x: no space left on device",
    "disk in capitals": "NO SPACE LEFT ON DEVICE",
    "disk quota": "cp: error writing '/opt/venv/x': Disk quota exceeded",
    "hash": "error: Hash mismatch for `torch==2.13.0+cpu`",
    "hash pip": "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
    "TLS": "  Caused by: invalid peer certificate: UnknownIssuer",
    "TLS pip": "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))",
    "TLS apt": "Certificate verification failed: The certificate is NOT trusted.",
    "version assertion": "envcheck: proof failed: torch is 2.4.1+cu124, expected 2.8.0+cu128",
    "resolve": "W: Failed to fetch http://mirror.example/debian  Temporary failure resolving 'mirror.example'",
    "resolve uv": "  Caused by: dns error: failed to lookup address information: Name or service not known",
    "reached": "  Caused by: tcp connect error: Connection refused (os error 111)",
    "401": "HTTP status client error (401 Unauthorized) for url (https://mirror.example/simple/)",
    "403 pip": "ERROR: HTTP error 403 while getting: 403 Client Error: Forbidden for url",
    "404": "HTTP status client error (404 Not Found) for url (https://mirror.example/simple/torch/)",
    "404 apt": "Err:1 http://mirror.example/debian bookworm Release\n  404  Not Found",
    "matching distribution": "ERROR: No matching distribution found for torch==2.13.0+cpu",
    "matching distribution uv": "because there is no version of torch==2.13.0+cpu",
    "timed out": "error: operation timed out",
    "named context": "ERROR: failed to solve: unsupported frontend capability moby.buildkit.frontend.contexts",
    "base image": 'failed to resolve source metadata for registry.example/debian: "pull access denied"',
    "permission": "mkdir: cannot create directory '/opt/venv': Permission denied",
}


@each("name", REAL)
def test_known_failures_are_named(name: str) -> None:
    cause = diagnose(REAL[name])
    assert cause is not None
    assert name.split(maxsplit=1)[0] in cause.what
    assert cause.fix


@each(
    "text, what",
    [
        (REAL["resolve"], "mirror.example does not resolve"),
        (REAL["resolve uv"], "a host does not resolve"),
        ("E: Could not resolve 'deb.example'", "deb.example does not resolve"),
        ("Failed to fetch: https://joe@a.example/x\n  tcp connect error: Connection refused", "a.example cannot be"),
        (
            "from http://a.example/x\nat http://b.example:81/y\ndns error\nused http://c.example",
            "b.example:81 does not",
        ),
    ],
)
def test_the_host_that_does_not_answer_is_named(text: str, what: str) -> None:
    cause = diagnose(text)
    assert cause is not None
    assert cause.what.startswith(what)


def test_a_full_disk_outranks_what_follows_from_it() -> None:
    cause = diagnose(f"{REAL['matching distribution']}\n{REAL['disk']}")
    assert cause is not None
    assert cause.what == "the disk is full"


LOG = """#1 [internal] load build definition from Dockerfile
#1 DONE 0.0s
#7 [runtime 3/9] RUN apt-get update
#7 1.201 connection to a slow mirror timed out, trying the next
#7 DONE 3.0s
#8 [runtime 4/9] RUN --mount=type=bind,target=/ctx sh /ctx/install.sh torch
#8 0.310 looking at torch
#8 0.900 error: Hash mismatch for `torch==2.13.0+cpu`
#8 ERROR: process "/bin/sh -c sh /ctx/install.sh torch" did not complete successfully: exit code: 1
------
 > [runtime 4/9] RUN --mount=type=bind,target=/ctx sh /ctx/install.sh torch:
------
"""


def test_the_failing_step_is_told_from_the_others() -> None:
    failure = explain(LOG)
    assert failure.step == "[runtime 4/9] RUN sh /ctx/install.sh torch"
    assert failure.lines[:2] == ["looking at torch", "error: Hash mismatch for `torch==2.13.0+cpu`"]
    assert failure.cause is not None
    assert failure.cause.what.startswith("hash mismatch")


def test_a_log_of_no_known_form_still_shows_its_end() -> None:
    failure = explain("something\nelse entirely\n")
    assert failure.lines == ["something", "else entirely"]
    assert failure.cause is None
