"""The step summary as GitHub shows it."""

from envcheck.reports.formats.markdown import markdown
from tests.builders import SLOW, report, row


def test_the_verdict_then_what_is_wrong_then_the_table() -> None:
    lines = markdown(report(row("good", "pass"), SLOW)).splitlines()
    assert lines[0] == "## ❌ FAIL: nccl"
    assert "- ran on: 8 x NVIDIA H100 80GB HBM3, driver 570.124.06" in [line.replace(" (nccl)", "") for line in lines]
    at = lines.index("### ❌ fail: nccl")
    assert lines[at + 2 : at + 7] == [
        "- why: nccl said so",
        "- value: 312.5 GB/s",
        "- limit: ≥ 380 GB/s",
        "- source: a data sheet",
        "- to do: restart it",
    ]
    assert lines[-2:] == [
        "| ❌ fail | nccl | nccl said so | 312.5 GB/s | ≥ 380 GB/s |",
        "| ✅ pass | good | good said so |  |  |",
    ]


def test_what_markdown_would_take_for_its_own_is_escaped() -> None:
    text = markdown(report(row("x", "warn", summary="a|b\n# no <img> `c` $d$", remedy="none")))
    assert r"a\|b \# no \<img\> \`c\` \$d\$" in text


def test_a_summary_never_passes_what_github_takes() -> None:
    text = markdown(report(*(row(f"c{i}", "fail", summary=f"{i}" + "é" * 20000, remedy="x") for i in range(40))))
    assert len(text.encode()) < 1 << 20
    assert text.endswith("(cut here: see the report itself)\n")
    assert "<br>" not in text.splitlines()[-1]
