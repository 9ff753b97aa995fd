"""The interface: hooks, parameters and constants, hyper-parameters that are refused, compositions, and `embed`."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions import program
from attnjax.positions.base import PositionEncoding, distance, validate_encoding
from attnjax.positions.compose import joined, parts_of
from tests.positions.hooks import SIZES, close

KEY = jax.random.key(0)
ALL = {name: make(length=9) if name == "learned" else make() for name, make in aj.ENCODINGS.items()}
OTHERS = {
    "alibi_symmetric": aj.ALiBi(symmetric=True),
    "kerple_power": aj.Kerple("power"),
    "ssmax_biased": aj.SSMax(biased=True),
    "path_forget": aj.PaTH(forget=True),
    "dape_alibi": aj.DAPE(aj.ALiBi()),
    "dape_without": aj.DAPE(None),
    "xl_clamped": aj.TransformerXL(table="clamped", length=8),
}
SCALINGS = (
    aj.PositionInterpolation(2.0),
    aj.NTKAware(2.0),
    aj.DynamicNTK(2.0, 8),
    aj.YaRN(2.0, 8, attention_factor=1.0),
    aj.Llama3(2.0, 8),
    aj.LongRoPE((1.0,), (2.0,), 8, attention_factor=1.0, factor=2.0),
)
EVERY = pytest.mark.parametrize("encoding", (ALL | OTHERS).values(), ids=ALL | OTHERS)


def made(name, **hooks):
    """An encoding of one's own without fields."""
    return dataclasses.make_dataclass(name, [], bases=(PositionEncoding,), namespace=hooks, frozen=True)()


# Hooks ---------------------------------------------------------------------------------------------------------------


def test_distances_are_subtracted_before_they_are_rounded():
    far = 2**30 + jnp.arange(2)
    np.testing.assert_array_equal(distance(far, far, jnp.float32), [[0, -1], [1, 0]])


@EVERY
def test_what_init_and_constants_promise(encoding, x64):
    """`learns` says whether there are parameters, which are float32; those of heads lead with N or K; all sizes differ."""
    sizes = aj.Sizes(model=66, heads=6, kv_heads=3, head_dim=24)
    params = jax.eval_shape(lambda: encoding.init(KEY, sizes))
    assert aj.learns(encoding) == bool(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} <= {np.dtype("float32")}
    constants = encoding.constants(sizes)
    assert not params.keys() & constants.keys()
    for names, count in ((encoding.per_head, 6), (encoding.per_kv_head, 3)):
        for name in names:
            assert {np.shape(leaf)[0] for leaf in jax.tree.leaves((params | constants)[name])} == {count}
    assert hash(encoding) == hash(dataclasses.replace(encoding))
    assert encoding.by_length == any(
        not np.array_equal(a, b) for a, b in zip(*(jax.tree.leaves(encoding.constants(sizes, n)) for n in (9, 99)))
    )


@EVERY
def test_of_an_encoder(encoding):
    """ALiBi becomes symmetric and T5Bias bidirectional; what needs a causal mask says why."""
    option = {aj.ALiBi: "symmetric", aj.T5Bias: "bidirectional"}.get(type(encoding))
    if option or isinstance(encoding, aj.DAPE) or not encoding.causal_only:
        made = encoding.for_encoder()
        assert not made.causal_only
        assert option is None or made == dataclasses.replace(encoding, **{option: True})
        return
    with pytest.raises(ValueError, match=f"{type(encoding).__name__}.* needs a causal mask"):
        encoding.for_encoder()


# Parameters ----------------------------------------------------------------------------------------------------------


