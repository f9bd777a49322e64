"""Two CPU devices, so that the run axis is really split; and no silent broadcasting of ranks."""

import jax

jax.config.update('jax_num_cpu_devices', 2)
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')
