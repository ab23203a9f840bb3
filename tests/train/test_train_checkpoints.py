import pytest

from ping_llm.errors import PingError
from ping_llm.model import ledger


@pytest.fixture
def run(tmp_path):
    for step in (3, 6, 9):
        folder = tmp_path / "checkpoints" / str(step) / "items"
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(bytes([step]) * 1000)
    (tmp_path / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir()
    ledger.Ledger(tmp_path).enter_new()
    return tmp_path


def _damage(run, kind):
    file = run / "checkpoints" / "9" / "items" / "data"
    content = bytearray(file.read_bytes())
    if kind == "missing":
        file.unlink()
    elif kind == "cut short":
        file.write_bytes(content[:500])
    else:
        content[700] ^= 1
        file.write_bytes(content)


def test_the_newest_whole_checkpoint_is_used(run):
    assert ledger.Ledger(run).newest_whole() == 9


@pytest.mark.parametrize("kind", ["missing", "cut short", "one bit"])
def test_a_damaged_checkpoint_is_put_aside(run, kind, capsys):
    _damage(run, kind)
    assert ledger.Ledger(run).newest_whole() == 6
    assert "checkpoint 9 is damaged" in capsys.readouterr().err
    assert ledger.steps(run / "checkpoints") == [3, 6]
    assert (run / "aside" / "9" / "items").is_dir()


def test_a_checkpoint_without_checksums_is_read_to_see(run, capsys):
    """Killed between completing the checkpoint and entering it: here it is no checkpoint at all."""
    folder = run / "checkpoints" / "15" / "items"
    folder.mkdir(parents=True)
    assert ledger.Ledger(run).newest_whole() == 9
    assert "checkpoint 15 is damaged" in capsys.readouterr().err


def test_streams_are_kept_for_the_checkpoints_there_are(run):
    streams = ledger.Streams(run)
    for step in (1, 3, 9, 12):
        streams.keep(step, {"batch": step + 1})
    assert streams.at(9) == {"batch": 10}
    assert streams.at(12) == {"batch": 13}
    with pytest.raises(PingError, match="where the data was at checkpoint 1;"):
        streams.at(1)
