"""Where an image's bytes are: its layers by the engine's history; tests/e2e counts the packages of a real one."""

from __future__ import annotations

from envcheck.images.size import Layer, read_history


def test_layers_are_in_the_order_they_were_made_whatever_units_an_engine_prints() -> None:
    docker = '{"Size": "1.5MB", "CreatedBy": "RUN b"}\n{"Size": "0B", "CreatedBy": "ENV x"}\n'
    podman = '{"size": 20, "createdBy": "RUN a"}\n'
    assert read_history(docker + podman) == [Layer(bytes=20, step="RUN a"), Layer(bytes=1_500_000, step="RUN b")]
