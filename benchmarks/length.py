"""Attention of long sequences: whole against by blocks of queries, time and temporary memory.

    python benchmarks/length.py                      to 4,096 tokens, in a few minutes
    python benchmarks/length.py --longest 16384 --block 128

Forward, one sequence, 4 heads of 32 dims. One line a scheme and length; the whole form is left out
where its scores would not fit in 2 GiB.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from measure import alternate, machine, say

from posjax.attention import attend
from posjax.scheme import Context, Dims, as_chain, parse

HEADS, SIZE = 4, 32
SCHEMES = ('none', 'rope', 'alibi', 't5', 'fire', 'cope_contextual(max_pos=64)')


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('--longest', type=int, default=4096)
    options.add_argument('--block', type=int, default=128, help='queries at a time')
    asked = options.parse_args()
    print(machine())
    lengths = [n for n in (512, 1024, 2048, 4096, 8192, 16384) if n <= asked.longest]
    for words in SCHEMES:
        scheme = as_chain(parse(words))
        params = scheme.init(jax.random.key(0), Dims(HEADS * SIZE, HEADS, SIZE, 1))
        for length in lengths:
            qkv = jax.random.normal(jax.random.key(1), (3, 1, length, HEADS, SIZE))
            place = jnp.arange(length)
            calls, temporary, outs = {}, {}, {}
            for name, block in (('by blocks', asked.block), ('whole', 0)):
                if not block and 4 * HEADS * length**2 > 2**31:
                    continue
                program = _compiled(scheme, block, length, params, qkv, place)
                calls[name] = lambda program=program: program(params, qkv, place)
                temporary[name] = program.memory_analysis().temp_size_in_bytes / 2**20
                outs[name] = np.asarray(calls[name]())
            memory = ', '.join(f'{name} {mib:.1f} MiB' for name, mib in temporary.items())
            say(f'{words} T={length}', alternate(calls, rounds=3))
            apart = max(float(np.abs(out - outs['by blocks']).max()) for out in outs.values())
            print(f'  temporary memory: {memory}; largest difference {apart:.1e}', flush=True)


def _compiled(scheme, block, length, params, qkv, place):
    def forward(params, qkv, place):
        ctx = Context(place[None], place[None], place, place, None, True,
                      jnp.full((1,), length), 0, HEADS, SIZE**-0.5)  # fmt: skip
        return attend(scheme, params, *qkv, ctx, block)[0]

    return jax.jit(forward).lower(params, qkv, place).compile()


if __name__ == '__main__':
    main()
