"""Attention of long sequences: whole against by blocks of queries, time and temporary memory.

    python benchmarks/length.py                      to 4,096 tokens, in a few minutes
    python benchmarks/length.py --lengths 8192 --blocks 16,32,64,128

Forward, one sequence, 4 heads of 32 dims. One line a scheme and length; the whole form is left out
where its scores would not fit in 2 GiB. On GPUs with CUDA also the fused kernel, in bfloat16, where
it serves the scheme.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from measure import alternate, machine, say

from posjax import fused
from posjax.attention import attend
from posjax.scheme import Context, Dims, as_chain, parse

HEADS, SIZE = 4, 32
SCHEMES = ('none', 'rope', 'alibi', 't5', 'fire', 'cope_contextual(max_pos=64)')


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('--lengths', default='512,1024,2048,4096', help='in tokens')
    options.add_argument('--blocks', default='128,0', help='queries at a time; 0 is all')
    asked = options.parse_args()
    print(machine())
    dims = Dims(HEADS * SIZE, HEADS, SIZE, 1)
    for words in SCHEMES:
        scheme = as_chain(parse(words))
        params = scheme.init(jax.random.key(0), dims)
        ways = {
            f'blocks of {block}' if block else 'whole': functools.partial(_plain, scheme, block)
            for block in map(int, asked.blocks.split(','))
        }
        if fused.available() and fused.obstacle(scheme, dims, 'bfloat16') is None:
            ways['fused'] = functools.partial(_fused, scheme)
        for length in map(int, asked.lengths.split(',')):
            _say(words, params, ways, length)


def _say(words, params, ways, length):
    qkv = tuple(jax.random.normal(jax.random.key(1), (3, 1, length, HEADS, SIZE)))
    calls, temporary, outs = {}, {}, {}
    for name, way in ways.items():
        if name == 'whole' and 4 * HEADS * length**2 > 2**31:
            continue
        program = jax.jit(way).lower(params, qkv).compile()
        calls[name] = lambda program=program: program(params, qkv)
        temporary[name] = program.memory_analysis().temp_size_in_bytes / 2**20
        outs[name] = np.asarray(calls[name]())
    memory = ', '.join(f'{name} {mib:.1f} MiB' for name, mib in temporary.items())
    say(f'{words} T={length}', alternate(calls, rounds=3))
    first = next(iter(outs.values()))
    apart = max(float(np.abs(out - first).max()) for out in outs.values())
    print(f'  temporary memory: {memory}; largest difference {apart:.1e}', flush=True)


def _plain(scheme, block, params, qkv):
    return attend(scheme, params, *qkv, _context(qkv[0].shape[1]), block)[0]


def _fused(scheme, params, qkv):
    qkv = [x.astype('bfloat16') for x in qkv]
    ctx = _context(qkv[0].shape[1])
    return fused.attend(scheme, params, *qkv, ctx, implementation='cudnn')


def _context(length):
    place = jnp.arange(length)
    return Context(place[None], place[None], place, place, None, True, jnp.full((1,), length), 0,
                   HEADS, SIZE**-0.5)  # fmt: skip


if __name__ == '__main__':
    main()
