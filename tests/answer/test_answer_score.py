"""Bits by field, sampling under the grammar, and contexts from rows."""

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from answer_oracle import log_probabilities
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.answer import network
from ping_llm.answer.context import Question
from ping_llm.answer.files import read_columns, read_questions
from ping_llm.answer.past import Data, relevance
from ping_llm.answer.report import print_anomalies, print_scores
from ping_llm.answer.score import NAMES, encode_windows, field_bits
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.addresses import Prefix, pack_one, parse_prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.schema import Measurement
from ping_llm.tokens import vocab
from ping_llm.tokens.reference import encode

SECOND = 1_000_000
START = 1_714_521_600


def packed(*texts: str) -> np.ndarray:
    return np.frombuffer(b"".join(map(pack_one, texts)), np.uint8).reshape(-1, 16)


def measurements(count: int, sources: int = 2) -> Columns:
    generator = np.random.default_rng(2)
    src = packed(*(f"192.0.2.{1 + n % sources}" for n in range(count)))
    dst = packed(*(f"198.51.100.{n}" for n in generator.integers(1, 9, count)))
    time = (START + np.cumsum(generator.integers(0, 400, count))) * SECOND
    rtt = np.where(generator.random(count) < 0.1, -1.0, generator.gamma(2, 20, count))
    return Columns(time, src, dst, rtt)


def write(path, columns: Columns, **extra):
    times = [datetime.fromtimestamp(t / SECOND, UTC) for t in columns.time]
    texts = [[".".join(map(str, row[12:])) for row in side.tolist()] for side in (columns.src, columns.dst)]
    table = {
        "event_time": times,
        "src_addr": texts[0],
        "dst_addr": texts[1],
        "rtt": columns.rtt.tolist(),
    } | extra
    pq.write_table(pa.table(table), path)
    return path


def test_bits_equal_the_loss_on_the_same_tokens(model):
    columns = measurements(20, sources=1)
    columns.rtt[3] = -1.0
    parts = list(model.scorer().add(columns.take(np.arange(12))))
    bits = np.concatenate([part.bits for part in parts])
    ids, offsets, _ = encode_windows(model, [columns.take(np.arange(12))])
    after = log_probabilities(model.engine, ids[:-1])
    expected = -after[np.arange(len(ids)), ids] / np.log(2)
    assert bits.sum() == pytest.approx(expected.sum(), rel=1e-5)
    np.testing.assert_allclose(bits.sum(axis=1), np.add.reduceat(expected, offsets[:-1]), rtol=1e-4)
    # Only the first states its source; all state the rest.
    stated = bits[:, NAMES.index("src")] > 0
    assert stated.tolist() == [True] + [False] * 11
    usual = bits[:, : len(model.scorer().names)]
    assert (np.delete(usual, NAMES.index("src"), axis=1) > 0).all()


