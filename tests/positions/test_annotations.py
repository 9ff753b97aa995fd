"""Annotations tell the truth: every hook runs under a type checker that also checks axis sizes.

An encoding is tested by adding it to `ENCODINGS` below. Every axis has a size of its own, so that a letter in the wrong
place cannot pass.
"""

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from attnjax.positions.angles import angles, exact
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile, Trait, resolve
from attnjax.positions.learned import Learned
from attnjax.positions.pope import PoPE
from attnjax.positions.rope import RoPE
from attnjax.positions.rotary import rotate
from attnjax.positions.scaling import YaRN
from attnjax.positions.scaling_dynamic import DynamicNTK
from attnjax.positions.sinusoidal import Sinusoidal, sinusoidal_table
from attnjax.positions.xpos import XPos, power_of_two

ENCODINGS = [
    PositionEncoding(),
    Sinusoidal(),
    Learned(11),
    RoPE(),
    RoPE(layout="interleaved", fraction=0.5, scaling=YaRN(4.0, 64)),
    RoPE(scaling=DynamicNTK(2.0, 4)),
    XPos(),
    PoPE(),
]

T, S, H, D, N = 3, 5, 8, 14, 2


def checked(function):
    return jaxtyping.jaxtyped(typechecker=beartype.beartype)(function)


def hooks(encoding):
    """What each hook is called with, by name."""
    sizes = Sizes(model=D, heads=N, kv_heads=1, head_dim=H)
    p = resolve(encoding, encoding.init(jax.random.key(0), sizes), sizes, length=S)
    p = p._replace(head=jax.tree.map(lambda leaf: leaf[0], p.head))
    x, q, k = jnp.ones((T, D)), jnp.ones((T, H)), jnp.ones((S, H))
    q_pos, k_pos = jnp.arange(T) + 2, jnp.arange(S)
    tile = Tile(q @ k.T, q, k, q_pos, k_pos, jnp.ones((T, S), bool), 1.0)
    calls = {
        "context": (p, x, q_pos, jnp.zeros(())),
        "embed": (p, x, q_pos),
        "map_q": (p, q, q_pos),
        "map_k": (p._replace(head=()), k, k_pos),
        "bias": (p, tile.distance),
        "score": (p, tile),
    }
    every = type(encoding) is PositionEncoding
    return {name: calls[name] for name in calls if every or Trait[name.upper()] in encoding.traits}


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_hooks_are_what_their_annotations_say(encoding):
    for name, arguments in hooks(encoding).items():
        checked(getattr(type(encoding), name))(encoding, *arguments)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_hooks_take_numpy_positions_too(encoding):
    for name in {"embed", "map_q", "map_k"} & hooks(encoding).keys():
        *arguments, pos = hooks(encoding)[name]
        checked(getattr(type(encoding), name))(encoding, *arguments, np.asarray(pos))


def test_the_checker_notices_a_wrong_axis():
    with pytest.raises(jaxtyping.TypeCheckError):
        checked(RoPE.map_k)(RoPE(), EncodingParams(), jnp.ones((S, H)), jnp.arange(T))


def test_pure_functions_are_what_their_annotations_say():
    pos, c = jnp.arange(T), 4
    frequencies = exact(np.ones(c))
    angle = checked(angles)(pos, frequencies)
    checked(rotate)(jnp.ones((T, 9)), angle, "half", angle)
    checked(sinusoidal_table)(np.arange(T), 6)
    checked(power_of_two)(pos, np.ones(c) / 512, jnp.dtype("float32"))
