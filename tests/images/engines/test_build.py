"""From spec to tag, against an engine that keeps its images in a dict: what is skipped, refused, tagged, held back."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.data import state_path
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.images.build_log import FailedError
from envcheck.images.engines import Engine, ImageInfo
from envcheck.images.engines import bootstrap as bases
from envcheck.images.engines import build as building
from envcheck.images.engines.build import BuildResult, TargetRequest
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.lockfile import Lock
from envcheck.images.plan import BuildPlan
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.tables import each
from tests.waiting import eventually


class _Shelf(Engine):
    """An engine without a machine: `labels` are what its builds say of themselves, `status` how they end."""

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__("docker")
        self.labels = labels
        self.status: int | None = 0
        self.images: dict[str, ImageInfo] = {}
        self.registry: set[str] = set()
        self.mirrored: set[str] = set()  # what the daemon's registry mirrors have, which only a pull asks
        self.builds: list[BuildPlan] = []
        self.alive = True
        self.failing: set[str] = set()
        self.says = "#1 [1/1] RUN true\n#1 0.1 error: Hash mismatch for `numpy`\n#1 ERROR: exit code: 1\n"
        self.meanwhile: Callable[[], None] = lambda: None

    def answers(self) -> bool:
        return self.alive

    def put(self, reference: str, labels: dict[str, str], number: int = 0) -> None:
        self.images[reference] = ImageInfo(f"sha256:{number}", 1, [], labels, {}, "", [f"sha256:{reference}"])

    def frontend(self) -> list[str]:
        return ["docker", "build"]

    def inspect(self, reference: str) -> ImageInfo | None:
        by_id = (image for image in self.images.values() if image.id == reference)
        return self.images.get(reference) or next(by_id, None)

    def sizes(self, image: ImageInfo) -> tuple[int, int | None]:
        assert image.id
        return 3, None

    def pushed_bytes(self, reference: str) -> int | None:
        return 2 if reference.startswith("r.example/me/torch@sha256:") else None

    def has_remote(self, reference: str) -> bool:
        return reference in self.registry

    def pull(self, reference: str) -> None:
        if reference not in self.registry | self.mirrored:
            raise UnavailableError(reference, fix="")
        self.put(reference, {})

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        assert profile.name
        self.put(bases.reference(spec.base, spec.arch, packages), {})
        return bases.reference(spec.base, spec.arch, packages)

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        return [self.build_one(plan, on_line, timeout) for plan in plans]

    def build_one(self, plan: BuildPlan, on_line: Callable[[str], None], timeout: float) -> CommandResult:
        assert timeout > 0
        self.builds.append(plan)
        on_line("#1 [1/1] RUN true")
        self.meanwhile()
        status = 1 if plan.target in self.failing else self.status
        if status == 0:
            own = {"envcheck.target": plan.target, **self.labels, **plan.labels}
            self.put(plan.name, own, len(self.builds))
        return CommandResult(status, self.says)

    def tag(self, image: str, reference: str) -> None:
        self.images[reference] = next(i for i in self.images.values() if i.id == image)

    def push(self, reference: str, timeout: float) -> str:
        assert timeout > 0
        self.meanwhile()
        return f"sha256:of-{reference}"

    def untag(self, reference: str) -> None:
        self.images.pop(reference, None)


@pytest.fixture
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, Cell(torch="2.8.0", variant="cu128", python="3.11"), locks)


@pytest.fixture
def shelf(spec: ImageSpec) -> _Shelf:
    return _Shelf({f"envcheck.{name}": value for name, value in spec.promises.items()})


@pytest.fixture
def order(spec: ImageSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TargetRequest:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path))
    return TargetRequest(spec, Profile(name="t"), "site/torch", None, "auto", 60.0)


def build(shelf: _Shelf, order: TargetRequest) -> BuildResult:
    (built,) = build_all(shelf, [order])
    return built


def build_all(shelf: _Shelf, requests: Sequence[TargetRequest]) -> list[BuildResult]:
    return building.build(shelf, requests, say=lambda _: None, on_line=lambda _: None)


def test_what_was_proven_is_pushed_under_its_full_tag(shelf: _Shelf, order: TargetRequest) -> None:
    built = build(shelf, order)
    name = "r.example/me/torch:2.8.0-cu128-py311-runtime"
    pushed = building.push(shelf, built, "r.example/me/torch", 60)
    assert pushed.pushed == f"r.example/me/torch@sha256:of-{name}"
    assert [(one.bytes_on_disk, one.bytes_compressed) for one in (built, pushed)] == [(3, None), (3, 2)]
    assert shelf.images[name].id == built.id
    shelf.meanwhile = lambda: shelf.put(name, {}, number=99)
    with pytest.raises(PromiseError, match="became another image while it was pushed"):
        building.push(shelf, built, "r.example/me/torch", 60)


def test_a_built_image_gets_its_tag_and_its_aliases_and_no_other_name(shelf: _Shelf, order: TargetRequest) -> None:
    built = build(shelf, order)
    assert built.tags[0] == built.image == "site/torch:2.8.0-cu128-py311-runtime"
    assert len(built.tags) == 6
    assert {name for name in shelf.images if "envcheck/base" not in name} == {*built.tags}


def test_an_image_that_lies_gets_no_tag_at_all(shelf: _Shelf, order: TargetRequest) -> None:
    shelf.labels["envcheck.torch"] = "2.4.1+cu124"
    with pytest.raises(PromiseError, match=r"envcheck\.torch is 2\.4\.1\+cu124, expected 2\.8\.0\+cu128"):
        build(shelf, order)
    assert [name for name in shelf.images if not name.startswith("localhost/envcheck/base")] == []


def test_an_image_that_another_state_folder_tagged_meanwhile_is_found(
    shelf: _Shelf, order: TargetRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_one = shelf.build_one

    def taken(plan: BuildPlan, on_line: Callable[[str], None], timeout: float) -> CommandResult:
        ended = build_one(plan, on_line, timeout)
        shelf.images[plan.tag] = shelf.images.pop(plan.name)
        return ended

    monkeypatch.setattr(shelf, "build_one", taken)
    built = build(shelf, order)
    assert (built.id, built.skipped) == (shelf.images[built.image].id, False)


def test_an_image_that_cannot_be_tagged_is_kept(
    shelf: _Shelf, order: TargetRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(image: str, reference: str) -> None:
        message = f"docker tag {image} {reference}: no space left on device"
        raise UnavailableError(message, fix="")

    monkeypatch.setattr(shelf, "tag", full)
    with pytest.raises(UnavailableError, match="no space left"):
        build(shelf, order)
    assert shelf.builds[0].name in shelf.images


def test_an_image_of_another_key_is_not_taken_for_this_one(shelf: _Shelf, order: TargetRequest) -> None:
    """It promises the same, and was made by other steps."""
    built = build(shelf, order)
    shelf.put(built.image, {**shelf.images[built.image].labels, "envcheck.key": "0" * 64}, number=1)
    assert build(shelf, order).skipped is False
    assert len(shelf.builds) == 2


def test_a_failed_build_names_step_cause_and_log(shelf: _Shelf, order: TargetRequest) -> None:
    shelf.status = 1
    with pytest.raises(FailedError, match="hash mismatch") as failed:
        build(shelf, order)
    assert failed.value.detail[:2] == ["in [1/1] RUN true", "error: Hash mismatch for `numpy`"]
    log = state_path("logs", f"{order.spec.cell}-runtime.log")
    assert str(log) in str(failed.value)
    assert "Hash mismatch" in log.read_text()
    assert "\n" not in str(failed.value)


def test_a_build_past_its_limit_is_a_failure(shelf: _Shelf, order: TargetRequest) -> None:
    shelf.status = None
    with pytest.raises(FailedError):
        build(shelf, order)
    assert "timed out" in FailedError("x", "timed out after 60 s", Path("log")).message


@each(
    "policy, registry, base",
    [
        ("auto", {"debian:bookworm-slim"}, "debian:bookworm-slim"),
        ("auto", set(), "localhost/envcheck/base"),
        ("bootstrap", {"debian:bookworm-slim"}, "localhost/envcheck/base"),
        ("registry", {"debian:bookworm-slim"}, "debian:bookworm-slim"),
    ],
)
def test_where_the_base_comes_from(
    shelf: _Shelf, order: TargetRequest, policy: Any, registry: set[str], base: str
) -> None:
    shelf.registry, shelf.images = registry, {}
    chosen = building.choose_base(shelf, order._replace(base=policy), lambda _: None)
    assert chosen.partition(":")[0] in base
    assert chosen in shelf.images
    assert building.dry_run(shelf, order._replace(base=policy)).base == chosen


def test_a_base_that_only_the_daemons_mirrors_have_is_pulled(shelf: _Shelf, order: TargetRequest) -> None:
    shelf.mirrored.add("debian:bookworm-slim")
    assert building.choose_base(shelf, order, lambda _: None) == "debian:bookworm-slim"


def test_a_dry_run_changes_nothing(shelf: _Shelf, order: TargetRequest) -> None:
    planned = building.dry_run(shelf, order)
    assert (shelf.images, shelf.builds, planned.key) == ({}, [], None)
    assert planned.argv[0] == "docker"
    assert (Path(planned.context) / "Dockerfile").is_file()


def test_a_closed_profile_without_a_registry_has_docker_hub_not_asked(shelf: _Shelf, order: TargetRequest) -> None:
    shelf.registry |= {"debian:bookworm-slim", "mirror.example/library/debian:bookworm-slim"}
    indexes = [Index(url="https://mirror.example/simple")]
    closed = order._replace(profile=Profile(name="site", pypi=indexes, pytorch=indexes, closed=True))
    chosen = building.choose_base(shelf, closed, lambda _: None)
    assert chosen.startswith("localhost/envcheck/base:")
    assert building.dry_run(shelf, closed).base == chosen
    with pytest.raises(ConfigError, match="is closed and names no registry"):
        building.choose_base(shelf, closed._replace(base="registry"), lambda _: None)
    named = closed._replace(profile=msgspec.structs.replace(closed.profile, registry="mirror.example"))
    assert building.choose_base(shelf, named, lambda _: None).startswith("mirror.example/")


def test_of_two_builds_of_one_key_the_second_waits_and_finds_it_built(shelf: _Shelf, order: TargetRequest) -> None:
    message, second = list[str](), list[BuildResult]()
    thread = threading.Thread(
        target=lambda: second.extend(building.build(shelf, [order], say=message.append, on_line=lambda _: None))
    )

    def begin_another() -> None:
        shelf.meanwhile = lambda: None
        thread.start()
        eventually(lambda: any("waiting" in line for line in message), expected=True)

    shelf.meanwhile = begin_another
    first = build(shelf, order)
    thread.join(60)
    assert message == ["another build of the same image is running; waiting for it"]
    assert (len(shelf.builds), first.skipped, [b.skipped for b in second]) == (1, False, [True])


def test_an_engine_that_ends_under_a_build_is_unavailable_not_a_failed_build(
    shelf: _Shelf, order: TargetRequest
) -> None:
    def die() -> None:
        shelf.alive = False

    shelf.status, shelf.meanwhile = 1, die
    with pytest.raises(UnavailableError, match=r"docker stopped answering during the build .*; start it again"):
        build(shelf, order)


def test_several_targets_are_built_at_once_in_one_context_each_under_the_key_it_has_alone(
    shelf: _Shelf, order: TargetRequest, matrix: Matrix, locks: list[Lock]
) -> None:
    alone = build(shelf, order)
    shelf.images = {name: image for name, image in shelf.images.items() if name.startswith("localhost/")}
    shelf.builds = []
    jupyter = make_spec(matrix, order.spec.cell, locks, target="jupyter")
    more = order._replace(spec=jupyter)
    shelf.labels.pop("envcheck.target")
    runtime, other = build_all(shelf, [order, more])
    assert (runtime.target, runtime.key, other.target) == ("runtime", alone.key, "jupyter")
    assert len({plan.context for plan in shelf.builds}) == 1
    assert [plan.target for plan in shelf.builds] == ["runtime", "jupyter"]
    again = build_all(shelf, [more, order])
    assert [(each.target, each.skipped) for each in again] == [("jupyter", True), ("runtime", True)]


def test_a_target_that_fails_takes_no_other_with_it(
    shelf: _Shelf, order: TargetRequest, matrix: Matrix, locks: list[Lock]
) -> None:
    shelf.failing = {"runtime"}
    shelf.labels.pop("envcheck.target")
    jupyter = make_spec(matrix, order.spec.cell, locks, target="jupyter")
    with pytest.raises(FailedError, match=r"2\.8\.0-cu128-py311-runtime could not be built"):
        build_all(shelf, [order, order._replace(spec=jupyter)])
    assert "site/torch:2.8.0-cu128-py311-jupyter" in shelf.images
    assert "site/torch:2.8.0-cu128-py311-runtime" not in shelf.images