def test_parameters_stand_beside_constants_and_replace_those_of_their_names():
    np.testing.assert_array_equal(aj.resolve(aj.ALiBi(), None, SIZES)["slope"], [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    assert aj.resolve(aj.NoPE(), None, SIZES) == {}
    p = aj.resolve(aj.RoPE(), {"gain": np.float32(2.0)}, SIZES)
    assert p["gain"] == 2.0
    np.testing.assert_allclose(p["frequencies"].radians, 10_000.0 ** (-np.arange(4) / 4), rtol=1e-14)


# Hyper-parameters ----------------------------------------------------------------------------------------------------

BAD_NUMBERS = (math.nan, math.inf, -1, -0.5, 0, "1", True, None)
ALLOWED = [
    *((name, "attention_factor", None) for name in ("YaRN", "LongRoPE")),
    *((name, "gate_bias", number) for name in ("FoX", "WallAttention") for number in (0, -1, -0.5)),
    *(("ASEntmax", name, 0) for name in ("delta", "unscaled")),
    *(("LongRoPE", "factor", None), ("TransformerXL", "length", None), ("ALiBi", "past", 0)),
]


@pytest.mark.parametrize("record", [*ALL.values(), *OTHERS.values(), *SCALINGS], ids=str)
def test_fields_hold_what_their_annotations_say(record):
    """Numbers, words and switches, each with values that it does not take; a whole number is no fraction."""
    name = type(record).__name__
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        bad = ("other", 1, None) if isinstance(value, bool | str) else BAD_NUMBERS
        if not isinstance(value, bool | str | int | float):
            continue
        for one in (*bad, 2.5) if isinstance(value, int) else bad:
            if (name, field.name, one) not in ALLOWED:
                with pytest.raises(ValueError, match=rf"{name}.*{field.name}.*got"):
                    dataclasses.replace(record, **{field.name: one})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aj.RoPE(fraction=1.5), r"RoPE.fraction .* at most 1, got 1\.5"),
        (lambda: aj.RoPE(scaling="yarn"), "RoPE.scaling must be .*, got 'yarn'"),
        (lambda: aj.RoPE(theta=1.0, scaling=aj.YaRN(2.0, 64)), r"a scaling needs theta > 1, got 1\.0"),
        (lambda: aj.PositionInterpolation(0.5), r"factor .* at least 1, got 0\.5"),
        (lambda: aj.YaRN(2.0, 8, beta_fast=1.0), r"beta_fast must exceed beta_slow, got 1\.0 and 1\.0"),
        (lambda: aj.Llama3(2.0, 8, 4.0, 1.0), r"high_freq_factor must exceed low_freq_factor, got 1\.0 and 4\.0"),
        (lambda: aj.LongRoPE((1.0,), (math.nan,), 8), r"long_factors\[0\] .*, got nan"),
        (lambda: aj.Resonance(aj.DynamicNTK(2.0, 8)), "Resonance.*length"),
        (lambda: aj.MRoPE(scaling=aj.DynamicNTK(2.0, 64)), "MRoPE: .*length"),
        (lambda: aj.MRoPE(sections=(1, 2)), "MRoPE.sections must be a list of 3"),
        (lambda: aj.ALiBi(slopes=(0.5, 0)), r"slopes\[1\] .* above 0, got 0"),
        (lambda: aj.ALiBi(slopes=0.5), r"slopes must be .*, got 0\.5"),
        (lambda: aj.ALiBi(past=0.5), "past belongs to symmetric=True, got past=0.5"),
        (lambda: aj.T5Bias(buckets=7, bidirectional=True), "buckets must be even .*, got 7"),
        (lambda: aj.T5Bias(buckets=2, bidirectional=True), "buckets must be .* at least 4 .*, got 2"),
        (lambda: aj.T5Bias(max_distance=16), "max_distance must exceed the 16 exact buckets, got 16"),
        (lambda: aj.T5Bias(buckets=513), "T5Bias.buckets .* at most 512, got 513"),
        (lambda: aj.Learned(2**24 + 1), "Learned.length .* at most 16777216, got 16777217"),
        (lambda: aj.Sandwich(width=7), "Sandwich: width must be even, got 7"),
        (lambda: aj.TransformerXL(table="clamped"), "length belongs to table='clamped', got .* length=None"),
        (lambda: aj.TransformerXL(length=8), "length belongs to table='clamped', got .*two_sided.* length=8"),
        (lambda: aj.LeakyReRoPE(window=3, factor=1.5), r"window \* \(factor - 1\) .*, got 3 and 1\.5"),
        (lambda: aj.DualChunk(chunk=8, local=8), "local must be smaller than chunk, got 8 and 8"),
        (lambda: aj.LMInfinite(limit=2**31), "LMInfinite.limit .* at most 1073741824 .*got 2147483648"),
        *((lambda base=base: aj.DAPE(base), "base must add to the logits of a head and do nothing else, got")
          for base in (aj.RoPE(), aj.CoPE(), aj.StickBreaking(), aj.DAPE(), aj.ReRoPE(), aj.FoX(),
                       aj.compose(aj.Kerple(), aj.ALiBi()))),
        (lambda: aj.DAPE("alibi"), "DAPE: base must be a PositionEncoding .*, got 'alibi'"),
    ],
)  # fmt: skip
def test_hyper_parameters_that_do_not_go_together(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_of_numpy_are_numbers_and_lists_are_tuples():
    for make in (
        lambda number, whole: aj.RoPE(theta=number(500), fraction=number(0.5), scaling=aj.YaRN(number(3), whole(100))),
        lambda number, whole: aj.ALiBi(slopes=[number(0.5), number(0.25)]),
        lambda number, whole: aj.Learned(whole(4), std=number(0.5)),
    ):
        ours, python = make(np.float32, np.int64), make(float, int)
        assert (ours, hash(ours), str(ours)) == (python, hash(python), str(python))


# Encodings of one's own ----------------------------------------------------------------------------------------------


Rotate = made("Rotate", rotate=lambda self, q, pos: q)
"""A hook under a name that attention does not know."""


def test_encodings_that_would_act_as_nope_or_equal_others_are_refused():
    for wrong, message in (
        ("rope", "name must be a PositionEncoding such as RoPE.., got 'rope'"),
        (aj.FIRE, "name must be a PositionEncoding such as RoPE.., got <class"),
        (Rotate, "Rotate overrides none of the hooks .*, and would act as NoPE"),
    ):
        with pytest.raises(ValueError, match=message):
            validate_encoding("name", wrong)
    validate_encoding("name", dataclasses.make_dataclass("Named", [], bases=(aj.NoPE,), frozen=True)())


# Compositions --------------------------------------------------------------------------------------------------------


def test_compositions_are_flat_and_taken_apart():
    both = aj.compose(aj.ALiBi(), aj.compose(aj.RoPE(), aj.Kerple()))
    assert both.parts == parts_of(both) == (aj.ALiBi(), aj.RoPE(), aj.Kerple())
    assert joined(both.parts) == both != joined(both.parts[::-1])
    assert hash(joined(both.parts)) == hash(both)
    assert joined([aj.RoPE()]) == aj.RoPE()
    for parts in ((aj.LogN(), aj.ReRoPE(), aj.DAPE()), (aj.T5Bias(), aj.StickBreaking(), aj.RoPE())):
        assert aj.compose(*parts).parts == parts
    assert both.has("angle")
    assert both.has("bias")
    assert not both.has("context", "embed", "map_q", "score")
    assert both.for_encoder().parts == (aj.ALiBi(symmetric=True), aj.RoPE(), aj.Kerple())
    with pytest.raises(ValueError, match="FoX.* needs a causal mask"):
        aj.compose(aj.RoPE(), aj.FoX()).for_encoder()
    assert program(aj.compose(aj.RoPE(theta=3.0), aj.ALiBi())) == aj.compose(aj.RoPE(), aj.ALiBi())


def test_parameters_of_a_composition_are_a_tuple_of_dicts():
    both = aj.compose(aj.T5Bias(), aj.ALiBi(), aj.T5Bias())
    first, none, second = both.init(KEY, SIZES)
    assert (first.keys(), none) == ({"table"}, {})
    assert not np.array_equal(first["table"], second["table"])
    constants = aj.compose(aj.RoPE(scaling=aj.DynamicNTK(2.0, 8)), aj.ALiBi()).constants(SIZES, 16)
    assert [one.keys() for one in constants] == [{"frequencies", "gain"}, {"slope"}]
    assert constants[0]["frequencies"].radians[-1] < 10_000.0**-0.75 / 2
    assert aj.learns(both)
    assert not aj.learns(aj.compose(aj.RoPE(), aj.ALiBi()))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((aj.ALiBi(),), "needs two or more encodings"),
        ((aj.ALiBi(), aj.FIRE), "every argument must be a PositionEncoding .*, got <class"),
        ((aj.RoPE(), Rotate), "every argument: Rotate overrides none"),
        ((aj.ALiBi(), aj.ReRoPE()), "ReRoPE.* replaces what ALiBi.* adds to the logits: put ReRoPE.* first"),
        ((aj.FIRE(), aj.PaTH()), "PaTH.* replaces what FIRE.* adds to the logits"),
        ((aj.compose(aj.RoPE(), aj.T5Bias()), aj.compose(aj.LogN(), aj.ReRoPE())), "ReRoPE.* replaces what T5Bias"),
        ((aj.PaTH(), aj.ReRoPE()), "ReRoPE.* replaces what PaTH"),
        ((aj.StickBreaking(), aj.T5Bias()), "T5Bias.* would change the weights that StickBreaking.* put .* last"),
        ((aj.compose(aj.RoPE(), aj.StickBreaking()), aj.CoPE()), "CoPE.* would change the weights that StickBreaking"),
        ((aj.StickBreaking(), aj.StickBreaking()), "StickBreaking.* would change the weights that StickBreaking"),
    ],
)  # fmt: skip
def test_refuses_compositions_that_lose_a_part(parts, message):
    with pytest.raises(ValueError, match=message):
        aj.compose(*parts)


