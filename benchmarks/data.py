"""What data and metrics take of a training step: the aim is less than 3 %.

    python benchmarks/data.py

The founding model under rope, on one device. `data` draws the batches of as many steps; `metrics`
are what a step works out for the record and nothing else: how many answers are right, and the norm
of the gradient.
"""

import jax
import jax.numpy as jnp
import optax
from measure import alternate, machine, say

from posjax import config, plan, training
from posjax.streams import stream

STEPS = 50


def main():
    jax.config.update('jax_num_cpu_devices', 1)
    print(machine())
    for task in ('lag(k=3, vocab=16)', 'seen(vocab=96)'):
        c = config.default()
        c.task, c.scheme = task, 'rope'
        (run,) = plan.runs(c)
        state = jax.jit(training.init)(run)
        say(f'{task}, {STEPS} steps', alternate(_sides(run, state)))


def _sides(run, state):
    steps = jax.jit(lambda run, state: training.chunk(run, state, STEPS, STEPS)[1])
    data, metrics = jax.jit(_data), jax.jit(_metrics)
    return {
        'step': lambda: steps(run, state),
        'data': lambda: data(run),
        'metrics': lambda: metrics(run, state.params),
    }


def _data(run):
    def one(step, total):
        tokens_BT, answers_BT, _ = training.batch(
            run, jax.random.fold_in(stream(run.seed, 'data'), step)
        )
        return total + tokens_BT.sum() + answers_BT.sum()

    return jax.lax.fori_loop(0, STEPS, one, 0)


def _metrics(run, gradient):
    shape = run.batch, run.length
    logits_BTC = jax.random.normal(stream(run.seed, 'data'), (*shape, run.model.classes))
    answers_BT = jnp.zeros(shape, jnp.int32)

    def one(_, total):
        # Depends on the step before, or it would be worked out once.
        right_BT = (logits_BTC + total).argmax(axis=-1) == answers_BT
        norm = optax.tree.norm(jax.tree.map(lambda g: g + total, gradient))
        return 1e-9 * (right_BT.sum() + norm)

    return jax.lax.fori_loop(0, STEPS, one, 0.0)


if __name__ == '__main__':
    main()
