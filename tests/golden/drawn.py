"""Weights and tokens of tiny models as a pure function of a name, the same wherever and with whatever they are made.

A file of golden arrays need not hold what both sides can compute: SplitMix64 (Steele et al. 2014) is whole numbers only.
"""

import zlib

import numpy as np


def bits(name: str, count: int) -> np.ndarray:
    """64 bits for each of `count` numbers."""
    seed = np.uint64(zlib.crc32(name.encode())) << np.uint64(32)
    x = (np.arange(1, count + 1, dtype=np.uint64) + seed) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(name: str, *shape: int) -> np.ndarray:
    """Numbers in [-1, 1), exact in float32."""
    whole = bits(name, int(np.prod(shape))) >> np.uint64(41)
    return (whole.astype(np.float64) * 2.0**-22 - 1).reshape(shape)


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter of a tiny model by the name of its tensor. Scales of norms are around 1, the rest around 0."""
    scale = len(shape) == 1 and name.endswith("weight")
    return (1 + uniform(name, *shape) / 2) if scale else uniform(name, *shape) / 2


def tokens(name: str, count: int, length: int, vocab: int) -> np.ndarray:
    """Ids in 1 .. vocab-1 [count, length]; 0 is padding."""
    return (1 + bits(name, count * length) % np.uint64(vocab - 1)).astype(np.int64).reshape(count, length)
