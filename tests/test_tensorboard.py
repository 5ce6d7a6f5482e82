"""What TensorBoard sees of a run."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from tidefast import bench
from tidefast.bench.tensorboard import TensorBoard

reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder, name: str) -> dict[int, float]:
    """What TensorBoard would draw; a step that is there twice fails."""
    events = reading.EventAccumulator(str(folder))
    events.Reload()
    found = events.Scalars(name)
    assert len({event.step for event in found}) == len(found)
    return {event.step: round(event.value, 4) for event in found}


def test_scalars_are_written_at_their_steps(tmp_path):
    with TensorBoard(tmp_path) as board:
        for step in (1, 2, 3):
            board.step(step, accuracy=step / 10, concentration=math.nan if step == 2 else -1.0, threshold=None)
    assert scalars(tmp_path, "accuracy") == {1: 0.1, 2: 0.2, 3: 0.3}
    assert scalars(tmp_path, "concentration") == {1: -1.0, 3: -1.0}


def test_going_on_replaces_what_was_written_beyond_the_snapshot(tmp_path):
    with TensorBoard(tmp_path) as board:
        for step in range(1, 8):
            board.step(step, accuracy=0.1)
    with TensorBoard(tmp_path) as board:  # the snapshot was of step 4
        for step in range(5, 11):
            board.step(step, accuracy=0.9)
    assert scalars(tmp_path, "accuracy") == {step: 0.1 if step < 5 else 0.9 for step in range(1, 11)}


def test_a_writer_that_never_stepped_leaves_nothing(tmp_path):
    with TensorBoard(tmp_path / "logs"):
        pass
    assert not (tmp_path / "logs").exists()


def test_an_interrupted_run_is_logged_once(tmp_path):
    experiment = bench.Experiment("clean", "source", steps=6, batch=4)
    seen = []

    def after_three() -> bool:
        seen.append(None)
        return len(seen) == 3

    bench.run(experiment, tmp_path / "run", tensorboard=tmp_path / "logs", should_stop=after_three)
    run = bench.run(experiment, tmp_path / "run", tensorboard=tmp_path / "logs")
    assert run.complete
    logged = scalars(tmp_path / "logs", "accuracy")
    assert list(logged) == [1, 2, 3, 4, 5, 6]
    assert list(logged.values()) == pytest.approx((run.steps["correct"] / run.steps["images"]).round(4).tolist())


@pytest.mark.slow
def test_without_the_library_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from tidefast.bench.tensorboard import TensorBoard\n"
        "try: TensorBoard('x')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[tensorboard]'" in done.stdout
