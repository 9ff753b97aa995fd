"""The interface itself: what encodings are asked, and what reaches their hooks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions import ENCODINGS, Kerple, RoPE, encoding
from attnjax.positions.alibi import ALiBi
from attnjax.positions.base import (
    EncodingParams,
    NoPE,
    PositionEncoding,
    SequentialScore,
    Sizes,
    Trait,
    learns,
    resolve,
)
from attnjax.positions.compose import compose

SIZES = Sizes(model=16, heads=4, kv_heads=2, head_dim=8)


def made(name):
    return encoding(name, **({"length": 9} if name == "learned" else {}))


@dataclasses.dataclass(frozen=True)
class LearnedSlope(ALiBi):
    """ALiBi with slopes that are learned under the name of its constants."""

    def init(self, key, sizes):
        return EncodingParams(head={"slope": jnp.full((sizes.heads,), 3.0)})


def test_traits_are_the_hooks_that_are_overridden():
    class Everything(SequentialScore):
        def context(self, p, x, pos, before): ...
        def embed(self, p, x, pos): ...
        def map_q(self, p, q, pos): ...
        def map_k(self, p, k, pos): ...
        def bias(self, p, n): ...
        def score(self, p, tile, carry=None): ...

    hooks = Trait.CONTEXT | Trait.EMBED | Trait.MAPS | Trait.ON_SCORES
    assert Everything().traits == hooks | Trait.CARRY
    assert NoPE().traits == PositionEncoding().traits == Trait(0)


def test_without_params_the_constants_come():
    p = resolve(ALiBi(), None, SIZES)
    np.testing.assert_array_equal(p.head["slope"], [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    assert p.kv_head == p.shared == ()
    assert resolve(NoPE(), None, SIZES) == EncodingParams()


def test_a_learned_parameter_replaces_the_constant_of_its_name():
    params = LearnedSlope().init(jax.random.key(0), SIZES)
    np.testing.assert_array_equal(resolve(LearnedSlope(), params, SIZES).head["slope"], [3.0] * 4)
    assert learns(LearnedSlope())
    assert not learns(ALiBi())


def test_an_array_that_was_passed_replaces_a_constant_and_leaves_the_others():
    passed = EncodingParams(shared={"gain": np.float32(2.0)})
    p = resolve(RoPE(), passed, SIZES)
    assert p.shared["gain"] == 2.0
    np.testing.assert_allclose(p.shared["frequencies"].radians, 10_000.0 ** (-np.arange(4) / 4), rtol=1e-14)


def test_learned_parameters_stand_beside_constants():
    pope = made("pope")
    p = resolve(pope, pope.init(jax.random.key(0), SIZES), SIZES)
    assert set(p.head) == {"delta"}
    assert set(p.shared) == {"frequencies"}


def test_constants_of_parts_are_replaced_part_by_part():
    both = compose(ALiBi(), compose(RoPE(), Kerple()))
    params = both.init(jax.random.key(0), SIZES)
    p = resolve(both, params, SIZES)
    assert [set(p.head[0]), set(p.head[1][1])] == [{"slope"}, {"r1", "r2"}]
    assert set(p.shared[1][0]) == {"frequencies", "gain"}
    passed = params._replace(head=({"slope": np.ones(4)}, params.head[1]))
    np.testing.assert_array_equal(resolve(both, passed, SIZES).head[0]["slope"], np.ones(4))


def test_refuses_params_that_are_no_dictionary():
    with pytest.raises(ValueError, match=r"each side of the parameters of ALiBi\(.*\) must be a dictionary"):
        resolve(ALiBi(), EncodingParams(head=np.ones(4)), SIZES)


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_learns_says_whether_init_makes_parameters(name):
    params = made(name).init(jax.random.key(0), SIZES)
    assert learns(made(name)) == bool(jax.tree.leaves(params))


@pytest.mark.parametrize("name", sorted(name for name in ENCODINGS if Trait.SCORE in made(name).traits))
def test_the_scores_that_leave_out_logits_are_those_that_say_so(name, make_tile):
    encoding = made(name)
    tile, sizes = make_tile(np.arange(3), np.arange(3), dtype=np.float32), Sizes(4, 2, 2, 4)
    p = resolve(encoding, encoding.init(jax.random.key(0), sizes), sizes)
    if Trait.ALL_HEADS in encoding.traits:
        tile = tile._replace(**{side: jnp.stack([getattr(tile, side)] * 2) for side in ("logits", "q", "k")})
    else:
        p = p._replace(head=jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], p.head))
    if name == "path":
        channels = jnp.zeros((3, 4 + 1 + 2 * 4))
        tile = tile._replace(q_pos=channels, k_pos=channels)
    scores = lambda logits: encoding.score(p, tile._replace(logits=logits))
    before, after = (
        found[0] if isinstance(found, tuple) else found for found in map(scores, (tile.logits, tile.logits + 1))
    )
    assert bool((before == after).all()) == encoding.replaces_logits


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_constants_do_not_mind_sizes_that_the_encoding_does_not_use(name):
    """Attention does not know D, and a model's input has no heads."""
    one = made(name)
    one.constants(SIZES._replace(model=7))
    if not one.traits & Trait.MAPS and not isinstance(one, RoPE):
        one.constants(SIZES._replace(head_dim=3))
    if not one.traits & Trait.ON_SCORES:
        one.constants(SIZES._replace(heads=1, kv_heads=1))


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_nothing_is_checked_of_what_is_not_known(name):
    made(name).check()
    compose(made(name), NoPE()).check()
