"""Training, for one run. Many runs are a vmap of these functions (sweep.py)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from posjax import model as model_lib
from posjax.model import Model
from posjax.run import Optim, Run
from posjax.scheme import Params
from posjax.spread import Spread, alone
from posjax.streams import stream
from posjax.tasks.task import UNSCORED


class State(NamedTuple):
    """All that changes while a run trains. Data needs no state: batches are functions of the step.

    Attributes:
      params: {'net': ..., 'scheme': ...}.
      optimizer: the state of optax.
      step: steps taken since the first parameters, int32. A run that goes on from another's
        parameters also goes on counting, so that no batch comes twice.
      failed: the step at which loss or gradient stopped being finite and the run froze; -1 if not.
    """

    params: Params
    optimizer: Any
    step: jax.Array
    failed: jax.Array


class Metrics(NamedTuple):
    """Of one step, before its update: mean cross-entropy in nats, accuracy, gradient norm."""

    loss: jax.Array
    accuracy: jax.Array
    grad_norm: jax.Array


def init(run: Run) -> State:
    """The state before the first step."""
    return begin(run, net(run.model, run.seed))


def net(model: Model, seed) -> Params:
    """The network's fresh parameters, which runs of one model and seed share."""
    return model_lib.init_net(model, stream(seed, 'init'))


def begin(run: Run, net: Params) -> State:
    """The state before the first step, around the network's fresh parameters."""
    params = model_lib.with_scheme(run.model, net, run.scheme, stream(run.seed, 'init'))
    return State(params, _optimizer(run).init(params), jnp.int32(0), jnp.int32(-1))


def step(run: Run, state: State, spread: Spread = alone) -> tuple[State, Metrics]:
    """One update. A run whose loss or gradient is not finite keeps its parameters from then on.

    Args:
      spread: says which devices have which sequences of a batch, if several share them.
    """
    rows = batch(run, jax.random.fold_in(stream(run.seed, 'data'), state.step))
    key = jax.random.fold_in(stream(run.seed, 'positions'), state.step)
    loss, accuracy, grads = _gradient(run, state.params, rows, key, spread)
    norm = optax.tree.norm(grads)
    updates, optimizer = _optimizer(run).update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)

    healthy = jnp.isfinite(loss) & jnp.isfinite(norm) & (state.failed < 0)
    params, optimizer = jax.tree.map(
        lambda new, old: jnp.where(healthy, new, old),
        (params, optimizer),
        (state.params, state.optimizer),
    )
    failed = jnp.where((state.failed < 0) & ~healthy, state.step, state.failed)
    return State(params, optimizer, state.step + 1, failed), Metrics(loss, accuracy, norm)


def _gradient(run, params, rows, key, spread):
    """Loss and accuracy of a batch, and the loss's gradient: sums of those of its microbatches."""
    scored = count_scored(rows[1])

    def of(rows, key):
        tokens_BT, answers_BT, unpadded_B = spread(rows)

        def objective(params):
            out = model_lib.apply(
                run.model, params, tokens_BT, run.scheme, key=key, unpadded_B=unpadded_B
            )
            return loss_and_accuracy(out.logits_BTC, answers_BT, scored)

        (loss, accuracy), grads = jax.value_and_grad(objective, has_aux=True)(params)
        return loss, accuracy, grads

    count = run.batch // (run.microbatch or run.batch)
    if count == 1:
        return of(rows, key)
    rows = jax.tree.map(lambda x: x.reshape(count, run.microbatch, *x.shape[1:]), rows)
    zero = jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params)

    def add(total, part):
        return jax.tree.map(jnp.add, total, of(*part)), None

    return jax.lax.scan(add, zero, (rows, jax.random.split(key, count)))[0]


