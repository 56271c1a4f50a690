"""Which domain a node is in, as a file of lines says."""

from __future__ import annotations

from pathlib import Path

from envcheck.fleet.pairs.session import read_domains


def test_a_name_and_its_nodes_stand_apart_by_any_blanks(tmp_path: Path) -> None:
    (tmp_path / "domains").write_text("# all\na\tn[1-2]\n\nb   n3  # the rest\nb\tn4\n")
    nodes = ["n1", "n2", "n3", "n4"]
    assert read_domains(tmp_path / "domains", nodes) == {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
