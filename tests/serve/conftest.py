from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_server import TOKEN, Server, serving
from small_run import engine, rows, run, world

__all__ = ["engine", "rows", "run", "world"]


@pytest.fixture(scope="session")
def token_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"# who may ask\ntests: {TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory, run, rows, token_file) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, run, "--data", rows, "--token-file", token_file) as made:
        yield made
