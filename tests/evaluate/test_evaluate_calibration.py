"""What is made of a run's answers: how sure it may be, learned from what was held out of its training."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.cli import app
from ping_llm.cli import evaluate as evaluate_cli
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate.calibration import FILE, NAMES, Background, Calibration, Spread, _blurred
from ping_llm.evaluate.columns import Columns
from ping_llm.evaluate.model_method import GRID
from ping_llm.evaluate.options import EvaluateOptions
from ping_llm.evaluate.predictive import Knots
from ping_llm.evaluate.run import evaluate
from ping_llm.evaluate.splits import Novelty, SplitOptions
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate

#: What the made-up results are off by, in log RTT.
TRUE_SPREAD = 0.3

KNOWN_PAIRS = np.full(600, Novelty.KNOWN_PAIR)


def _made_up(count: int, seed: int) -> tuple[Columns, np.ndarray]:
    """Results of pairs whose ends are all known, and the RTTs around which they scatter."""
    random = np.random.default_rng(seed)
    src, dst = np.zeros((count, 16), np.uint8), np.zeros((count, 16), np.uint8)
    src[:, 10:12] = dst[:, 10:12] = 255
    src[:, 15], dst[:, 14] = np.arange(count) % 7, np.arange(count) % 5
    centre = random.uniform(20, 200, count)
    rtt = centre * np.exp(random.normal(0, TRUE_SPREAD, count))
    return Columns(np.arange(count) * 1_000_000, src, dst, rtt), centre


def _sure(centre: np.ndarray, deviation: float) -> np.ndarray:
    """Distribution functions on the grid: log-normal around each centre."""
    normal = np.random.default_rng(0).normal(0, 1, 4000)
    normal.sort()
    at = np.log(np.maximum(GRID, 1e-9)[None] / centre[:, None]) / deviation
    levels = np.searchsorted(normal, at) / len(normal)
    levels[:, 0], levels[:, -1] = 0.0, 1.0
    return levels


def test_a_run_that_is_too_sure_is_blurred_by_as_much_as_it_is_off():
    asked, centre = _made_up(600, 1)
    calibration = Calibration.fit(GRID, _sure(centre, 0.02), np.full(600, 0.01), asked, KNOWN_PAIRS, asked)
    known = calibration.kinds[Novelty.KNOWN_PAIR]
    assert 0.2 <= known.spread <= 0.4
    assert known.questions == 600
    fresh, centre = _made_up(600, 2)
    raw = Knots(np.broadcast_to(GRID, (600, len(GRID))), _sure(centre, 0.02), np.full(600, 0.01))
    answers = calibration.apply(
        GRID,
        _sure(centre, 0.02),
        np.full(600, 0.01),
        KNOWN_PAIRS,
        Background.of(asked),
        raw.median,
    )
    assert answers.bits(fresh.rtt).mean() < raw.bits(fresh.rtt).mean() - 2
    assert answers.crps(fresh.rtt).mean() < raw.crps(fresh.rtt).mean()
    low, high = answers.quantile([0.05, 0.95]).T
    assert 0.85 < ((low < fresh.rtt) & (fresh.rtt < high)).mean() < 0.95
    np.testing.assert_array_equal(answers.point, raw.median)


def test_a_run_that_knows_its_uncertainty_is_left_alone():
    asked, centre = _made_up(600, 1)
    answers = _sure(centre, TRUE_SPREAD)
    calibration = Calibration.fit(GRID, answers, np.full(600, 0.01), asked, KNOWN_PAIRS, asked)
    assert calibration.kinds[Novelty.KNOWN_PAIR].spread <= 0.1
    assert calibration.kinds[Novelty.KNOWN_PAIR].share <= 0.02
    # Too few questions of the other kinds: nothing is said about them.
    assert calibration.kinds[Novelty.NEW_PAIR] == Spread()


def test_a_blur_moves_by_its_deviation_and_not_at_all_at_zero():
    step = (GRID >= 100.0).astype(float)
    np.testing.assert_array_equal(_blurred(GRID, step, 0.0, GRID), step)
    at = 100.0 * np.exp(0.5 * np.array([-1.0, 0.0, 1.0]))
    np.testing.assert_allclose(_blurred(GRID, step, 0.5, at), [0.159, 0.5, 0.841], atol=0.02)


def test_nothing_is_left_beyond_twice_the_largest_trained():
    asked, centre = _made_up(100, 1)
    levels = 0.9 * _sure(centre, 0.1)
    levels[:, -1] = 1.0  # a tenth of all lies in the grid's last piece
    answers = Calibration().apply(
        GRID, levels, np.zeros(100), np.zeros(100, np.int64), Background.of(asked), centre
    )
    assert (answers.quantile([0.9999])[:, 0] < 2.1 * asked.rtt.max()).all()


def test_a_calibration_is_kept_in_the_run(tmp_path):
    assert Calibration.load(tmp_path) is None
    calibration = Calibration((Spread(0.1, 0.02, 70), *(Spread(),) * 5))
    calibration.save(tmp_path)
    assert Calibration.load(tmp_path) == calibration
    stored = json.loads((tmp_path / FILE).read_text())
    for broken in (
        "nonsense",
        json.dumps({"format": 2}),
        json.dumps(stored | {"format": 9}),
        json.dumps(stored | {"kinds": stored["kinds"] | {"new pair": {"spread": -1}}}),
        json.dumps(stored | {"kinds": stored["kinds"] | {"new pair": {"spread": "wide"}}}),
    ):
        (tmp_path / FILE).write_text(broken)
        with pytest.raises(PingError, match=FILE):
            Calibration.load(tmp_path)


def test_calibrate_and_evaluate_from_the_command_line(tmp_path):
    world, run = tmp_path / "world", tmp_path / "run"
    simulate(world, WorldOptions(measurements=3000, probes=40, targets=12, days=2, seed=1))
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=64, max_length=128)
    schema = export.token_schema({"unnamed_source_probability": 0.5})
    export.write(config, random_tensors(config), schema, run)
    evaluate_cli.register(app)
    words = ["evaluate", str(run), "--data", str(world), "--queries", "70"]
    answer = CliRunner().invoke(app, [*words, "--calibrate", "--json"])
    assert answer.exit_code == 0, answer.output
    kinds = json.loads(answer.stdout)
    assert list(kinds) == list(NAMES)
    assert kinds["known pair"]["questions"] == 70
    # The simulator's sources are not strange to each other, but all were asked about as if they were.
    assert kinds["new source"]["questions"] > 0
    assert kinds["strange source"]["questions"] == 70 * len(EvaluateOptions().source_context)
    assert kinds["known pair"]["share"] >= 0.5  # of a model without training nothing should be believed
    options = EvaluateOptions(
        SplitOptions(),
        queries=70,
        source_context=(2,),
        context_sizes=(2,),
        context_queries=5,
        address_questions=1,
        baselines=(),
        replicates=10,
    )
    figures = {}
    for calibrated in (True, False):
        report = evaluate(world, tmp_path / "report", options, run, calibrated=calibrated)
        figures[calibrated] = report["splits"]["later"]["model"]["bits"]
        assert report["calibration"] == (kinds if calibrated else None)
    assert figures[True] < figures[False] - 1
    answer = CliRunner().invoke(app, ["evaluate", "--data", str(world), "--calibrate"])
    assert isinstance(answer.exception, UsageError)
