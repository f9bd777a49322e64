"""What one training run is: a pytree whose floats, and seed, may differ along a run axis."""

from typing import Literal

from posjax.model import Model
from posjax.scheme import Scheme
from posjax.spec import structured
from posjax.tasks.task import Task

DECAYABLE = ('weights', 'embeddings', 'biases', 'norms', 'positions')


@structured
class Optim:
    """AdamW.

    Fields:
      learning_rate: peak, after warm-up.
      weight_decay: decoupled; each step takes learning_rate * weight_decay off a decayed parameter.
      beta1, beta2, eps: of Adam.
      clip: largest global gradient norm of a run; 0 never clips.
      warmup: steps of linear warm-up.
      schedule: after warm-up: 'constant', or 'cosine' or 'linear' down to 0 at the last step.
      decay: which kinds of parameters are decayed, of DECAYABLE: 'weights' are kernels, 'positions'
        are a scheme's own parameters.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float = 0.0
    warmup: int = 0
    schedule: Literal['constant', 'cosine', 'linear'] = 'constant'
    decay: tuple[str, ...] = ('weights', 'embeddings')


@structured(data=('seed',))
class Run:
    """One training run.

    Fields:
      task, scheme, model, optim: what is learned, with which positions, by what, and how.
      seed: of initialisation and data.
      length, batch, steps: tokens per training sequence, sequences per step, steps.
      lengths: of training sequences, when not all are of `length`: each for an equal share of a
        batch, padded to `length`.
      microbatch: sequences whose gradient is taken at a time, and added up over a batch; 0 takes
        all at once. Losses and gradients are the same but for the order of sums; schemes with
        random positions draw them anew for each.
    """

    task: Task
    scheme: Scheme
    model: Model
    optim: Optim
    seed: int
    length: int
    batch: int
    steps: int
    lengths: tuple[int, ...] = ()
    microbatch: int = 0
