"""Steps, epochs and examples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker_image.checkpoint import Place
from worker_image.course import Course


class Cut:
    """Epochs of `count` examples in steps of `batch`."""

    def __init__(self, count: int, batch: int, drop: bool) -> None:
        self.count, self.batch, self.drop = count, batch, drop

    def steps(self, start: int) -> int:
        left = self.count - start
        return left // self.batch if self.drop else -(-left // self.batch)

    def consumed(self, start: int, steps: int) -> int:
        return min(start + steps * self.batch, self.count)


@given(count=st.integers(8, 60), batch=st.integers(1, 8), drop=st.booleans(), epochs=st.integers(1, 4), data=st.data())
def test_from_any_place_all_epochs_are_walked_through(count: int, batch: int, drop: bool, epochs: int, data: st.DataObject) -> None:
    """Step by step, each epoch's examples are consumed to its end, epochs end where they say so, and the last one ends the training."""
    cut = Cut(count, batch, drop)
    begin = Place(data.draw(st.integers(0, 9)), data.draw(st.integers(0, epochs - 1)), data.draw(st.integers(0, count - 1)))
    course = Course(cut, epochs, begin)
    step, epoch, examples = course.begin.step, course.begin.epoch, course.begin.examples
    while epoch < epochs:
        left = cut.steps(examples)
        assert course.epoch_end(step) == step + left
        assert course.starts_epoch(step) == (examples == 0)
        for _ in range(left):
            step, examples = step + 1, cut.consumed(examples, 1)
            ended = step == course.epoch_end(step - 1)
            assert course.ends_epoch(step) == ended
            expected = Place(step, epoch + 1, 0) if ended else Place(step, epoch, examples)
            assert course.place(step) == expected
        epoch, examples = epoch + 1, 0
    assert course.total == step


def test_what_is_left_of_an_epoch_and_no_whole_step_is_left_out() -> None:
    """Where steps must be whole, a training that resumes with fewer examples left begins the next epoch."""
    course = Course(Cut(10, 4, drop=True), 2, Place(7, 0, 8))
    assert course.begin == Place(7, 1, 0)
    assert course.total == 9


def test_a_training_that_is_over_has_no_step_left() -> None:
    """Resumed after its last epoch, it has nothing to do."""
    assert Course(Cut(10, 5, drop=False), 2, Place(4, 2, 0)).total == 4
