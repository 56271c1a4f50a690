"""Where a build's parts came from is read off its log, BuildKit's or a plain one."""

from envcheck.images.build_log import UsedSource, used

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
