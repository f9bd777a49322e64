"""Schemes from and to the configs of Hugging Face's transformers.

    from_hf(config)     rope_parameters, or the older rope_scaling and rope_theta  ->  Scheme
    to_hf(scheme)       Scheme  ->  what to put into a config

Read and written: the rope types default, linear, dynamic, yarn, longrope, llama3 and proportional;
partial_rotary_factor; one set of parameters for each layer type; layers without positions
(no_rope_layers). Which layers see a window is not part of these parameters: chain `window` or
`chunks` with the scheme. Nor is DeepSeek's larger softmax scale: chain `sharpen`, with the square
of 0.1 mscale_all_dim ln(factor) + 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posjax import scaling as scalings
from posjax.scaling import Scaling
from posjax.scheme import Scheme
from posjax.schemes import every, none, p_rope, partial_rope, rope
from posjax.text import suggest

# What each rope type may hold beside _COMMON.
_COMMON = {'rope_type', 'type', 'rope_theta', 'partial_rotary_factor'}
_KEYS = {
    'default': set(),
    'linear': {'factor'},
    'proportional': {'factor'},
    'dynamic': {'factor'},
    'yarn': {'factor', 'original_max_position_embeddings', 'attention_factor', 'beta_fast',
             'beta_slow', 'mscale', 'mscale_all_dim', 'truncate'},
    'longrope': {'factor', 'original_max_position_embeddings', 'attention_factor', 'short_factor',
                 'long_factor'},
    'llama3': {'factor', 'original_max_position_embeddings', 'low_freq_factor', 'high_freq_factor'},
}  # fmt: skip
# Other names of a type: Phi-3's first config.
_RENAMED = {'su': 'longrope'}
# Keys beside the parameters that say something about positions, and are understood.
_BESIDE = {
    'rope_parameters', 'rope_scaling', 'rope_theta', 'partial_rotary_factor', 'rope_interleave',
    'qk_rope_head_dim', 'no_rope_layers', 'no_rope_layer_interval', 'rotary_emb_base', 'rotary_pct',
}  # fmt: skip
# Models whose code turns pairs (2k, 2k+1); their configs do not say so.
_INTERLEAVED = {'cohere', 'cohere2', 'deepseek_v2', 'deepseek_v3', 'ernie4_5', 'ernie4_5_moe',
                'glm', 'glm4', 'helium', 'llama4', 'llama4_text'}  # fmt: skip


def from_hf(config: Any, *, pairing: str | None = None) -> Scheme:
    """The scheme of a transformers config.

    Args:
      config: a config object (anything with `to_dict`), or the dict of a config.json. Beside the
        parameters themselves it says head_dim (or qk_rope_head_dim, or hidden_size and
        num_attention_heads), and, where a type needs it, max_position_embeddings; layer_types where
        parameters are for each of them.
      pairing: 'half' or 'interleaved'; by default as `rope_interleave` says, or as the code of the
        config's model_type has it, which is 'half' for most.

    Raises:
      ValueError: in one line: a key that is not understood (nothing is ever left out silently), one
        that is missing, or layers that no scheme has.
    """
    config = dict(config if isinstance(config, Mapping) else config.to_dict())
    for key, value in config.items():
        if ('rope' in key or 'rotary' in key) and key not in _BESIDE and value is not None:
            raise ValueError(f'config key {key}={value!r} is not understood{suggest(key, _BESIDE)}')
    if pairing is None:
        interleaved = config.get('rope_interleave', config.get('model_type') in _INTERLEAVED)
        pairing = 'interleaved' if interleaved else 'half'
    parameters = dict(config.get('rope_parameters') or config.get('rope_scaling') or {})
    types = config.get('layer_types') or []
    if parameters.keys() & set(types):
        made = {
            kind: none()
            if own is None
            else _rotation(own, config, _head_dim(config, kind), pairing)
            for kind, own in parameters.items()
            if kind in types
        }
        for key in {*parameters, *types} - made.keys():
            raise ValueError(f'rope_parameters and layer_types do not agree on {key!r}')
        return _by_layer([made[kind] for kind in types])
    turned = _rotation(parameters, config, _head_dim(config), pairing)
    return _by_layer([turned if has else none() for has in _has_rope(config)] or [turned])


def to_hf(scheme: Scheme, *, head_dim: int | None = None, layers: int | None = None) -> dict:
    """What a transformers config says for a scheme, to be put into it.

    Args:
      scheme: rope, partial_rope or p_rope, or `every` with these and none.
      head_dim: for partial_rope and p_rope, which the config writes as fractions of it.
      layers: for `every`.

    Returns:
      'rope_parameters', and beside it, where they are needed, 'layer_types', 'no_rope_layers',
      'max_position_embeddings' (the training length of dynamic) and 'rope_interleave'. The last is
      read by few models: for the others convert the weights (`posjax.convert`) to 'half'.

    Raises:
      ValueError: in one line, where transformers has no form for it.
    """
    if not isinstance(scheme, every):
        return _written(scheme, head_dim)
    if layers is None:
        raise ValueError(f'to_hf: {scheme.text} needs layers=, how many layers the model has')
    is_other = [(layer + 1) % scheme.n == 0 for layer in range(layers)]
    if isinstance(scheme.other, none):
        return _written(scheme.scheme, head_dim) | {
            'no_rope_layers': [int(not other) for other in is_other]
        }
    inside = {
        'sliding_attention': _written(scheme.scheme, head_dim),
        'full_attention': _written(scheme.other, head_dim),
    }
    beside = [{k: v for k, v in part.items() if k != 'rope_parameters'} for part in inside.values()]
    if beside[0] != beside[1]:
        raise ValueError(f'to_hf: the two schemes of {scheme.text} ask for different {beside}')
    return beside[0] | {
        'layer_types': [list(inside)[other] for other in is_other],
        'rope_parameters': {kind: part['rope_parameters'] for kind, part in inside.items()},
    }


def _head_dim(config: Mapping, kind: str | None = None) -> int:
    """Dims of a head, or of those that carry position; Gemma 4 has other heads in some layers."""
    if kind == 'full_attention' and config.get('global_head_dim'):
        return config['global_head_dim']
    for layer, own in (config.get('per_layer_config') or {}).items():
        if config['layer_types'][int(layer)] == kind and own.get('head_dim'):
            return own['head_dim']
    for key in ('qk_rope_head_dim', 'head_dim'):
        if config.get(key):
            return config[key]
    return _needed(config, 'hidden_size') // _needed(config, 'num_attention_heads')


def _has_rope(config: Mapping) -> list[int]:
    """1 for layers with positions and 0 for those without; empty if all have them."""
    if config.get('no_rope_layers'):
        return config['no_rope_layers']
    interval = config.get('no_rope_layer_interval')
    layers = _needed(config, 'num_hidden_layers') if interval else 0
    return [int((layer + 1) % interval != 0) for layer in range(layers)]


def _by_layer(layers: Sequence[Scheme]) -> Scheme:
    """One scheme for a list of them."""
    first = layers[0]
    if all(layer == first for layer in layers):
        return first
    n = 1 + next(i for i, layer in enumerate(layers) if layer != first)
    mixed = every(n, first, layers[n - 1])
    for number, layer in enumerate(layers, start=1):
        if layer != (mixed.other if number % n == 0 else mixed.scheme):
            raise ValueError(
                f'layers are not periodic: {mixed.text} is the scheme of the first {number - 1}, '
                f'and layer {number} has {layer.text}'
            )
    return mixed


def _rotation(parameters: Mapping, config: Mapping, head_dim: int, pairing: str) -> Scheme:
    """The scheme of one set of parameters."""
    kind = parameters.get('rope_type', parameters.get('type')) or 'default'
    kind = _RENAMED.get(kind, kind)
    if kind not in _KEYS:
        raise ValueError(f'rope_type={kind!r} is not understood{suggest(kind, _KEYS)}')
    known = _COMMON | _KEYS[kind]
    for key in parameters:
        if key not in known:
            raise ValueError(
                f'rope_type={kind!r} has a key {key!r} that is not understood{suggest(key, known)}'
            )
    own = {key: value for key, value in parameters.items() if value is not None}
    theta = float(_first('rope_theta', own, config) or config.get('rotary_emb_base') or 1e4)
    fraction = _first('partial_rotary_factor', own, config)
    fraction = config.get('rotary_pct', 1.0) if fraction is None else fraction
    fields = {'theta': theta, 'pairing': pairing, 'scaling': _scaling(kind, own, config)}
    if kind == 'proportional':
        rotary_dim = 2 * int(fraction * head_dim // 2)
        scheme = p_rope(rotary_dim, **fields) if rotary_dim else none()
    else:
        rotary_dim = int(fraction * head_dim)
        scheme = rope(**fields) if rotary_dim == head_dim else partial_rope(rotary_dim, **fields)
    scheme.check()
    return scheme


def _scaling(kind: str, own: Mapping, config: Mapping) -> Scaling:
    """The scaling of one set of parameters, whose absent values are left out."""
    if kind == 'default' or (kind == 'proportional' and 'factor' not in own):
        return scalings.unscaled()
    if kind in ('linear', 'proportional'):
        return scalings.linear(float(_needed(own, 'factor')))
    if kind == 'dynamic':
        return scalings.dynamic_ntk(
            float(_needed(own, 'factor')), float(_needed(config, 'max_position_embeddings'))
        )
    # Phi-3 writes it beside the parameters, and transformers lets that one win.
    length = _first('original_max_position_embeddings', config, own)
    length = float(length or _needed(config, 'max_position_embeddings'))
    factor = own.get('factor')
    if factor is None:
        factor = max(1.0, _needed(config, 'max_position_embeddings') / length)
    if kind == 'llama3':
        low, high = (float(_needed(own, f'{end}_freq_factor')) for end in ('low', 'high'))
        return scalings.llama3(float(factor), length, low, high)
    explicit = own.get('attention_factor')
    if kind == 'longrope':
        short, long = (
            tuple(map(float, _needed(own, f'{end}_factor'))) for end in ('short', 'long')
        )
        if explicit is not None:
            return scalings.longrope(short, long, length, attn_factor=float(explicit))
        return scalings.longrope(short, long, length, float(factor))
    attention = {}
    if explicit is not None:
        attention = {'mscale': 0.0, 'attn_factor': float(explicit)}
    elif own.get('mscale') and own.get('mscale_all_dim'):
        attention = {name: float(own[name]) for name in ('mscale', 'mscale_all_dim')}
    return scalings.yarn(
        float(factor),
        length,
        float(own.get('beta_fast') or 32.0),
        float(own.get('beta_slow') or 1.0),
        own.get('truncate', True),
        **attention,
    )


def _written(scheme: Scheme, head_dim: int | None) -> dict:
    """rope_parameters, and what goes beside them, of one rotation."""
    if not isinstance(scheme, rope | partial_rope | p_rope):
        raise ValueError(
            f'to_hf: transformers has no form of {scheme.text}; it has rope, partial_rope and '
            'p_rope, and `every` with these and none'
        )
    kind, own, beside = _written_scaling(scheme.scaling)
    if isinstance(scheme, p_rope):
        if kind not in ('default', 'linear'):
            raise ValueError(
                f'to_hf: transformers scales p_rope by linear alone, not {scheme.text}'
            )
        kind = 'proportional'
    parameters = {'rope_type': kind, 'rope_theta': scheme.theta} | own
    if not isinstance(scheme, rope):
        if head_dim is None:
            raise ValueError(f'to_hf: {scheme.text} needs head_dim=, of which a part turns')
        parameters['partial_rotary_factor'] = scheme.rotary_dim / head_dim
    if scheme.pairing == 'interleaved':
        beside = beside | {'rope_interleave': True}
    return {'rope_parameters': parameters} | beside


def _written_scaling(scaling: Scaling) -> tuple[str, dict, dict]:
    """A scaling as a rope type, its keys, and keys beside the parameters."""
    match scaling:
        case scalings.unscaled():
            return 'default', {}, {}
        case scalings.linear(factor):
            return 'linear', {'factor': factor}, {}
        case scalings.dynamic_ntk(factor, length):
            return 'dynamic', {'factor': factor}, {'max_position_embeddings': _whole(length)}
        case scalings.llama3(factor, length, low, high) | scalings.by_parts(
            factor, length, low, high
        ):
            own = {'factor': factor, 'low_freq_factor': low, 'high_freq_factor': high}
            kind = 'llama3'
        case scalings.longrope(short, long, length, factor, attention):
            own = {'short_factor': list(short), 'long_factor': list(long), 'factor': factor}
            if attention != 1:
                stretch = math.log(factor) / math.log(length)
                own['attention_factor'] = attention * math.sqrt(1 + stretch)
            kind = 'longrope'
        case scalings.yarn(factor, length, fast, slow, truncate, mscale, all_dim, attention):
            own = {'factor': factor, 'beta_fast': fast, 'beta_slow': slow, 'truncate': truncate}
            if attention == 1 and mscale and all_dim:
                own |= {'mscale': mscale, 'mscale_all_dim': all_dim}
            elif (attention, mscale, all_dim) != (1, 1, 0):
                ratio = [0.1 * m * math.log(factor) + 1 for m in (mscale, all_dim)]
                own['attention_factor'] = attention * ratio[0] / ratio[1]
            kind = 'yarn'
        case _:
            raise ValueError(f'to_hf: transformers has no form of scaling {scaling.text}')
    return kind, own | {'original_max_position_embeddings': _whole(length)}, {}


def _whole(length: float) -> int | float:
    return int(length) if float(length).is_integer() else length


def _first(key: str, *places: Mapping):
    """The first value that is there."""
    return next((place[key] for place in places if place.get(key) is not None), None)


def _needed(place: Mapping, key: str):
    if place.get(key) is None:
        raise ValueError(f'config: {key} is missing')
    return place[key]
