from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_server import TOKEN, Server, serving
from small_run import engine, rows, run, world

from ping_llm.measurements.addresses import unpack
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
def systems(tmp_path_factory, world) -> dict[str, list[str]]:
    """What names stand for: AS64500 for a destination, NL for two, probe:7 for a source, all IPv4."""
    visible = world.visible.take((world.visible.src[:, :10] == 0).all(axis=1))
    counts = Counter(unpack(visible.dst).to_pylist())
    first, second = (dst for dst, _ in counts.most_common(2))
    source = unpack(visible.src[:1]).to_pylist()[0]
    folder = tmp_path_factory.mktemp("systems")
    (folder / "systems.csv").write_text(f"prefix,country,asn\n{first}/32,NL,64500\n{second}/32,NL,64501\n")
    (folder / "probes.csv").write_text(f"probe_id,address_v4,country_code\n7,{source},DE\n")
    return {
        "AS64500": [first], "NL": [first, second], "probe:7": [source],
        "files": [str(folder / "systems.csv"), str(folder / "probes.csv")],
    }  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory, run, rows, token_file, places, systems) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    known = [word for path in (places, *systems["files"]) for word in ("--places", path)]
    with serving(folder, run, "--data", rows, "--token-file", token_file, *known) as made:
        yield made
