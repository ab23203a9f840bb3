"""Mutated inputs for everything that reads what others wrote: `make fuzz`, or

    python tests/fuzz/fuzz.py --inputs 1000000 --seconds 900 --seed 0

Each target takes its share of the inputs. An input must be read the same by two ways, accounted for, or
refused by our own error: anything else stops the run, prints the input and keeps its seed below --finds. A
find becomes a test in the room that it is about (tests/ingest/test_ingest_differential.py has lists of them).
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from fuzz_ingest import BATCH, RESULTS, check_container, check_results, mutate
from hostile_inputs import SAMPLES
from test_ingest_differential import assert_lines_are_read_alone, line
from test_ingest_tool_text import OUTPUTS

from ping_llm.answer.context import as_microseconds
from ping_llm.errors import PingError
from ping_llm.ingest.given import GivenFiles
from ping_llm.ingest.tool_text import as_table
from ping_llm.measurements.addresses import parse_prefix
from ping_llm.rows.manifest import load_manifest, manifest_bytes, sealed
from ping_llm.tokens.reference import DecodeError, decode, encode
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import VOCABULARY_SIZE, Field

TEXTS = [json.dumps(result, separators=(",", ":")).encode() for result in RESULTS]
PREFIXES = [b"203.0.113.0/24", b"2001:db8::/32", b"203.0.113.?", b"::ffff:192.0.2.1", b"10.0.0/8", b"1.2.3.4"]
TIMES = [b"2024-05-01T12:00:00Z", b"1714521600", b"now", b"2024-05-01", b"-1e308", b"1714521600.5"]
TOOLS = [text.encode() for text, _ in OUTPUTS.values()]
ENCODING = rtt_encoding("compact")
STATEMENTS = [
    Statement(
        (Field.SRC, Field.DST, Field.TIME, Field.RESULT),
        src=parse_prefix("192.0.2.1"), dst=parse_prefix("198.51.100.7"), seconds=1_714_521_600, rtt=12.5,
    ),
    Statement(
        (Field.DST, Field.TIME, Field.RESULT),
        dst=parse_prefix("198.51.100.0/24"), seconds=1_714_521_660, rtt=-1.0,
    ),
]  # fmt: skip
MANIFEST = manifest_bytes(sealed({"format": "ping-llm probe rows", "version": 1, "counts": {}, "shards": []}))


def results(noise: random.Random, folder: Path) -> int:
    """RIPE Atlas results, by the quick and the careful way."""
    check_results(noise, TEXTS)
    return BATCH


def files(noise: random.Random, folder: Path) -> int:
    """Whole files in their containers: every record is accounted for."""
    check_container(noise, folder)
    return 1


def given(noise: random.Random, folder: Path) -> int:
    """The same files as a question's table: read, or refused."""
    path = folder / "given"
    path.write_bytes(mutate(noise, noise.choice(SAMPLES[:-1]), noise.choice(SAMPLES[:-1])))
    try:
        for rows in GivenFiles(path, ("src_addr", "dst_addr")):
            assert rows.table.num_rows == len(rows.numbers)
    except PingError:
        pass
    return 1


def csv_lines(noise: random.Random, folder: Path) -> int:
    """Lines of CSV, together and one by one."""
    lines = [line(noise) for _ in range(noise.randrange(1, 20))]
    assert_lines_are_read_alone(lines)
    return len(lines)


def tool_texts(noise: random.Random, folder: Path) -> int:
    """What ping, fping and mtr print: every row has a line."""
    columns, lines, strange = as_table(
        mutate(noise, noise.choice(TOOLS), noise.choice(TOOLS)), "192.0.2.9", 1e9
    )
    assert len({*map(len, columns.values()), len(lines)}) == 1
    assert all(number > 0 for number in [*lines, *strange])
    pa.table(columns).validate(full=True)
    return 1


def prefixes(noise: random.Random, folder: Path) -> int:
    """Addresses as people write them: what is read is written so that it is read as the same."""
    for _ in range(100):
        text = mutate(noise, noise.choice(PREFIXES), noise.choice(PREFIXES)).decode("utf-8", "replace")
        try:
            prefix = parse_prefix(text)
        except ValueError:
            continue
        assert parse_prefix(str(prefix)) == prefix, text
    return 100


def times(noise: random.Random, folder: Path) -> int:
    """Times of questions."""
    for _ in range(100):
        text = mutate(noise, noise.choice(TIMES), noise.choice(TIMES)).decode("utf-8", "replace")
        try:
            assert 0 <= as_microseconds(text) < 2**52, text
        except PingError:
            continue
    return 100


def tokens(noise: random.Random, folder: Path) -> int:
    """Token ids: what decodes is a context that encodes."""
    for _ in range(20):
        ids = [int(token) for token in encode(STATEMENTS[: noise.randrange(1, 3)], ENCODING)]
        for _ in range(noise.choice((1, 1, 2, 5))):
            place = noise.randrange(len(ids))
            ids[place : place + noise.randrange(2)] = [noise.randrange(-2, VOCABULARY_SIZE + 2)]
        try:
            made = decode(ids, ENCODING)
        except DecodeError:
            continue
        encode(made, ENCODING)
    return 20


def manifests(noise: random.Random, folder: Path) -> int:
    """manifest.json of probe rows: as it was, or refused."""
    changed = mutate(noise, MANIFEST, MANIFEST)
    (folder / "manifest.json").write_bytes(changed)
    try:
        found = load_manifest(folder)
    except PingError:
        return 1
    assert found == json.loads(MANIFEST) or "checksum" not in found
    return 1


#: Target → its share of the inputs.
TARGETS: dict[Callable[[random.Random, Path], int], float] = {
    results: 0.7, prefixes: 0.1, csv_lines: 0.08, times: 0.04, tokens: 0.04, tool_texts: 0.02, given: 0.005,
    files: 0.005, manifests: 0.01,
}  # fmt: skip


def fuzz(inputs: int, seconds: float, seed: int, finds: Path) -> dict[str, int]:
    """Inputs tried of each target; the first that fails is kept in `finds` by its seed, and raised."""
    tried = dict.fromkeys(TARGETS, 0)
    end = time.monotonic() + seconds
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end and sum(tried.values()) < inputs:
            # Whichever target is furthest behind its share.
            target = min(TARGETS, key=lambda one: tried[one] / TARGETS[one])
            step += 1
            own = f"{seed}-{target.__name__}-{step}"
            try:
                tried[target] += target(random.Random(own), Path(folder))
            except BaseException:
                print(f"failed: {target.__name__} with the seed {own!r}", file=sys.stderr)
                finds.mkdir(parents=True, exist_ok=True)
                (finds / f"{own}.txt").write_text(own + "\n")
                raise
    return {target.__name__: count for target, count in tried.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutated inputs for everything that reads.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=900.0, help="Largest time.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--finds", type=Path, default=Path("runs/fuzz"), help="Folder for seeds that failed.")
    options = parser.parse_args()
    started = time.monotonic()
    tried = fuzz(options.inputs, options.seconds, options.seed, options.finds)
    for name, count in tried.items():
        print(f"{name:12} {count:>12,}")
    print(f"{'all':12} {sum(tried.values()):>12,} in {time.monotonic() - started:.0f} s: all read or refused")


if __name__ == "__main__":
    main()