def batch(run: Run, key: jax.Array):
    """Tokens and answers (B, T) of one step, and lengths (B,) where there is padding, else None.

    Sequences of several lengths stand in one fixed shape, in a fixed order, shorter ones padded on
    the right: each length has its own numbers, and none changes those of another.
    """
    if not run.lengths:
        return *run.task.sample(key, run.batch, run.length), None
    parts = []
    for number, length in enumerate(run.lengths):
        tokens, answers = run.task.sample(
            jax.random.fold_in(key, number), run.batch // len(run.lengths), length
        )
        room = ((0, 0), (0, run.length - length))
        padded = jnp.pad(tokens, room), jnp.pad(answers, room, constant_values=UNSCORED)
        parts.append((*padded, jnp.full(len(tokens), length)))
    return tuple(jnp.concatenate(rows) for rows in zip(*parts, strict=True))


def chunk(
    run: Run, state: State, steps: jax.Array, size: int, spread: Spread = alone
) -> tuple[State, Metrics]:
    """`steps` <= `size` updates in one compiled loop; metrics (size,), NaN past `steps`.

    The number of steps is data, so the last, shorter chunk of a run is the same program.
    """
    empty = Metrics(*(jnp.full(size, jnp.nan) for _ in Metrics._fields))

    def body(i, carry):
        state, log = carry
        state, metrics = step(run, state, spread)
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), log, metrics)

    return jax.lax.fori_loop(0, steps, body, (state, empty))


def count_scored(answers_BT) -> jax.Array:
    """Scored positions of a batch, float32; 1 if there are none."""
    return jnp.maximum((answers_BT != UNSCORED).sum(), 1).astype(jnp.float32)


def loss_and_accuracy(logits_BTC, answers_BT, scored):
    """Sums of cross-entropy, and of hits, at scored positions, over `scored`: the number of those
    in the batch, of which these sequences may be a part."""
    scored_BT = answers_BT != UNSCORED
    losses_BT = optax.softmax_cross_entropy_with_integer_labels(
        logits_BTC, jnp.where(scored_BT, answers_BT, 0)
    )
    hits_BT = (logits_BTC.argmax(axis=-1) == answers_BT) & scored_BT
    loss = jnp.where(scored_BT, losses_BT, 0).sum()
    hits = hits_BT.astype(jnp.float32).sum()
    return loss / scored, hits / scored


def _optimizer(run: Run) -> optax.GradientTransformation:
    """Built inside the traced step, from the run's own numbers."""
    o = run.optim
    adamw = optax.adamw(
        lambda count: o.learning_rate * _progress(o, run.steps)(count),
        o.beta1, o.beta2, o.eps,
        weight_decay=o.weight_decay,
        mask=lambda params: decayed(o, params),
    )  # fmt: skip
    return optax.chain(_clip(o.clip), adamw)


def _progress(o: Optim, steps: int) -> optax.Schedule:
    """The learning rate as a fraction of its peak, by step."""
    rest = max(steps - o.warmup, 1)
    after = {
        'constant': optax.constant_schedule(1.0),
        'cosine': optax.cosine_decay_schedule(1.0, rest),
        'linear': optax.linear_schedule(1.0, 0.0, rest),
    }[o.schedule]
    # The first warm-up step is already above zero: (1/warmup, ..., 1).
    first = 1 / max(o.warmup, 1)
    warm = optax.linear_schedule(first, 1.0, max(o.warmup - 1, 1))
    return optax.join_schedules([warm, after], [o.warmup]) if o.warmup else after


def _clip(largest) -> optax.GradientTransformation:
    """Scales the gradient of this run, and of no other, down to `largest` where that is above 0."""

    def update(grads, state, params=None):
        norm = optax.tree.norm(grads)
        factor = jnp.where((largest > 0) & (norm > largest), largest / norm, 1.0)
        return jax.tree.map(lambda g: g * factor, grads), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def decayed(o: Optim, params: Params) -> Params:
    """A tree of booleans: which parameters weight decay applies to."""

    def kind(path):
        names = [entry.key for entry in path]
        if names[0] == 'scheme':
            return 'positions'
        if any(name.startswith('norm') for name in names):
            return 'norms'
        return {'kernel': 'weights', 'embedding': 'embeddings', 'bias': 'biases'}[names[-1]]

    return jax.tree_util.tree_map_with_path(lambda path, _: kind(path) in o.decay, params)
