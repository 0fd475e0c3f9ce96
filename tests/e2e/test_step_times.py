"""The step times are read, cut out and put into a table as they were written."""

from __future__ import annotations

from pathlib import Path

from . import step_times
from .step_times import Step


def test_lines_are_read_and_a_half_written_one_is_left_out(tmp_path: Path):
    path = tmp_path / "steps"
    path.write_text("10.5 0.250000 0.001000 1\n11.0 0.100000 0.002000 0\n12.0 0.1")
    assert step_times.read(path) == [Step(10.5, 0.25, 0.001, True), Step(11.0, 0.1, 0.002, False)]


def test_only_steps_of_the_interval_that_ran_the_model_count():
    steps = [Step(1.0, 0.1, 0, True), Step(2.0, 0.2, 0, True), Step(2.5, 0.3, 0, False)]
    assert step_times.between(steps, 1.5, 3.0) == [steps[1]]


def test_the_table_has_quantiles_in_milliseconds():
    steps = [Step(1.0 + n / 100, 0.001 * (n + 1), 0.0001, True) for n in range(50)]
    later = [Step(9.0 + n / 100, 0.001 * (n + 51), 0.0001, True) for n in range(50)]
    lines = list(step_times.table({"a": [steps, later]}))
    assert lines[2] == "| whole step, a | 100 | 51.00 | 91.00 | 100.00 | 100.00 | 100.00 |"
    assert lines[3] == "| `schedule`, a | 100 | 0.10 | 0.10 | 0.10 | 0.10 | 0.10 |"
    assert lines[4] == "| from step to step, a | 98 | 10.00 | 10.00 | 10.00 | 10.00 | 10.00 |"
