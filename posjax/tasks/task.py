"""What a model is asked to learn: sampling that jits, with fixed shapes and exact baselines."""

from typing import ClassVar

import jax
import numpy as np

from posjax import text
from posjax.spec import Spec, register

UNSCORED = -1


class Task(Spec):
    """The interface of a task: one answer per position, or none."""

    kind = 'task'
    registry: ClassVar[dict[str, type['Task']]] = {}

    @property
    def tokens(self) -> int:
        """How many different tokens go in."""
        raise NotImplementedError(f'task {self.name()} does not say how many tokens it has')

    @property
    def classes(self) -> int:
        """How many different answers come out."""
        raise NotImplementedError(f'task {self.name()} does not say how many answers it has')

    def check_length(self, length: int) -> None:
        """Raises ValueError where no sequence of `length` tokens has a scored position."""

    def sample(self, key: jax.Array, batch: int, length: int) -> tuple[jax.Array, jax.Array]:
        """Fresh sequences: tokens (B, T) and answers (B, T), int32; UNSCORED where none is due."""
        raise NotImplementedError(f'task {self.name()} does not sample')

    def depths(self, tokens_BT: jax.Array) -> jax.Array | None:
        """How deep each answer is hidden: float32 (B, T), or None for a task without depths.

        0 is the start of what is searched, 1 its end; NaN where nothing is scored. Read off the
        tokens. Answers must not depend on depth: a constant one then scores the same at each.
        """
        return None

    def answers(self, length: int) -> np.ndarray:
        """P(position t is scored, and its answer is c): exact, float64 (T, classes)."""
        raise NotImplementedError(f'task {self.name()} does not know its answers')


def task(cls: type[Task]) -> type[Task]:
    """Decorator that registers a task under its class name."""
    return register(cls)


def parse(words: str) -> Task:
    """`lag(k=3)` as a Task; ValueError in one line otherwise."""
    return text.parse(words, Task)


def baseline(task: Task, length: int, start: int = 0, stop: int | None = None) -> float:
    """Accuracy of the best constant answer on positions start:stop; NaN if none is scored."""
    return best_constant(task.answers(length)[start:stop])


def best_constant(answers_TC: np.ndarray) -> float:
    """The same from a task's `answers`, or some rows of them."""
    answers_C = answers_TC.sum(axis=0)
    return float(answers_C.max() / answers_C.sum()) if answers_C.sum() > 0 else float('nan')
