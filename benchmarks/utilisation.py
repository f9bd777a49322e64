"""How much of what the machine can multiply a training step uses, by width and length.

    python benchmarks/utilisation.py
    python benchmarks/utilisation.py --widths 256 --lengths 32,256 --dtype bfloat16

Model FLOPs over time, as a fraction of the rate of one large product, measured in turns with it on
all devices at once. Model FLOPs are 6 per weight and token, and 12 per layer, width and pair of
tokens (all pairs: a causal mask hides half of them and saves nothing); rotations, norms, softmax
and AdamW are not counted. One run a device, two layers, rope on `lag`, about 2,048 tokens a batch.
"""

import argparse
import os

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from measure import alternate, machine, steps

from posjax import config, plan
from posjax.sweep import group

STEPS, TOKENS, SIDE = 10, 2048, 2048


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('--widths', default='64,256,512')
    options.add_argument('--lengths', default='32,128,512,1024')
    options.add_argument('--dtype', default='float32')
    options.add_argument('--microbatch', type=int, default=0, help='sequences at a time; 0 is all')
    asked = options.parse_args()
    jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
    print(machine())
    for width in map(int, asked.widths.split(',')):
        for length in map(int, asked.lengths.split(',')):
            _say(width, length, asked.dtype, asked.microbatch)


def _say(width, length, dtype, microbatch):
    c = config.default()
    c.seeds = jax.device_count()
    c.model.width, c.model.heads, c.model.dtype = width, max(1, width // 64), dtype
    c.train.length, c.train.batch = length, max(1, TOKENS // length)
    c.train.microbatch, c.eval.lengths = microbatch, (length,)
    (one,) = group(plan.runs(c))
    seconds = alternate({'step': steps(one, STEPS), 'peak': _product(dtype)}, rounds=5)
    peak = 2 * SIDE**3 * jax.device_count() / seconds['peak']
    rate = _flops(one.runs[0]) * STEPS * len(one.runs) / seconds['step']
    each = seconds['step'] / STEPS * 1e3
    print(f'width {width}, T={length}: {rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s, '
          f'{rate / peak:.0%} ({each:.1f} ms a step)', flush=True)  # fmt: skip


def _flops(run) -> float:
    m, tokens = run.model, run.batch * run.length
    weights = m.layers * m.width**2 * (4 + 2 * m.mlp) + m.width * m.classes
    return 6 * weights * tokens + 12 * m.layers * m.width * tokens * run.length


def _product(dtype):
    """A large product on every device at once."""
    mesh = jax.make_mesh((jax.device_count(),), ('devices',))
    where = NamedSharding(mesh, PartitionSpec('devices'))
    a = jax.device_put(jnp.ones((jax.device_count(), SIDE, SIDE), dtype), where)

    def one(a_1NN):
        return jnp.dot(a_1NN[0], a_1NN[0], preferred_element_type=jnp.float32)[None]

    specs = PartitionSpec('devices')
    product = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=specs))
    return lambda: product(a)


if __name__ == '__main__':
    main()
