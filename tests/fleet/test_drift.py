"""Drift: the majority of the group, and who has something else."""

from envcheck.fleet.groups import ConfigurationDrift, drift


def drifts(contents: dict[str, dict[str, str]], **nodes: list[str]) -> list[ConfigurationDrift]:
    return [*drift(0, {node: contents[key] for key, members in nodes.items() for node in members})]


def test_a_node_that_differs_is_named_with_its_value() -> None:
    [row] = drifts({"a": {"kernel": "1"}, "b": {"kernel": "2"}}, a=["n1", "n2", "n10"], b=["n3"])
    assert (row.signal, row.majority, row.share, row.others) == ("kernel", "1", 0.75, {"2": ["n3"]})


def test_half_is_no_majority() -> None:
    [row] = drifts({"a": {"kernel": "1"}, "b": {"kernel": "2"}}, a=["n1"], b=["n2"])
    assert row.majority is None
    assert row.others == {"1": ["n1"], "2": ["n2"]}


def test_a_signal_that_was_not_read_is_no_difference_and_a_variable_that_is_not_set_is_one() -> None:
    one, other = {"kernel": "1", "env.NCCL_ALGO": "Ring"}, {"env.NCCL_DEBUG": "INFO"}
    rows = {row.signal: row for row in drifts({"a": one, "b": other}, a=["n1", "n2"], b=["n3"])}
    assert sorted(rows) == ["env.NCCL_ALGO", "env.NCCL_DEBUG"]
    assert rows["env.NCCL_ALGO"].others == {"not set": ["n3"]}
    assert rows["env.NCCL_DEBUG"].majority == "not set"
