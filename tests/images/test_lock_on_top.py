"""Packages on top of a cell are locked by a real uv, against an index on the loopback; nothing of the cell moves."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import promises, tags
from envcheck.images.dockerfile import render_dockerfile
from envcheck.images.lock_on_top import checked, contradiction, lock_target, lock_user_packages, read_requirements
from envcheck.images.lockfile import Group, Lock, Pin, digest, parse_lock
from envcheck.images.spec import ImageSpec, make_spec, with_user_packages
from envcheck.images.targets import RECIPES, TargetRecipe
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.tables import each
from tests.wheels import wheel

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")


@pytest.fixture
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, CELL, locks)


@pytest.fixture
def profile(torch_wheels: Path, index_of: Callable[[Path], str]) -> Profile:
    """Return an index without the cell's torch, with packages that want what the cell has and has not."""
    wheel(torch_wheels, "trainer", "1.0", requires=["torch>=2", "helper"])
    wheel(torch_wheels, "helper", "1.5", requires=["numpy"])
    wheel(torch_wheels, "helper", "2.0", requires=["numpy"])
    wheel(torch_wheels, "antique", "1.0", requires=["torch<2"])
    wheel(torch_wheels, "picky", "1.0", requires=["numpy<2"])
    wheel(torch_wheels, "numpy", "9.9.9")  # newer than what the cell holds
    (torch_wheels / "torch-2.8.0-py3-none-any.whl").unlink()
    return Profile(name="test", pypi=[Index(url=index_of(torch_wheels))])


