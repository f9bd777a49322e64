"""T5's relative position bias."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.scheme import Scheme, distance, scheme


def bucket_starts(num_buckets: int, max_distance: int) -> np.ndarray:
    """The smallest distance of each bucket of one direction, in exact integers (num_buckets,).

    With e = num_buckets // 2, the distances below e have a bucket each; past them, bucket e + j
    starts where the logarithm has gone j of num_buckets - e steps from e to max_distance:

        log(n / e) / log(max_distance / e) (num_buckets - e) >= j

    which is an inequality of integers, n^k >= e^(k-j) max_distance^j with k = num_buckets - e.
    Two buckets with one start: the lower one is empty.
    """
    exact = num_buckets // 2
    steps = num_buckets - exact
    starts = list(range(exact + 1))
    for j in range(1, steps):
        bound = exact ** (steps - j) * max_distance**j
        below, reached = exact - 1, max_distance  # bisection: n^k < bound <= m^k
        while reached - below > 1:
            middle = (below + reached) // 2
            below, reached = (below, middle) if middle**steps >= bound else (middle, reached)
        starts.append(reached)
    return np.asarray(starts)


def buckets(distance, num_buckets=32, max_distance=128, bidirectional=False):
    """The bucket of each distance, in 0 ... num_buckets - 1, exact at every boundary.

    Args:
      distance: query position minus key position, of any shape; positive looks back. A fraction
        falls where the integer below its absolute value does.
      num_buckets: how many buckets in all, >= 2; bidirectional: even, >= 4.
      max_distance: from here on all distances share the last bucket; above the number of exact
        buckets (a half of those of one direction).
      bidirectional: the second half of the buckets is for keys to the right. Otherwise such keys
        share bucket 0 with distance 0.

    Returns:
      An int32 array like `distance`.
    """
    per_direction = _per_direction(num_buckets, bidirectional)
    starts = jnp.asarray(bucket_starts(per_direction, max_distance)[1:], distance.dtype)
    back = jnp.abs(distance) if bidirectional else jnp.maximum(distance, 0)
    # The number of the bucket is how many of the later starts are reached: nothing to round.
    reached = back[..., None] >= starts.reshape((1,) * distance.ndim + (-1,))
    bucket = reached.sum(axis=-1, dtype=jnp.int32)
    if bidirectional:
        bucket = bucket + jnp.where(distance < 0, jnp.int32(per_direction), jnp.int32(0))
    return bucket


def _per_direction(num_buckets, bidirectional):
    return num_buckets // 2 if bidirectional else num_buckets


@scheme
class t5(Scheme):
    """T5's learned bias per bucket of distances: exact when near, logarithmic when far.

        s_ij = q_i . k_j / sqrt(K) + table[bucket(i - j), h]

    Buckets as in Mesh TensorFlow and transformers, at every boundary where exact arithmetic puts it
    (`buckets`). One table, shared across layers, from N(0, 1/width) as in transformers. T5 itself
    does not scale q.k by 1/sqrt(K) but folds it into the initial weights; here the bias is added
    to scaled scores, as every bias is, so that T5's weights do not carry over as they are.

    Fields:
      num_buckets: rows of the table, >= 2; with `bidirectional` even and >= 4.
      max_distance: tokens from which on all distances share the last bucket; more than the number
        of exact buckets (a half of those of one direction).
      bidirectional: the second half of the rows is for keys to the right, as in T5's encoder. False
        gives all rows to keys on the left, as in its decoder; keys to the right read row 0.

    Past the training length far distances share buckets with nearer ones; buckets that no distance
    reached in training are as they were initialised.
    """

    paper = 'Raffel et al. 2020, arXiv:1910.10683'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens share a bucket'

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False

    def check(self):
        if self.bidirectional and (self.num_buckets < 4 or self.num_buckets % 2):
            raise ValueError(
                f'scheme t5: num_buckets={self.num_buckets} should be even and at least 4 (a half '
                'for each direction), or bidirectional=False'
            )
        self.require('num_buckets', self.num_buckets >= 2, 'at least 2')
        exact = _per_direction(self.num_buckets, self.bidirectional) // 2
        if self.max_distance <= exact:
            raise ValueError(
                f'scheme t5: max_distance={self.max_distance} should be above {exact}, the number '
                'of exact buckets; raise it or lower num_buckets'
            )

    def init(self, key, dims):
        normal = jax.random.normal(key, (self.num_buckets, dims.heads))
        return {'table': normal * jnp.float32(dims.width**-0.5)}

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        distance_BQS = distance(ctx)[:, 0]
        row_BQS = buckets(distance_BQS, self.num_buckets, self.max_distance, self.bidirectional)
        return jnp.moveaxis(params['table'][row_BQS], -1, 1)
