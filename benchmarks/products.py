"""posjax.product against the plain product: value and gradients, at the shapes of a small model.

    python benchmarks/products.py

One line a shape and dtype: medians in ms, and ratios to the plain product.
"""

import jax
import jax.numpy as jnp
from measure import alternate, machine, say

from posjax.product import product

ROWS = 2048  # a batch of 64 sequences of 32 tokens


def main():
    jax.config.update('jax_num_cpu_devices', 1)
    print(machine())
    for dtype in ('float32', 'bfloat16'):
        for inputs, outputs in ((64, 192), (64, 64), (64, 256), (256, 64), (64, 16)):
            x = jax.random.normal(jax.random.key(0), (ROWS, inputs))
            w = jax.random.normal(jax.random.key(1), (inputs, outputs))
            dy = jax.random.normal(jax.random.key(2), (ROWS, outputs))

            def plain(x, w, dtype=dtype):
                return jnp.dot(x.astype(dtype), w.astype(dtype), preferred_element_type=jnp.float32)

            def ours(x, w, dtype=dtype):
                return product(x, w, dtype, 'default')

            sides = {'plain': plain, 'product': ours}
            calls = {name: _repeated(f, x, w, dy) for name, f in sides.items()}
            say(f'{dtype} {inputs} -> {outputs}', alternate(calls), per=1e-3 * _TIMES)


_TIMES = 20


def _repeated(f, x, w, dy):
    """Value and gradients, several times: one alone is shorter than its dispatch."""

    @jax.jit
    def many(x, w, dy):
        def once(carry, _):
            y, back = jax.vjp(f, x + carry, w)
            dx, dw = back(dy)
            return carry + 1e-9 * (y.mean() + dx.mean() + dw.mean()), None

        return jax.lax.scan(once, jnp.float32(0), None, length=_TIMES)[0]

    return lambda: many(x, w, dy)


if __name__ == '__main__':
    main()
