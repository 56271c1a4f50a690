"""Which cells a change touches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envcheck.cli.commands.images import NOT_OF_IMAGES, changed_cells
from envcheck.data import data_path
from tests.tables import each

CELLS = ["torch2.8.0-cu128-py311", "torch2.8.0-cu128-py312", "torch2.13.0-cpu-py311"]
PARTS = st.sampled_from(["images", "templates", "envcheck", "docs", "site", "formats", "context", "x.lock", *CELLS])


@each(
    ("paths", "touched"),
    [
        ([], []),
        (["images/torch2.8.0-cu128-py312/Dockerfile"], [CELLS[1]]),
        (["images/torch2.13.0-cpu-py311/torch.lock", "images/torch2.8.0-cu128-py311/base.lock"], [CELLS[0], CELLS[2]]),
        (["images/torch2.8.0-cu128-py31/Dockerfile", "images/torch0.1-cpu-py36/Dockerfile"], []),
        (["docs/images/torch2.8.0-cu128-py312/x", "matrix.yaml", "images/README"], []),
        (["templates/Dockerfile.j2"], CELLS),
        (["templates/context/install.sh"], CELLS),
        (["templates/a-folder-of-tomorrow/x"], CELLS),
        (["templates/site/nginx.conf.j2", "templates/formats/x.j2"], []),
    ],
)
def test_a_path_touches_the_cells_whose_images_it_changes(paths: list[str], touched: list[str]) -> None:
    assert changed_cells(paths, CELLS) == touched


@given(paths=st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join)))
def test_more_paths_never_touch_fewer_cells(paths: list[str]) -> None:
    touched = changed_cells(paths, CELLS)
    assert touched == [cell for cell in CELLS if cell in touched]
    assert all(set(changed_cells(paths[:n], CELLS)) <= set(touched) for n in range(len(paths)))


def test_the_folders_that_no_image_is_made_from_are_there_and_named_by_no_image() -> None:
    """A folder that a Dockerfile uses must not be passed over."""
    used = {path.name for path in data_path("templates").iterdir() if path.is_dir()} - NOT_OF_IMAGES
    assert "context" in used
    dockerfile = (data_path("templates") / "Dockerfile.j2").read_text(encoding="utf-8")
    assert not any(f"{name}/" in dockerfile for name in NOT_OF_IMAGES)
