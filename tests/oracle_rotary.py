"""Parts of RoPE for `oracle.py`: the rules that stretch frequencies, and the distances of methods that remap positions.

A rule returns the frequencies and the attention factor. A distance is a table [T, S], where i and j are the positions of
queries and keys.
"""

import math

import jax.numpy as jnp


def rectified(encoding, i, j):
    """Su 2023: no distance past the window."""
    return jnp.minimum(i - j, encoding.window)


def grouped(encoding, i, j):
    """Jin et al. 2024, section 3.2."""
    G, W = encoding.group, encoding.window
    return jnp.where(i - j < W, i - j, jnp.floor(i / G) - jnp.floor(j / G) + W - W // G)


def leaky(encoding, i, j):
    """Su 2023: 1 / k of a step for each position past the window."""
    return jnp.where(i - j < encoding.window, i - j, encoding.window + (i - j - encoding.window) / encoding.factor)


def between_chunks(encoding, i, j):
    """An et al. 2024, section 3, as released."""
    s = encoding.chunk
    c = s - encoding.local
    back = jnp.floor(i / c) - jnp.floor(j / c)
    inside = lambda x: x - c * jnp.floor(x / c)
    query = jnp.where(back > 1, min(2 * c - 1, s), jnp.where(back == 1, jnp.minimum(inside(i) + c, s), inside(i)))
    return query - inside(j)


def lambda_shaped(encoding, i, j):
    """Han et al. 2024, section 4: one distance past the window."""
    return jnp.where(i - j <= encoding.window, i - j, encoding.limit or encoding.window + 1)


def in_the_cache(encoding, i, j):
    """Xiao et al. 2023: places in a cache of the first keys and the last ones; the query is behind them."""
    query = jnp.minimum(i, encoding.first + encoding.window)
    key = jnp.where(j < encoding.first, j, query - (i - j))
    return query - key


def interpolated(scaling, radians, theta, width, length):
    return [w / scaling.factor for w in radians], 1.0


def larger_base(scaling, radians, theta, width, length):
    base = theta * scaling.factor ** (width / (width - 2))
    return [base ** (-2 * i / width) for i in range(width // 2)], 1.0


def dynamic_base(scaling, radians, theta, width, length):
    grown = scaling.factor * length / scaling.original_length - (scaling.factor - 1)
    grown = jnp.where(length > scaling.original_length, grown, 1.0)
    return [(theta * grown ** (width / (width - 2))) ** (-2 * i / width) for i in range(width // 2)], 1.0


def yarn(scaling, radians, theta, width, length):
    """Peng et al. 2023, section 3.2: index of the pair that makes r turns, and a ramp between two of them."""
    index = lambda r: width * math.log(scaling.original_length / (2 * math.pi * r)) / (2 * math.log(theta))
    low = max(math.floor(index(scaling.beta_fast)), 0)
    high = min(math.ceil(index(scaling.beta_slow)), width - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(width // 2)]
    mixed = [w * (1 - r) + w / scaling.factor * r for w, r in zip(radians, ramp)]
    return mixed, scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1


def llama3(scaling, radians, theta, width, length):
    low, high = (scaling.original_length / f for f in (scaling.low_freq_factor, scaling.high_freq_factor))

    def stretched(w):
        wavelength = 2 * math.pi / w
        if wavelength < high:
            return w
        if wavelength > low:
            return w / scaling.factor
        smooth = scaling.original_length / wavelength - scaling.low_freq_factor
        smooth /= scaling.high_freq_factor - scaling.low_freq_factor
        return (1 - smooth) * w / scaling.factor + smooth * w

    return [stretched(w) for w in radians], 1.0


def longrope(scaling, radians, theta, width, length):
    lists = zip(radians, scaling.short_factors, scaling.long_factors)
    chosen = [jnp.where(length > scaling.original_length, w / long, w / short) for w, short, long in lists]
    default = math.sqrt(1 + math.log(scaling.factor or 1) / math.log(scaling.original_length))
    return chosen, scaling.attention_factor or default


def resonance(scaling, radians, theta, width, length):
    """Wang et al. 2024, section 4, of the frequencies of another rule."""
    gain = 1.0
    if scaling.of is not None:
        radians, gain = STRETCHES[type(scaling.of).__name__](scaling.of, radians, theta, width, length)
    return [2 * math.pi / round(2 * math.pi / w) for w in radians], gain


STRETCHES = {
    "Resonance": resonance,
    "PositionInterpolation": interpolated,
    "NTKAware": larger_base,
    "DynamicNTK": dynamic_base,
    "YaRN": yarn,
    "Llama3": llama3,
    "LongRoPE": longrope,
}