def test_the_end_of_a_prefix_belongs_to_its_address():
    ids = np.array([vocab.MEASUREMENT, vocab.DST_IPV4, vocab.BYTE0 + 10, vocab.PREFIX_END, vocab.FAILED])
    bits = field_bits(ids, np.array([0, len(ids)]), np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert dict(zip(NAMES, bits[0].tolist(), strict=True)) == dict.fromkeys(NAMES, 0.0) | {
        "start": 1.0, "dst": 14.0, "result": 16.0,
    }  # fmt: skip


def test_every_measurement_is_scored_once_in_the_light_of_the_past(model):
    columns = measurements(90)
    scorer = model.scorer()
    parts = [*scorer.add(columns.take(np.arange(50))), *scorer.add(columns.take(np.arange(50, 90)))]
    rows = np.concatenate([part.row for part in parts])
    known = np.concatenate([part.known for part in parts])
    assert sorted(rows.tolist()) == list(range(90))
    assert (known == 0).sum() == 2
    order = np.argsort(rows)
    rtt = np.concatenate([part.columns.rtt for part in parts])[order]
    np.testing.assert_array_equal(rtt, columns.rtt)
    # Once a window is full, the next begins with half of it.
    assert known[order][60:].min() >= 6


def test_scores_and_anomalies_are_printed(model, tmp_path, capsys):
    columns = measurements(40)
    path = write(tmp_path / "m.parquet", columns)
    print_scores(model, path, None, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line["row"] for line in lines) == list(range(40))
    print_anomalies(model, path, 3, None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    # 40 results are all candidates: those that cost most over their millisecond, each asked by itself.
    answers = network.curves(model, columns.queries(), History(columns)).distributions()
    bits = answers.bits(columns.rtt)
    assert [one["row"] for one in found] == np.argsort(-bits)[:3].tolist()
    np.testing.assert_allclose([one["bits"] for one in found], np.sort(bits)[:-4:-1], rtol=1e-9)
    tails = [answers[one["row"]].tail(one["rtt"]) for one in found]
    np.testing.assert_allclose([one["tail"] for one in found], tails, rtol=1e-9)
    assert found[0]["expected"]["0.05"] <= found[0]["expected"]["0.95"]
    print_scores(model, path, 10, as_json=False)
    assert "10 measurements" in capsys.readouterr().out


def test_generated_measurements_obey_the_grammar_and_the_seed(model):
    made = model.generate(histories=6, measurements=3, seed=4)
    assert made == model.generate(histories=6, measurements=3, seed=4)
    assert made != model.generate(histories=6, measurements=3, seed=5)
    for statements in made.histories:
        assert len(statements) == 3
        encode(statements, model.encoding)
        for one in statements:
            assert one.dst is not None
            assert one.rtt == -1 or one.rtt >= 0


def test_generated_measurements_keep_what_was_given(model):
    """Of one source, with its IP version, and whole addresses unless prefixes are allowed."""
    for src, version in (("192.0.2.1", 4), ("2001:db8::1", 6), (None, None)):
        made = model.generate(src, histories=40, measurements=4, seed=4, temperature=1e6)
        for statements in made.histories:
            assert statements
            sources = {one.src for one in statements[1:] if one.src is not None}
            assert len(sources | {statements[0].src} - {None}) <= 1
            assert all(one.dst.is_whole for one in statements)
            assert src is None or {one.dst.version for one in statements} == {version}
    made = model.generate("192.0.2.1", histories=40, measurements=4, seed=5, temperature=1e6, prefixes=True)
    assert any(not one.dst.is_whole for statements in made.histories for one in statements)


def test_a_history_is_continued_from_its_source(model):
    made = model.generate("192.0.2.1", "2024-05-01", histories=2, measurements=2, seed=1)
    for statements in made.histories:
        assert str(statements[0].src) == "192.0.2.1"
        assert statements[0].seconds == START
    # A long history leaves half of the room to what is new, and only that is returned.
    context = [
        Measurement(datetime.fromtimestamp(START - n, UTC), "192.0.2.1", "198.51.100.9", 5.0)
        for n in range(1, 60)
    ]
    longer = model.generate("192.0.2.1", None, context, measurements=3, seed=1)
    assert [len(statements) for statements in longer.histories] == [3]
    assert "the least relevant" in longer.notes[0]
    short = model.generate("192.0.2.1", None, context, measurements=60, seed=1)
    assert f"only {len(short.histories[0])} of 60" in short.notes[-1]
    with pytest.raises(UsageError, match="temperature must be at least 0"):
        model.generate(temperature=-1.0)


def test_context_is_chosen_for_the_question():
    pair, near = "9.9.9.1", "9.9.9.7"
    dst = packed(pair, "8.8.8.8", near, "7.7.7.7", pair, "5.5.5.5", "4.4.4.4", pair)
    wanted = parse_prefix(pair)
    assert relevance(dst, wanted, 0).tolist() == []
    assert relevance(dst, wanted, 1).tolist() == [7]
    assert relevance(dst, wanted, 3).tolist() == [7, 4, 0]
    assert relevance(dst, wanted, 6).tolist() == [7, 4, 0, 2, 6, 5]
    assert relevance(dst, wanted, 50).tolist() == [7, 4, 0, 2, 6, 5, 3, 1]
    assert relevance(dst, parse_prefix("9.9.0.0/16"), 4).tolist() == [7, 4, 2, 0]
    assert relevance(dst[:0], wanted, 5).tolist() == []
    # With a share for others, the pair's own come last once nothing else is known.
    assert relevance(dst, wanted, 3, 0.5).tolist() == [7, 4, 6]
    assert relevance(dst, wanted, 8, 0.25).tolist() == [7, 4, 2, 6, 5, 3, 1, 0]


def test_other_destinations_come_once_before_any_comes_again():
    dst = packed(*(f"{n}.0.0.{n}" for n in (1, 2, 3, 3, 3, 2)))
    for wanted in (parse_prefix("10.0.0.9"), None):
        assert relevance(dst, wanted, 4).tolist() == [5, 4, 0, 3]
        assert relevance(dst, wanted, 9).tolist() == [5, 4, 0, 3, 2, 1]


def test_contexts_come_from_the_rows(model, tmp_path):
    from ping_llm.rows.build import build
    from ping_llm.rows.plan import RowOptions

    columns = measurements(60, sources=3)
    path = write(tmp_path / "m.parquet", columns)
    build([path], tmp_path / "rows", RowOptions())
    history = Data(tmp_path / "rows")
    at = int(columns.time[50] // SECOND)
    question = Question.of("192.0.2.2", "198.51.100.3", at)
    context = history.context(question, most=10)
    earlier = (columns.src[:, 15] == 2) & (columns.time < at * SECOND)
    assert len(context) == 10
    assert (context.seconds < at).all()
    assert (np.diff(context.seconds) >= 0).all()
    mine = earlier & (columns.dst[:, 15] == 3)
    assert (context.dst[:, 15] == 3).sum() == mine.sum() > 0
    assert set(context.rtt.tolist()) <= set(columns.rtt[earlier].tolist())
    assert len(history.context(Question.of("192.0.2.9", "198.51.100.3"), most=5)) == 0
    assert len(history.context(Question.of("192.0.2.?", "198.51.100.3"), most=5)) == 5


def test_a_folder_of_ours_is_read_whole_and_without_its_notes(tmp_path):
    columns = measurements(6)
    write(tmp_path / "day.parquet", columns)
    (tmp_path / "ingest.json").write_text("{}")
    (tmp_path / "rejects").mkdir()
    (tmp_path / "rejects" / "day.parquet").write_text("not measurements")
    assert len(read_columns(tmp_path)) == 6
    (tmp_path / "day.parquet").unlink()
    with pytest.raises(PingError, match="without files of measurements"):
        read_columns(tmp_path)


def test_tables_are_checked(tmp_path):
    columns = measurements(3)
    assert len(read_columns(write(tmp_path / "good.parquet", columns))) == 3
    bad = write(tmp_path / "bad.parquet", columns, rtt=[1.0, -2.0, 3.0])
    with pytest.raises(PingError, match=r"bad.parquet, row 2: rtt -2.0"):
        read_columns(bad)
    with pytest.raises(PingError, match="row 3: dst_addr nonsense"):
        read_columns(write(tmp_path / "b.parquet", columns, dst_addr=["192.0.2.1", "192.0.2.1", "nonsense"]))
    with pytest.raises(PingError, match="not of the same IP version"):
        read_columns(write(tmp_path / "c.parquet", columns, dst_addr=["192.0.2.1", "::1", "192.0.2.1"]))
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("src_addr,dst_addr,event_time\n192.0.2.1,198.51.100.0/24,2024-05-01T00:00:00Z\n")
    assert read_questions(pairs)[0][0] == Question.of("192.0.2.1", "198.51.100.?", START)


def _plainly(dst: list[bytes], wanted: Prefix | None, most: int, share: float) -> list[int]:
    """`relevance` in words: the pair, its neighbours, each other destination once, the rest."""

    def alike(index: int, known: int) -> bool:
        return wanted is not None and dst[index][:known] == wanted.packed[:known]

    newest, known = list(range(len(dst)))[::-1], 16 if wanted is None else wanted.packed_length
    near_bytes = min({4: 15, 6: 6}[4 if wanted is None else wanted.version], known)
    pair = [index for index in newest if alike(index, known)]
    own = pair[: max(1, round(most * share))]
    near = [index for index in newest if index not in pair and alike(index, near_bytes)]
    near = near[: max(most - len(own), 0) // 2]
    left = [index for index in newest if index not in pair and index not in near]
    first = [index for place, index in enumerate(left) if dst[index] not in [dst[i] for i in left[:place]]]
    others = [*first, *(index for index in left if index not in first)]
    return [*own, *near, *others[: max(most - len(own) - len(near), 0)], *pair[len(own) :]][:most]


_ENDS = [f"9.9.{near}.{last}" for near in (8, 9) for last in range(4)] + ["2001:db8::1", "2001:db8:0:7::1"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(_ENDS), max_size=60),
    st.sampled_from([*_ENDS, "9.9.9.0/24", "9.9.0.0/16", "2001:db8::/32", None]),
    st.integers(0, 40),
    st.sampled_from([1.0, 0.5, 0.1]),
)
def test_the_chosen_context_is_that_of_the_plain_rule(ends, wanted, most, share):
    dst = packed(*ends)
    prefix = None if wanted is None else parse_prefix(wanted)
    expected = _plainly([row.tobytes() for row in dst], prefix, most, share)
    assert relevance(dst, prefix, most, share).tolist() == expected