def test_what_a_target_adds_moves_nothing_of_the_cell(
    matrix: Matrix, locks: list[Lock], profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = TargetRecipe(group="train", requirements=("trainer",))
    monkeypatch.setitem(RECIPES, "train", recipe)
    (added,) = lock_target(matrix, CELL, "train", locks, profile)
    assert [(pin.name, pin.version) for pin in added.pins] == [("helper", "2.0"), ("trainer", "1.0")]
    monkeypatch.setitem(RECIPES, "train", recipe._replace(requirements=("trainer", "numpy>=9")))
    with pytest.raises(UnavailableError, match=r"target train cannot be locked: .*numpy"):
        lock_target(matrix, CELL, "train", locks, profile)
    assert lock_target(matrix, CELL, "runtime", locks, profile) == []


def test_the_extensions_of_a_target_have_a_lock_of_their_own(
    matrix: Matrix, locks: list[Lock], profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "train", TargetRecipe(group="train", requirements=("helper",)))
    like = Lock(group="extensions", index="pypi", pins=[Pin(name="trainer", version="1.0", sha256=[])])
    added = lock_target(matrix, CELL, "train", locks, profile, like=[like], extensions=["Trainer>=1"])
    assert [(lock.group, [pin.name for pin in lock.pins]) for lock in added] == [
        ("train", ["helper"]),
        ("extensions", ["trainer"]),
    ]


def test_a_users_extensions_come_into_the_layer_of_the_targets(matrix: Matrix, locks: list[Lock]) -> None:
    def lock(group: Group, *names: str) -> Lock:
        return Lock(group=group, index="pypi", pins=[Pin(name=n, version="1.0", sha256=["0" * 64]) for n in names])

    train = make_spec(matrix, CELL, [*locks, lock("train", "peft"), lock("extensions", "bitsandbytes")], target="train")
    mine = with_user_packages(train, lock("user", "einops", "xformers"), native={"xformers"})
    assert mine.locks[-2:] == [lock("extensions", "bitsandbytes", "xformers"), lock("user", "einops")]
    assert mine.on_top == [lock("extensions", "xformers"), lock("user", "einops")]
    assert (train.on_top, train.tag) == ([], "2.8.0-cu128-py311-train")
    assert mine.tag == f"{train.tag}-with-{digest(mine.on_top)[:12]}"
    only_pure = with_user_packages(train, lock("user", "einops"))
    assert only_pure.locks == [*train.locks, lock("user", "einops")]
    for spec, names in ((train, "bitsandbytes"), (mine, "bitsandbytes xformers einops")):
        text = render_dockerfile(spec)
        assert text.count("install.sh extensions") == 1
        assert text.index("install.sh train") < text.index("install.sh extensions") < text.index("pip check")
        step = text.partition("install.sh extensions")[2].partition("\nRUN")[0]
        assert step.splitlines()[1].endswith(f" {names}")  # what may overwrite no file


def test_a_users_packages_come_on_top_and_are_promised(spec: ImageSpec, profile: Profile) -> None:
    lock = lock_user_packages(spec, ["trainer"], profile)
    assert lock is not None
    assert [pin.name for pin in lock.pins] == ["helper", "trainer"]
    mine = with_user_packages(spec, lock)
    assert mine.tag.startswith(f"{spec.tag}-with-")
    assert tags.aliases("me/torch", mine) == []
    assert tags.aliases("me/torch", spec) != []
    assert mine.promises["lock"] == digest(mine.locks) != spec.promises["lock"]
    promised = promises.with_packages(mine.promises)["packages"].split()
    assert {"trainer==1.0", "numpy==2.5.5", "torch==2.8.0"} <= set(promised)
    text = render_dockerfile(mine)
    assert text.index("install.sh base") < text.index("install.sh envcheck") < text.index("install.sh user")
    assert "install.sh user" not in render_dockerfile(spec)
    assert lock_user_packages(spec, ["numpy"], profile) is None


@pytest.mark.parametrize(("package", "named"), [("antique", "torch"), ("picky", "numpy"), ("numpy<2", "numpy")])
def test_a_package_that_fights_the_cell_is_refused(spec: ImageSpec, profile: Profile, package: str, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A.*2.8.0-cu128-py311-runtime cannot be locked: Because .*{named}.*\Z"):
        lock_user_packages(spec, [package], profile)


@each(
    "pins, expected, wrong",
    [
        ({"trainer": "1.0", "helper": "2.0"}, "trainer", None),
        ({"trainer": "1.0", "torch": "2.0.0"}, "trainer", "pins torch, which the cell holds"),
        ({"trainer": "1.0", "numpy": "1.0.0"}, "trainer", "pins numpy, which the cell holds"),
        ({"helper": "2.0"}, "trainer", "lacks trainer"),
        ({"trainer": "1.0"}, "trainer>=2", "holds trainer 1.0, which is not trainer>=2"),
        ({"trainer": "1.0"}, "numpy>=9", "holds numpy 2.5.5, which is not numpy>=9"),
        ({"trainer": "1.0"}, "other; python_version < '3'", None),
    ],
)
def test_a_kept_lock_is_held_against_the_cell_and_the_request(
    spec: ImageSpec, pins: dict[str, str], expected: str, wrong: str | None
) -> None:
    kept = [Pin(name=name, version=version, sha256=["0" * 64]) for name, version in pins.items()]
    assert contradiction(spec, Lock(group="user", index="pypi", pins=kept), [expected]) == wrong


def test_no_message_repeats_a_login(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    for line in (
        "--index-url https://me:hunter2@x.example/simple",
        "git+https://me:hunter2@x.example/r.git",
        "e @ https://me:hunter2@x.example/e.whl",
    ):
        file.write_text(f"{line}\n")
        for call in (functools.partial(checked, [line]), functools.partial(read_requirements, file)):
            with pytest.raises(ConfigError) as caught:
                call()
            assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="exact version") as caught:
        parse_lock("# index: pypi\ne @ https://me:hunter2@x.example/e.whl\n", "base", "x.lock")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--index-url http://x.example", "is an option, not a package"),
        ("-r other.txt", "is an option, not a package"),
        ("einops @ https://x.example/e.whl", "names a URL"),
        ("not a name", "is not a requirement"),
        ("==1.0", "is not a requirement"),
    ],
)
def test_what_is_no_requirement_is_named(line: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        checked([line])
    file = tmp_path / "requirements.txt"
    file.write_text(f"# mine\neinops>=0.8 # shapes\n\n{line}\n")
    with pytest.raises(ConfigError, match=rf"requirements.txt:4' {says}") as refused:
        read_requirements(file)
    assert line not in str(refused.value)
    with pytest.raises(ConfigError, match="/dev/zero: longer than 1 MiB"):
        read_requirements(Path("/dev/zero"))


def test_a_file_of_requirements_is_read_without_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("\ufeff# mine\neinops>=0.8 # shapes\n\ntimm[extra]==1.0; python_version > '3'\n")
    assert read_requirements(file) == ["einops>=0.8", "timm[extra]==1.0; python_version > '3'"]
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="names no package"):
        read_requirements(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_requirements(file)