# Embeddings ----------------------------------------------------------------------------------------------------------


X = np.ones((2, 3, 4), np.float32)


def test_embeddings_take_each_part_in_turn_and_keep_their_type():
    twice = made("Twice", embed=lambda self, p, x, pos: 2 * x + jnp.asarray(pos).astype(x.dtype)[:, None])
    both = aj.compose(twice, aj.ALiBi(), twice)
    for pos in (np.arange(3), np.arange(6).reshape(2, 3)):
        found = aj.embed(both, None, X.astype(jnp.bfloat16), pos)
        assert found.dtype == jnp.bfloat16
        close(found.astype(np.float32), 4 + 3 * np.broadcast_to(pos, (2, 3))[..., None] + np.zeros(4))


@pytest.mark.parametrize(
    ("encoding", "x", "pos", "message"),
    [
        ("sinusoidal", X, np.arange(3), "embed: encoding must be a PositionEncoding .*, got 'sinusoidal'"),
        (aj.Sinusoidal(), X.astype(int), np.arange(3), r"floating numbers x \[B, T, D\], got int"),
        (aj.Sinusoidal(), X, np.arange(4), r"pos \[T\] or \[B, T\], got .*\[4\]"),
        *((aj.Sinusoidal(), X, np.array([0.0, 0.0, bad], np.float32), "pos must be finite and fit int32")
          for bad in (3e9, -(2.0**31), np.nan, np.inf)),
        (aj.Sinusoidal(), X, np.array([0, 0, 2**31]), "pos must fit int32 .*, got values 0..2147483648"),
        (aj.Learned(8), X, np.arange(3), "Learned.* learns parameters"),
        (made("Sum", embed=lambda self, p, x, pos: x.sum(-1)), X, np.arange(3), r"must return embeddings \(3, 4\), got \(3,\)"),
    ],
)  # fmt: skip
def test_refuses_embeddings_and_positions_that_do_not_fit(encoding, x, pos, message):
    with pytest.raises(ValueError, match=message):
        aj.embed(encoding, None, x, pos)
