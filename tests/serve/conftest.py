from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_server import TOKEN, Server, serving
from small_run import engine, rows, run, world

from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.world import World

__all__ = ["engine", "rows", "run", "world"]


@pytest.fixture(scope="session")
def token_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"# who may ask\ntests: {TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def places(tmp_path_factory, run) -> Path:
    """Where the IPv4 networks of the simulated world are; of IPv6 nothing is known."""
    world = World.build(WorldOptions(measurements=6000, probes=40, targets=12, days=6, seed=3))
    folder = tmp_path_factory.mktemp("places")
    world.save(folder)
    every = (folder / "places.csv").read_text().splitlines(keepends=True)
    (folder / "places.csv").write_text("".join(line for line in every if "::" not in line))
    return folder / "places.csv"


@pytest.fixture(scope="session")
def server(tmp_path_factory, run, rows, token_file, places) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, run, "--data", rows, "--token-file", token_file, "--places", places) as made:
        yield made
