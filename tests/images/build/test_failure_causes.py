"""A failed build names its step, its last words and what to do; texts are what the tools really print."""

from envcheck.images.build_log import UsedSource, diagnose, explain, used
from envcheck.images.engines import Engine
from tests.tables import beside, each

REAL: dict[str, str] = beside(__file__)["known"]


def cause_of(text: str) -> str:
    cause = diagnose(text)
    assert cause is not None
    assert cause.fix
    return cause.what


@each("name", REAL)
def test_known_failures_are_named(name: str) -> None:
    assert name.split(maxsplit=1)[0] in cause_of(REAL[name])


@each("link, text, told", [(link, *row) for link, row in beside(__file__)["build"].items()])
def test_what_a_build_says_has_its_cause_and_remedy(link: str, text: str, told: str) -> None:
    cause = diagnose(text)
    assert cause is not None, link
    assert told in f"{cause.what}; {cause.fix}", link


@each("link, text, told", [(link, *row) for link, row in beside(__file__)["engine"].items()])
def test_what_an_engine_says_of_a_machine_or_registry_has_its_remedy(link: str, text: str, told: str) -> None:
    engine = Engine("podman" if "podman" in link else "docker")
    assert told in str(engine.failed(["start"], text)), link


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
    assert cause_of(text).startswith(what)


def test_a_full_disk_outranks_what_follows_from_it() -> None:
    assert cause_of(f"{REAL['matching distribution']}\n{REAL['disk']}") == "the disk is full"


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
    syntax = "failed to create LLB definition: dockerfile parse error line 3"
    failure = explain(f"{syntax}\nfailed to receive status: rpc error: code = Canceled\n")
    assert (failure.lines[0], len(failure.lines), failure.cause) == (syntax, 2, None)


BUILDKIT = """\
#7 [os 1/1] RUN sh /run/mirror/os.sh tini
#7 0.3 envcheck: os: the profile's apt mirrors failed rc=100
#7 2.3 envcheck: os: used the base's own apt sources
#9 [runtime 1/6] RUN sh /run/mirror/install.sh torch /opt/venv
#9 1.234 error: Hash mismatch for `torch==2.13.0`
#9 1.235 envcheck: torch: pypi-1 (a.example:81) failed rc=2
#9 2.0 something of no known cause
#9 2.1 envcheck: torch: pypi-2 (b.example) failed rc=7
#9 9.999 envcheck: torch: used pytorch-default
#10 [runtime 2/6] RUN sh /run/mirror/install.sh base /opt/venv
#10 1.0 envcheck: base: used pypi-1 (a.example:81)
"""


def test_each_group_has_its_source_and_why_not_those_before() -> None:
    assert used(BUILDKIT) == [
        UsedSource(
            group="os", source="the base's own apt sources", failed={"the profile's apt mirrors": "exit status 100"}
        ),
        UsedSource(
            group="torch",
            source="pytorch-default",
            failed={
                "pypi-1 (a.example:81)": "hash mismatch: a file is not the one that was locked",
                "pypi-2 (b.example)": "exit status 7",
            },
        ),
        UsedSource(group="base", source="pypi-1 (a.example:81)", failed={}),
    ]


def test_what_a_package_prints_within_a_line_is_not_believed() -> None:
    assert used("note: envcheck: base: used pypi-1\nenvcheck: base: used\n") == []
