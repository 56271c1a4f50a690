"""The files have one form, and the schema that editors use is the model's."""

import random
import re
from pathlib import Path

import format as script
import msgspec
import pytest
from canonical import MATRIX_HEADER, canonical, dump, dump_extensions

from envcheck.cli.commands.report import schema_of
from envcheck.matrix.extensions import file
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import loads

SHIPPED = script.MATRIX


def test_the_shipped_files_are_canonical_byte_for_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert script.main(check=True) == 0
    other = tmp_path / "matrix.yaml"
    other.write_text(script.MATRIX.read_text().replace("# Facts first", "# facts first"))
    monkeypatch.setattr(script, "MATRIX", other)
    assert script.main(check=True) == 1
    assert script.main(check=False) == 0
    assert other.read_bytes() == SHIPPED.read_bytes()


def test_what_is_dumped_loads_again(matrix: Matrix) -> None:
    assert loads(dump(matrix).encode()) == canonical(matrix)


def test_the_order_of_rows_is_not_the_writers(matrix: Matrix) -> None:
    mixed = msgspec.structs.replace(
        matrix,
        gpus=random.Random(1).sample(matrix.gpus, len(matrix.gpus)),  # noqa: S311
        torch=random.Random(2).sample(matrix.torch, len(matrix.torch)),  # noqa: S311
    )
    assert dump(mixed) == dump(matrix)
    extensions = file.loads(file.SHIPPED.read_bytes())
    rows = random.Random(1).sample(extensions.extensions, len(extensions.extensions))  # noqa: S311 (an order)
    rows = [msgspec.structs.replace(row, releases=row.releases[::-1]) for row in rows]
    assert dump_extensions(msgspec.structs.replace(extensions, extensions=rows)) == dump_extensions(extensions)


def test_a_row_of_images_is_a_family_in_one_order(matrix: Matrix) -> None:
    family = msgspec.structs.replace(matrix.images[0], variants=["cu124", "cpu"], python=["3.12", "3.9"])
    (row,) = canonical(msgspec.structs.replace(matrix, images=[family])).images
    assert [str(cell) for cell in row.cells()] == [
        "torch2.4.1-cpu-py39",
        "torch2.4.1-cpu-py312",
        "torch2.4.1-cu124-py39",
        "torch2.4.1-cu124-py312",
    ]


def test_the_file_names_its_schema_and_that_is_the_models() -> None:
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", MATRIX_HEADER)
    assert named is not None
    assert (SHIPPED.parent / named[1]).read_text() == schema_of("matrix")
