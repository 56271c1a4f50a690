"""A second opinion: the verdict rules written again from the file's plain data, over every combination worth asking."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import Query

PLAIN = yaml.safe_load((Path(__file__).parents[3] / "matrix.yaml").read_text())
CUDA = PLAIN["cuda"]
DRIVERS = [
    *("418.40.04", "450.80.01", "450.80.02", "470.256.02", "515.43.04", "520.56.06", "520.61.05", "525.60.12"),
    "525.60.13",
    *("525.105.17", "530.30.02", "535.54.03", "535.161.07", "545.23.06", "550.54.14", "550.90.07", "560.28.03"),
    *("565.57.01", "570.25", "570.26", "570.86.15", "570.86.16", "570.124.06", "575.51.03", "580.65.05", "580.65.06"),
    *("580.82.07", "580.119.02", "590.44.01", "595.45.03", "595.45.04", "610.43.02"),
]


def number(version: str) -> list[int]:
    return list(map(int, version.split(".")))


def branch(version: str) -> str:
    return version.partition(".")[0]


def has_code(build: dict[str, Any], cc: str, cuda: str) -> bool:
    rules = {row["sm"]: row for row in CUDA["code"]}
    for sm in build["sass"]:
        rule = rules[sm]
        if cc in rule.get("only", []):
            return True
        lifted = "excluded_below_cuda" in rule and number(cuda) >= number(rule["excluded_below_cuda"])
        allowed = not rule.get("only") and (lifted or cc not in rule.get("excluded", []))
        if allowed and number(rule["at_least"]) <= number(cc) < number(rule["below"]):
            return True
    return any(number(cc) >= number(ptx) for ptx in build.get("ptx", []))


def too_old_for_gpu(gpu: dict[str, Any], driver: str) -> bool:
    first = gpu.get("first_driver")
    native = {row["cuda"]: row["native_driver"] for row in CUDA["minors"]}
    oldest = native.get(capability(gpu["cc"])["min_cuda"], "0")
    if not gpu.get("driver_verified", True) and int(branch(driver)) >= int(branch(oldest)):
        return False
    if not first:
        least = gpu.get("min_driver") or {"12.8": "570.26"}.get(capability(gpu["cc"])["min_cuda"])
        return least is not None and number(driver) < number(least)
    mine = branch(driver)
    if mine in first:
        return number(driver) < number(first[mine])
    if int(mine) < min(map(int, first)) and "min_driver" in gpu:
        return number(driver) < number(gpu["min_driver"])
    return int(mine) < max(map(int, first))


def capability(cc: str) -> dict[str, Any]:
    return next(row for row in CUDA["capabilities"] if row["cc"] == cc)


def dropped(gpu: dict[str, Any], driver: str) -> bool:
    return any(
        gpu["architecture"] in row.get("drops", []) and int(branch(driver)) >= int(row["branch"])
        for row in PLAIN["drivers"]
    )


def expected(variant: dict[str, Any], gpu: dict[str, Any], driver: str) -> str:  # noqa: PLR0911 (one a verdict)
    build = next((build for build in variant["builds"] if build["arch"] == gpu["host_arch"]), None)
    if build is None:
        return "no-wheel"
    cuda = variant["cuda"]
    if "sass" not in build:
        return "arch-not-in-wheel"
    if not has_code(build, gpu["cc"], cuda):
        built = number(cuda) >= number(capability(gpu["cc"])["min_cuda"])
        return "arch-not-in-wheel" if built else "gpu-too-new-for-cuda"
    if number(gpu["cc"]) < (
        [7, 5] if number(variant["cudnn"]) >= [9, 11] else [5] if variant["cudnn"][0] == "9" else []
    ):
        return "arch-not-in-wheel"
    if dropped(gpu, driver):
        return "gpu-dropped-by-driver"
    if too_old_for_gpu(gpu, driver):
        return "driver-too-old"
    minor = next(row for row in CUDA["minors"] if row["cuda"] == cuda)
    floor = next(row["floor"] for row in CUDA["families"] if row["major"] == branch(cuda))
    if number(driver) >= number(minor["native_driver"]):
        return "ok"
    if number(driver) >= number(floor):
        return "driver-ok-via-minor-compat"
    if gpu["datacenter"] and branch(driver) in minor.get("forward_compat_branches", []):
        return "forward-compat-required"
    return "driver-too-old"


@pytest.mark.parametrize("gpu", PLAIN["gpus"], ids=lambda gpu: gpu["name"])
def test_both_opinions_agree(matrix: Matrix, gpu: dict[str, Any]) -> None:
    facts, seen = Facts(matrix), set()
    device = facts.device(gpu["name"])
    # One release a minor: patches of a minor differ in nothing that a verdict rests on here.
    for release in [row for row in PLAIN["torch"] if row["torch"].endswith((".0", "1.13.1"))]:
        variants = [row for row in release["variants"] if row["variant"] != "cpu"]
        for variant, driver in itertools.product(variants, DRIVERS):
            query = Query(torch=release["torch"], variant=variant["variant"], driver=driver)
            verdict = expected(variant, gpu, driver)
            seen.add(verdict)
            (candidate,) = candidates(facts, query, [device], gpu["host_arch"])
            assert candidate.verdict.name == verdict, query
    assert len(seen) >= 3
