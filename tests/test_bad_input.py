"""Every mistake of a user is a ValueError that says what was wrong, what came and what is allowed."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj

B, T, S, N, K, H = 2, 3, 5, 4, 2, 4
CAUSAL = aj.Mask(causal=True)
SIZES = aj.Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H)


def zeros(*shape, dtype=np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


GOOD = dict(q=zeros(B, T, N, H), k=zeros(B, S, K, H), v=zeros(B, S, K, H))


def attend(**change):
    """`attend` traced on shapes only, because a mistake must show before anything is computed."""
    return jax.eval_shape(lambda: aj.attend(**GOOD | change))


def test_the_unchanged_call_is_fine():
    assert attend().shape == (B, T, N, H)


ARRAYS = [
    (dict(q=zeros(T, N, H)), r"q must have 4 axes \[batch, length, heads, head\], got shape \(3, 4, 4\)"),
    (dict(k=zeros(S, K, H)), r"k must have 4 axes .*, got shape \(5, 2, 4\)"),
    (dict(v=zeros(B, S, K * H)), r"v must have 4 axes .*, got shape \(2, 5, 8\)"),
    (dict(q=zeros(B, T, N, H, dtype=np.int32)), "q must be of a floating type, got int32"),
    (dict(q=zeros(B, T, N, H, dtype=np.complex64)), "q must be of a floating type, got complex64"),
    (dict(v=zeros(B, S, K, H, dtype=bool)), "v must be of a floating type, got bool"),
    (dict(v=zeros(B, S + 1, K, H)), r"k and v must agree .*, got k \(2, 5, 2, 4\) and v \(2, 6, 2, 4\)"),
    (dict(v=zeros(B, S, 1, H)), r"k and v must agree .*, got k \(2, 5, 2, 4\) and v \(2, 5, 1, 4\)"),
    (dict(q=zeros(1, T, N, H)), r"the same batch size, got q \(1, 3, 4, 4\) and k \(2, 5, 2, 4\)"),
    (dict(q=zeros(B, T, N, 6)), r"the same head dimension, got q \(2, 3, 4, 6\) and k \(2, 5, 2, 4\)"),
    (dict(q=zeros(B, T, 3, H)), "query heads must be a multiple of key heads, got N=3 and K=2"),
    (dict(q=zeros(B, 0, N, H)), r"q must have at least one entry along every axis, got shape \(2, 0, 4, 4\)"),
    (dict(k=zeros(B, 0, K, H), v=zeros(B, 0, K, H)), r"k must have at least one entry .* \(2, 0, 2, 4\)"),
    (dict(k=zeros(B, S, 0, H), v=zeros(B, S, 0, H)), r"k must have at least one entry .* \(2, 5, 0, 4\)"),
    (dict(v=zeros(B, S, K, 0)), r"v must have at least one entry .* \(2, 5, 2, 0\)"),
    (dict(v=None), "attend needs k and v, or a cache"),
    (dict(k=None), "attend needs k and v, or a cache"),
]
POSITIONS = [
    (dict(q_pos=np.arange(S)), r"q_pos must have shape \(3,\) or \(2, 3\), got \(5,\)"),
    (dict(k_pos=np.zeros((1, S), int)), r"k_pos must have shape \(5,\) or \(2, 5\), got \(1, 5\)"),
    (dict(q_pos=np.array([0, 1, 2**31])), r"q_pos must fit int32 .*, got values 0\.\.2147483648"),
    (dict(k_pos=np.arange(S) - 2**31 - 1), r"k_pos must fit int32 .*, got values -2147483649\.\.-2147483645"),
    (dict(q_pos=jnp.array([0, 1, 2**31], jnp.uint32)), r"q_pos must fit int32 .*, got values 0\.\.2147483648"),
    (dict(q_pos=np.array([0.0, 1.0, 3e9])), "q_pos must be finite and fit int32"),
    (dict(q_pos=np.array([0.0, np.nan, 1.0])), r"q_pos must be finite .*, got \[ 0. nan  1.\]"),
    (dict(k_pos=np.full(S, np.inf)), "k_pos must be finite"),
    (dict(q_pos=jnp.zeros(T, jnp.bfloat16)), "q_pos must be integers or float32 .*collide past 256.*got bfloat16"),
    (dict(k_pos=np.zeros(S, np.float16)), "k_pos must be integers or float32 .*, got float16"),
    (dict(q_pos=np.ones(T, bool)), "q_pos must be integers or float32 .*, got bool"),
    (dict(k_pos=np.array(list("abcde"))), "k_pos must be integers or float32 .*, got <U1"),
    (
        dict(encoding=aj.XPos(), mask=CAUSAL, q_pos=np.array([0, 1, 20_000])),
        r"XPos.*got positions 0\.\.20000: raise scale",
    ),
    (dict(q_pos=zeros(B, K, T)), r"q_pos must have .* got \(2, 2, 3\); with a row per head it has \(2, 4, 3\)"),
    (dict(q_pos=zeros(N, T)), r"q_pos must have shape \(3,\) or \(2, 3\), got \(4, 3\)"),
    (dict(encoding=aj.RoPE(), k_pos=zeros(B, N, S)), r"got \(2, 4, 5\); with a row per head it has \(2, 2, 5\)"),
    (dict(q_pos=[0, 1, 2]), r"q_pos: a tuple of positions is for the parts of a composition, got it for NoPE\(\)"),
    (
        dict(encoding=aj.compose(aj.NoPE(), aj.RoPE()), q_pos=(np.arange(T),)),
        "q_pos: a tuple of positions is for the parts of a composition, got it for Compose",
    ),
    (
        dict(encoding=aj.AxialRoPE(axes=2), q_pos=zeros(T, 3), k_pos=zeros(S, 2)),
        r"q_pos: AxialRoPE.* takes positions with a last axis of 2 coordinates, got \(3, 3\)",
    ),
    (
        dict(encoding=aj.RoPE(scaling=aj.DynamicNTK(2.0, 8)), k_pos=zeros(B, K, S)),
        r"depends on the length needs positions \[S\] or \[B, S\], with one axis",
    ),
]
SINKS = [
    (dict(sink=zeros(3)), r"sink must be floating numbers of shape \(4,\), one logit per query head, got float32\[3\]"),
    (dict(sink=zeros(N, 1)), r"sink must be .*, got float32\[4, 1\]"),
    (dict(sink=zeros(N, dtype=np.int32)), r"sink must be .*, got int32\[4\]"),
    (dict(sink=1.0), "sink must be floating numbers of shape"),
    (
        dict(sink=zeros(N), encoding=aj.StickBreaking()),
        "weights of this encoding are not normalized.* a sink has no meaning",
    ),
]
MASKS = [
    (dict(mask=aj.Mask(k_valid=np.ones(T, bool))), r"mask.k_valid must have shape \(5,\) or \(2, 5\), got \(3,\)"),
    (dict(mask=aj.Mask(k_valid=np.ones(S))), "mask.k_valid must be boolean, got float64"),
    (dict(mask=aj.Mask(k_valid=np.ones(S, int))), "mask.k_valid must be boolean, got int64"),
    (
        dict(mask=aj.Mask(allowed=np.ones((S, T), bool))),
        r"mask.allowed must have shape \(3, 5\) or \(2, 3, 5\), got \(5, 3\)",
    ),
    (dict(mask=aj.Mask(allowed=np.ones((B, 1, T, S), bool))), r"mask.allowed must have shape .*, got \(2, 1, 3, 5\)"),
    (dict(mask=aj.Mask(allowed=np.ones((T, S)))), "mask.allowed must be boolean, got float64"),
    (
        dict(mask=aj.Mask(q_segments=np.zeros(S, int), k_segments=np.zeros(S, int))),
        r"mask.q_segments must have shape \(3,\) or \(2, 3\), got \(5,\)",
    ),
    (
        dict(mask=aj.Mask(q_segments=np.zeros(T), k_segments=np.zeros(S, int))),
        "mask.q_segments must be integers, got float64",
    ),
    (
        dict(mask=aj.Mask(q_segments=np.zeros(T, int), k_segments=np.full(S, 2**40))),
        r"mask.k_segments must fit int32 .*, got values 1099511627776\.\.",
    ),
    (dict(mask=aj.Mask(q_index=np.zeros(T))), "mask.q_index must be integers, got float64"),
    (dict(mask=aj.Mask(k_index=np.arange(T))), r"mask.k_index must have shape \(5,\) or \(2, 5\), got \(3,\)"),
]
SCALES = [
    (dict(scale=float("nan")), "scale must be finite, got nan"),
    (dict(scale=np.float32(np.inf)), "scale must be finite, got inf"),
    (dict(scale=jnp.array(np.nan)), "scale must be finite, got nan"),
    (dict(scale=np.ones(N)), r"scale must be a number or a scalar array, got array\(\[1., 1., 1., 1.\]\)"),
    (dict(scale="1"), "scale must be a number or a scalar array, got '1'"),
    (dict(scale=True), "scale must be a number or a scalar array, got True"),
]
CHOICES = [
    (
        dict(implementation="flash"),
        "unknown implementation 'flash'; choose from dense, chunked, xla, cudnn or None",
    ),
    (dict(encoding="rope"), r"encoding must be a PositionEncoding such as RoPE\(\), got 'rope'"),
    (dict(encoding=aj.RoPE), r"encoding must be a PositionEncoding such as RoPE\(\), got <class"),
    (
        dict(encoding=aj.Sinusoidal()),
        r"Sinusoidal\(.*\) acts on the embeddings alone: add it to the input of the model with attnjax.embed, and attend",
    ),
    (dict(encoding=aj.Learned(8)), r"Learned\(length=8.*\) acts on the embeddings alone"),
    (dict(encoding=aj.compose(aj.Sinusoidal(), aj.Learned(8))), r"Compose.* acts on the embeddings alone"),
]


@pytest.mark.parametrize(("change", "message"), ARRAYS + POSITIONS + MASKS + SINKS + SCALES + CHOICES)
def test_attend_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        attend(**change)


def test_a_cache_replaces_keys_and_values():
    cache = aj.KVCache.create(B, S, K, H)
    for change in (dict(), dict(v=None), dict(k=None, v=None, k_pos=np.arange(S))):
        with pytest.raises(
            ValueError, match="with a cache, k, v and k_pos come from it: append them, and pass only the cache"
        ):
            attend(cache=cache, **change)


# Encodings -----------------------------------------------------------------------------------------------------------


def odd(encoding, **options):
    width = 2 * H - 1
    options = dict(q=zeros(B, T, N, width), k=zeros(B, S, K, width), v=zeros(B, S, K, width), **options)
    return attend(encoding=encoding, **options)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: odd(aj.RoPE()), "RoPE rotates pairs of channels: the head dimension must be even, got 7"),
        (lambda: odd(aj.XPos(), mask=CAUSAL), "XPos rotates pairs of channels: the head dimension must be even, got 7"),
        (lambda: odd(aj.compose(aj.ALiBi(symmetric=True), aj.RoPE())), "the head dimension must be even, got 7"),
        (
            lambda: attend(encoding=aj.RoPE(fraction=0.2)),
            "fraction=0.2 and keep=1.0 leave no pair of a head dimension of 4",
        ),
        (lambda: attend(encoding=aj.ALiBi()), r"ALiBi.*needs a causal mask; pass Mask\(causal=True\), or use"),
        (lambda: attend(encoding=aj.XPos()), "XPos grows .* needs a causal mask"),
        (lambda: attend(encoding=aj.ALiBi((0.5, 0.1)), mask=CAUSAL), "got 2 slopes for 4 heads, need one per head"),
        (lambda: attend(encoding=aj.RoPE(scaling=aj.LongRoPE((1.0,), (2.0,), 8))), "one number per pair, 2, got 1"),
        (
            lambda: attend(encoding=aj.RoPE(fraction=0.5, scaling=aj.NTKAware(2.0))),
            "the rotary width must exceed 2, got 2",
        ),
        (
            lambda: aj.TransformerXL().init(jax.random.key(0), SIZES._replace(model=7)),
            "the model dimension must be even, got 7",
        ),
        (lambda: aj.embed(aj.Sinusoidal(), None, zeros(1, T, 7), np.arange(T)), "the width must be even, got 7"),
        (lambda: aj.embed(aj.RoPE(), None, zeros(T, 7), np.arange(T)), r"embed needs x \[B, T, D\].*got x \(3, 7\)"),
        (lambda: aj.embed(aj.RoPE(), None, zeros(1, T, 8), np.arange(S)), r"pos \[T\] or \[B, T\].*pos \(5,\)"),
        (
            lambda: aj.embed(aj.Learned(8), None, zeros(1, T, 8), np.arange(T)),
            "Learned.* learns parameters: pass params=",
        ),
        (lambda: table(np.array([0, 5, 8])), r"rows for positions 0..7, got positions 0..8: make a longer table"),
        (lambda: table(np.array([-1, 5, 7])), r"rows for positions 0..7, got positions -1..7"),
        (lambda: table(np.array([0.5, 1.0, 2.0])), "Learned needs integer positions .*, got float64"),
        (lambda: table(np.arange(3), width=6), r"the table must have shape \(8, 6\), got \(8, 8\)"),
        (lambda: aj.compose(aj.RoPE()), "compose: needs two or more encodings, got"),
        (
            lambda: aj.compose(aj.RoPE(), aj.RoPE),
            "compose: every argument must be a PositionEncoding such as RoPE.., got <class",
        ),
    ],
)
def test_encodings_refuse(run, message):
    with pytest.raises(ValueError, match=message):
        run()


def table(pos, width=8):
    encoding = aj.Learned(8)
    params = encoding.init(jax.random.key(0), SIZES._replace(model=8))
    return aj.embed(encoding, params, zeros(1, len(pos), width), pos)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rop", {}, r"unknown encoding 'rop' \(did you mean 'rope'\?\); choose from nope, sinusoidal, learned, rope"),
        ("RoPE", {}, r"unknown encoding 'RoPE'.*; choose from nope"),
        ("zzz", {}, r"unknown encoding 'zzz'; choose from nope"),
        (
            "rope",
            dict(thetta=5.0),
            r"encoding 'rope' has no option 'thetta' \(did you mean 'theta'\?\); it has: theta, layout",
        ),
        ("nope", dict(theta=5.0), "encoding 'nope' has no option 'theta'; it has: none"),
        ("learned", {}, "encoding 'learned' needs the option 'length'"),
    ],
)
def test_names_and_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        aj.encoding(name, **options)


LEARN = ["t5", "kerple", "fire", "transformer_xl", "cope", "pope"]


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (aj.FoX(), "FoX.* computes positions from content: pass q_pos as context_positions returns them"),
        (
            aj.compose(aj.RoPE(), aj.FoX()),
            "q_pos: a part of Compose.* computes positions: pass those of context_positions",
        ),
    ],
)
def test_positions_from_content_are_not_the_indices(encoding, message):
    params = encoding.init(jax.random.key(0), SIZES)
    for pos in ({}, {"q_pos": np.arange(T), "k_pos": np.arange(S)}):
        with pytest.raises(ValueError, match=message):
            attend(encoding=encoding, params=params, mask=CAUSAL, **pos)


@pytest.mark.quick("cope")
@pytest.mark.parametrize("name", LEARN)
def test_learned_encodings_need_their_parameters(name):
    encoding = aj.encoding(name)
    missing = f"{re.escape(str(encoding))} learns parameters: pass params=encoding.init.key, sizes., got params=None"
    with pytest.raises(ValueError, match=missing):
        attend(encoding=encoding, mask=CAUSAL)
    with pytest.raises(ValueError, match=r"the leaves of params\.\w+ must have shapes \[.+\], got \[\]"):
        attend(encoding=encoding, params=aj.EncodingParams(), mask=CAUSAL)
    with pytest.raises(ValueError, match="params must be EncodingParams as made by init, got dict"):
        attend(encoding=encoding, params={"table": zeros(N, 32)}, mask=CAUSAL)
    whole = encoding.init(jax.random.key(0), SIZES)
    assert attend(encoding=encoding, params=whole, mask=CAUSAL).shape == (B, T, N, H)
    # The parameters of a model of any width are fine, those for other heads are not.
    assert attend(encoding=encoding, params=encoding.init(jax.random.key(0), SIZES._replace(model=6)), mask=CAUSAL)
    other = SIZES._replace(head_dim=6) if name == "cope" else SIZES._replace(heads=8)
    with pytest.raises(ValueError, match=rf"{encoding.__class__.__name__}.*the leaves of params\.\w+ must have shapes"):
        attend(encoding=encoding, params=encoding.init(jax.random.key(0), other), mask=CAUSAL)


def test_parameters_of_another_encoding():
    t5, kerple = (aj.encoding(name).init(jax.random.key(0), SIZES) for name in ("t5", "kerple"))
    with pytest.raises(ValueError, match=r"T5Bias.*params.head must have shapes \[\(4, 32\)\], got \[\(4,\), \(4,\)\]"):
        attend(encoding=aj.T5Bias(), params=kerple)
    with pytest.raises(ValueError, match=r"T5Bias\(buckets=16.*must have shapes \[\(4, 16\)\], got \[\(4, 32\)\]"):
        attend(encoding=aj.T5Bias(buckets=16), params=t5)
    with pytest.raises(ValueError, match=r"RoPE.*params.head must have shapes \[\], got \[\(4, 32\)\]"):
        attend(encoding=aj.RoPE(), params=t5)
    both = aj.compose(aj.RoPE(), aj.T5Bias())
    with pytest.raises(ValueError, match=r"Compose.*must have shapes \[\(4, 32\)\], got \[\(4,\), \(4,\)\]"):
        attend(encoding=both, params=aj.EncodingParams(head=((), kerple.head), shared=((), ())))
    with pytest.raises(ValueError, match=r"got \[\(4, 32\)\] \(at \['table'\] in place of \[1\]\['table'\]\)"):
        attend(encoding=both, params=t5)


# Masks and dropout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aj.Mask(window=-1), r"window must be None, an int >= 0 or \(left, right\) of such, got -1"),
        (lambda: aj.Mask(window=(2, -1)), r"window must be .*, got \(2, -1\)"),
        (lambda: aj.Mask(window=2.0), r"window must be .*, got 2.0"),
        (lambda: aj.Mask(window=True), r"window must be .*, got True"),
        (lambda: aj.Mask(window=(1, 2, 3)), r"window must be .*, got \(1, 2, 3\)"),
        (lambda: aj.Mask(causal=1), "causal must be True or False, got 1"),
        (lambda: aj.Mask(q_segments=np.zeros(3, int)), "q_segments and k_segments go together; one of them is missing"),
        (lambda: aj.Dropout(jax.random.key(0), 1.0), r"rate must be in \[0, 1\), got 1.0"),
        (lambda: aj.Dropout(jax.random.key(0), -0.1), r"rate must be in \[0, 1\), got -0.1"),
        (lambda: aj.Dropout(jax.random.key(0), float("nan")), r"rate must be in \[0, 1\), got nan"),
        (
            lambda: aj.Dropout(jnp.zeros(2, jnp.uint32), 0.1),
            r"must be a typed PRNG key, jax.random.key\(seed\), got dtype uint32",
        ),
    ],
)
def test_masks_and_dropout_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aj.indices.arange(0), "arange: length must be at least 1, got 0"),
        (lambda: aj.indices.randomized(jax.random.key(0), 9, 8), "length must be at most maximum = 8, got 9"),
        (lambda: aj.indices.offset(jax.random.key(0), 2, 2**31), "maximum must be at most 2.31 - 1.*got 2147483648"),
        (lambda: aj.indices.offset(jnp.zeros(2, jnp.uint32), 2, 8), "key must be one typed key made by jax.random.key"),
        (
            lambda: aj.combine(zeros(2, B, T, N, H), zeros(2, B, N, T)),
            r"lses \[blocks, B, T, N\], got .*, \(2, 2, 4, 3\)",
        ),
        (lambda: aj.gate_heads(zeros(B, T, N, H), zeros(3)), r"gate must have shape \(4,\) or \(2, 4\), got \(3,\)"),
    ],
)
def test_helpers_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
