"""The layers of a stack one after the other: separate blocks that are unrolled, or one block of stacked parameters.

    unrolled    blocks[0] ... blocks[L-1], each traced and compiled on its own
    scanned     one block whose parameters have a leading axis [L], traced once, in `jax.lax.scan`

Both compute the same numbers from the same parameters, and start from the same ones. Of a training step with AdamW (D = 256,
N = 4, F = 1024, RoPE, B = 8, T = 128, float32), seconds of the processor to trace and to compile, and MiB of temporary memory,
on a CPU with jax 0.10.2, by `python -m experiments.scan_layers 2 12 48`:

    layers  remat    unrolled: trace  compile  memory    scanned: trace  compile  memory
         2     no                0.7      3.0      79               0.5      4.0     107
         2    yes                0.5      3.1      87               0.4      3.8      53
        12     no                2.3      8.9     429               0.4      3.9     495
        12    yes                2.7     10.5     478               0.4      3.7      94
        48     no                7.8    138.0    1690               0.4      4.4    1891
        48    yes               12.7    135.5    1883               0.3      4.0     238

In a loop `remat` saves memory on a CPU too. Two layers are compiled no faster. The last layer is computed for all positions,
also where `query_indices` ask for few; and decoding copies the cache of a layer for every token, and is better unrolled.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.modules.block import TransformerBlock
from attnjax.modules.config import TransformerConfig
from attnjax.typing import Array, PyTree

Blocks = nnx.List | TransformerBlock


def make_blocks(config: TransformerConfig, *, cross: bool, rngs: nnx.Rngs) -> Blocks:
    """Returns the blocks of a stack; stacked ones start from the numbers that separate ones would have.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=3, heads=2, hidden=32, scan_layers=True)
      >>> make_blocks(config, cross=False, rngs=nnx.Rngs(0)).attention.w_q.shape
      (3, 16, 2, 8)
    """
    if not config.scan_layers:
        return nnx.List([TransformerBlock(config, i, cross=cross, rngs=rngs) for i in range(config.layers)])
    stream = rngs.params

    def make(count: Array, _: None) -> tuple[Array, TransformerBlock]:
        """The next block, which draws its keys where the one before it stopped."""
        own = nnx.Rngs(params=stream.key[...])
        own.params.count[...] = count
        block = TransformerBlock(config, cross=cross, rngs=own)
        return own.params.count[...], block

    stream.count[...], blocks = jax.lax.scan(make, stream.count[...], length=config.layers)
    return blocks


def separate(blocks: Blocks) -> list[TransformerBlock]:
    """Returns the blocks of the layers one by one, those of a stacked block as slices of it."""
    if isinstance(blocks, nnx.List):
        return list(blocks)
    leaves, structure = jax.tree.flatten(blocks)
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(leaves[0].shape[0])]


def stacked(found: Any) -> PyTree:
    """Returns what each layer computed with a leading axis of layers: a list is stacked, what `jax.lax.scan` made is so."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found) if isinstance(found, list) else found
