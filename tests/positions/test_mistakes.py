"""Mistakes in an encoding of one's own that would otherwise train as NoPE, or as another encoding, without a word."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.config.schema import EncodingConfig
from attnjax.modules import TransformerConfig
from attnjax.positions.base import PositionEncoding
from attnjax.train.model import encoding as of_config

X = jnp.ones((1, 3, 2, 4))


@dataclasses.dataclass(frozen=True)
class Rotate(PositionEncoding):
    """A hook under a name that attention does not know."""

    theta: float = 1e4

    def rotate(self, q, pos):
        return q


class Slope(PositionEncoding):
    """Two of these are equal whatever their slopes."""

    def __init__(self, slope):
        object.__setattr__(self, "slope", slope)

    def bias(self, p, n):
        return -self.slope * jnp.abs(n).astype(jnp.float32)


class Compared(Slope):
    """As its author says when two are equal."""

    __slots__ = ("slope",)

    def __init__(self, slope):
        object.__setattr__(self, "slope", slope)

    def __eq__(self, other):
        return isinstance(other, Compared) and self.slope == other.slope

    def __hash__(self):
        return hash(self.slope)


USES = {
    "attend": lambda one: aj.attend(X, X, X, encoding=one),
    "cache": lambda one: aj.KVCache.create(1, 3, 2, 4, encoding=one),
    "embed": lambda one: aj.embed(one, None, X[:, :, 0], np.arange(3)),
    "compose": lambda one: aj.compose(aj.RoPE(), one),
    "model": lambda one: TransformerConfig(vocab=3, encoding=one),
    "attention_fn": aj.attention_fn,
    "process_heads": aj.process_heads,
}


@pytest.mark.parametrize("use", USES)
def test_an_encoding_that_would_be_nope_or_equal_to_others_is_refused(use: str):
    hooks = r"Rotate overrides no hook of PositionEncoding \(context, embed, map_q, map_k, bias, score\), and would act as NoPE"
    with pytest.raises(ValueError, match=hooks):
        USES[use](Rotate())
    assert Slope(1.0) == Slope(3.0)
    with pytest.raises(
        ValueError, match="Slope must be a frozen dataclass with its options as fields. Encodings are comp"
    ):
        USES[use](Slope(1.0))


def test_a_config_does_not_train_it():
    with pytest.raises(ValueError, match=f"{__name__}:Rotate: Rotate overrides no hook"):
        of_config(EncodingConfig(f"{__name__}:Rotate", {"theta": 3.0}))


def test_what_is_nope_on_purpose_or_says_itself_when_it_is_equal_is_served():
    class Named(aj.NoPE):
        pass

    np.testing.assert_array_equal(aj.attend(X, X, X, encoding=Named()), aj.attend(X, X, X))
    aj.attend(X, X, X, encoding=PositionEncoding())
    found = aj.attend(X, X, X, encoding=Compared(0.5), mask=aj.Mask(causal=True))
    assert found.shape == X.shape


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda self, p, x, pos: x.sum(-1), r"the hook embed must return an array of shape \[3, 4\], got \[3\]"),
        (lambda self, p, x, pos: x.astype(int), "the hook embed must return floating numbers, got int32"),
    ],
)
def test_what_embed_returns_is_checked(hook, message: str):
    one = dataclasses.dataclass(frozen=True)(type("Embedding", (PositionEncoding,), {"embed": hook}))
    with pytest.raises(ValueError, match=message):
        aj.embed(one(), None, X[:, :, 0], np.arange(3))


def test_tokens_are_no_embeddings():
    with pytest.raises(ValueError, match="embed needs an array x of floating numbers, got int32"):
        aj.embed(aj.Sinusoidal(), None, jnp.zeros((1, 3, 4), jnp.int32), np.arange(3))
    with pytest.raises(ValueError, match="embed: encoding must be a PositionEncoding such as RoPE.., got 'sinusoidal'"):
        aj.embed("sinusoidal", None, X[:, :, 0], np.arange(3))


def test_a_pair_is_no_number():
    with pytest.raises(ValueError, match=r"RoPE: theta must be a number, got \(10000.0, 500000.0\)"):
        aj.RoPE(theta=(1e4, 5e5))


@pytest.mark.parametrize(
    ("heads", "message"),
    [(0, "heads must be at least 1, got 0"), (3, "heads must be a multiple of kv_heads=2, got 3")],
)
def test_heads_of_a_cache(heads: int, message: str):
    with pytest.raises(ValueError, match=f"KVCache: {message}"):
        aj.KVCache.create(1, 3, 2, 4, heads=heads)


@pytest.mark.parametrize(
    ("key", "rate", "message"),
    [
        (0, 0.1, r"key must be a typed PRNG key, jax.random.key\(seed\), got 0"),
        (jax.random.key_data(jax.random.key(0)), 0.1, "got dtype uint32"),
        (np.zeros(2, np.uint32), 0.1, "got dtype uint32"),
        (jax.random.key(0), "0.1", r"rate must be in \[0, 1\), got '0.1'"),
    ],
)
def test_dropout_takes_a_key_and_a_number(key, rate, message: str):
    with pytest.raises(ValueError, match=f"Dropout: .*{message}"):
        aj.Dropout(key, rate)


def test_positions_that_float32_does_not_hold():
    """Neighbours past 2^24 would have one position, as those of 16 bits past 256."""
    far = np.arange(3) + 20_000_001.0
    message = "q_pos has whole numbers that float32 does not hold, such as 20000001: pass them as integers"
    with pytest.raises(ValueError, match=message):
        aj.attend(X, X, X, encoding=aj.RoPE(), q_pos=far, k_pos=far)


def test_float64_positions_of_numpy_stay_so_where_64_bits_are_enabled():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(rng.normal(size=(1, 3, 2, 4))) for _ in range(3))
        pos = np.arange(3) * 0.1 + 20_000_001
        run = lambda pos: aj.attend(q, k, v, encoding=aj.RoPE(), q_pos=pos, k_pos=pos)
        np.testing.assert_array_equal(run(pos), run(jnp.asarray(pos)))


@pytest.mark.parametrize("function", [aj.explain, aj.attention_weights, aj.attend_with_lse])
def test_a_misspelt_keyword_is_that_of_the_function_that_was_called(function):
    message = rf"{function.__name__}\(\) got an unexpected keyword argument 'maks'; it has encoding, params, .*, mask,"
    with pytest.raises(TypeError, match=message):
        function(X, X, X, maks=aj.Mask())


def test_sides_of_parameters():
    message = r"p\['slope'\]: say which side it is of, p.head\['slope'\], p.kv_head\['slope'\] or p.shared\['slope'\]"
    with pytest.raises(ValueError, match=message):
        aj.EncodingParams(head={"slope": 1.0})["slope"]
    assert aj.EncodingParams(head={"slope": 1.0})[0] == {"slope": 1.0}

    @dataclasses.dataclass(frozen=True)
    class Plain(PositionEncoding):
        def constants(self, sizes, length=None):
            return {"slope": 1.0}

        def bias(self, p, n):
            return p.head["slope"] * n

    with pytest.raises(ValueError, match="Plain.*: constants must return EncodingParams, got dict"):
        aj.attend(X, X, X, encoding=Plain())


def test_a_name_that_its_module_lacks():
    with pytest.raises(
        ValueError, match=r"the module tests.positions.test_mistakes has no Rotat \(did you mean 'Rotate'\?\)"
    ):
        of_config(EncodingConfig(f"{__name__}:Rotat", {}))


def test_one_query_over_many_keys_says_which_it_is():
    """By its index it would be the first, whatever its position."""
    (q, k, v), rope = (jax.random.normal(jax.random.key(i), X.shape) for i in range(3)), aj.RoPE()
    whole = aj.attend(q, k, v, encoding=rope, mask=aj.Mask(causal=True))
    last = lambda mask: aj.attend(q[:, -1:], k, v, encoding=rope, mask=mask, q_pos=np.array([2]))
    for mask in (aj.Mask(causal=True), aj.Mask(window=1)):
        with pytest.raises(
            ValueError, match=r"one query and 3 keys .* Pass Mask\(q_index=\) .*, such as \[2\], or decode"
        ):
            last(mask)
    found = last(aj.Mask(causal=True, q_index=np.array([2])))
    np.testing.assert_allclose(found, whole[:, -1:], atol=1e-6)


def test_coordinates_have_a_number():
    @dataclasses.dataclass(frozen=True)
    class Plane(PositionEncoding):
        def map_q(self, p, q, pos):
            return q

        @property
        def traits(self):
            return super().traits | aj.Trait.AXES

    with pytest.raises(
        ValueError, match="Plane.* has Trait.AXES, and needs an attribute `axes` with the number of its coord"
    ):
        aj.attend(X, X, X, encoding=Plane())
