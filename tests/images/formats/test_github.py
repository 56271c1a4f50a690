"""The matrix of GitHub Actions."""

import json

import msgspec
import pytest

from envcheck.errors import ConfigError
from envcheck.images.formats import MOST_JOBS, written
from envcheck.images.spec import ImageSpec
from tests.images.formats.cells import CPU, REPOSITORY, specs


def spec() -> ImageSpec:
    return specs(CPU)[0]


def test_a_job_says_all_that_a_workflow_needs_on_one_line() -> None:
    text = written("github", [spec(), msgspec.structs.replace(spec(), arch="aarch64")], REPOSITORY)
    assert text.count("\n") == 1
    assert json.loads(text)["include"][1] == {
        "cell": "torch2.13.0-cpu-py311",
        "target": "runtime",
        "platform": "linux/arm64",
        "runner": "ubuntu-24.04-arm",
        "tag": "registry.example/ml/torch:2.13.0-cpu-py311-runtime",
        "torch": "2.13.0",
        "variant": "cpu",
        "python": "3.11",
    }


def test_more_jobs_than_github_takes_are_refused() -> None:
    assert len(json.loads(written("github", [spec()] * MOST_JOBS, REPOSITORY))["include"]) == MOST_JOBS
    with pytest.raises(ConfigError, match="257 jobs, and GitHub takes 256"):
        written("github", [spec()] * (MOST_JOBS + 1), REPOSITORY)
