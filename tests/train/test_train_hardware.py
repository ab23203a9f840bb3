"""The share of the device's peak that a training reaches."""

import pytest

from ping_llm.train.hardware import Utilization


def test_a_record_that_was_written_late_does_not_raise_the_peak():
    measured = Utilization(10e12)
    steps = [0.2] * 30 + [1.2, 0.005] + [0.2] * 30
    shares = [measured.of(1e12, seconds) for seconds in steps]
    assert shares[0] == shares[-1] == pytest.approx(0.5)
    assert max(shares) == 1.0


def test_steps_above_a_peak_that_was_measured_on_a_busy_machine_raise_it():
    measured = Utilization(1e12)
    shares = [measured.of(1e12, 0.25) for _ in range(40)]
    assert max(shares) == shares[-1] == 1.0
    assert measured.of(1e12, 0.5) == pytest.approx(0.5, rel=0.05)
