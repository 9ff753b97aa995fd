"""What is left of logits before a draw: that of transformers' logits processors, and what draws and compilations depend on."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.modules import Decoder, generate
from attnjax.modules.generate import _generate, _run, _start, generate_chunks
from attnjax.modules.logit_filters import keep_min_p, keep_top_k, keep_top_p, scale
from attnjax.modules.sampling import Sampling, sampling
from attnjax.positions import RoPE
from tests import golden_arrays

FILTERS = {"temperature": scale, "top_k": keep_top_k, "top_p": keep_top_p, "min_p": keep_min_p}
CASES = [name for name in golden_arrays.load("sampling") if not name.startswith("logits ")]
KEYS = jax.random.split(jax.random.key(3), 2)


@pytest.fixture
def decoder(config, build):
    return build(Decoder, config(layers=1, encoding=RoPE()), scale=0.6)


def test_the_golden_arrays_have_what_is_compared():
    golden = golden_arrays.load("sampling")
    rules = [json.loads(name.partition(" ")[2]) for name in CASES]
    assert {name for rule in rules for name in rule} == set(FILTERS)
    assert {len(rule) for rule in rules} == {1, 2, 3, 4}
    dropped = [np.isneginf(golden[name]).sum() for name in CASES if name.startswith("random")]
    assert len(set(dropped)) > 12
    assert all(len(golden[f"logits {name}"]) > 1 for name in ("random", "ties", "exact", "edges"))


@pytest.mark.parametrize("case", CASES)
def test_filters_are_the_warpers_of_transformers(case):
    name, _, text = case.partition(" ")
    golden, rule = golden_arrays.load("sampling"), json.loads(text)
    logits = jnp.asarray(golden[f"logits {name}"])
    step = logits
    for part, number in rule.items():
        step = FILTERS[part](step, number)
    whole = sampling(logits.shape[1], **{"temperature": 1.0, **rule} | _fitting(rule, logits)).kept(logits)
    for found in (step, whole):
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(golden[case]))
        np.testing.assert_allclose(found, golden[case], rtol=3e-7)


def _fitting(rule, logits):
    """transformers takes all tokens where k is larger than the vocabulary; we refuse it in a rule."""
    return {"top_k": min(rule["top_k"], logits.shape[1])} if "top_k" in rule else {}


def test_traced_numbers_are_those_of_python():
    logits = jnp.asarray(golden_arrays.load("sampling")["logits random"])
    rule = sampling(logits.shape[1], temperature=0.7, top_p=0.8, min_p=0.05)
    np.testing.assert_array_equal(jax.jit(Sampling.kept)(rule, logits), rule.kept(logits))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_kept_and_probabilities_summed_in_32(dtype):
    """1,024 equal tokens: in bfloat16, sums of 1 / 1024 stop growing at 1 / 4."""
    logits = jnp.zeros((1, 1024), dtype)
    assert (keep_top_p(logits, 0.5) == 0).sum() == 512
    assert keep_top_p(logits, 0.5).dtype == dtype
    assert keep_min_p(logits, 0.5).dtype == scale(logits, 0.5).dtype == dtype


@pytest.mark.parametrize("rule", [{"top_p": 0.75}, {"min_p": 0.3}, {"top_k": 3, "top_p": 0.75}], ids=str)
def test_only_what_is_kept_is_drawn(rule):
    """0.4, 0.3, 0.2, 0.1: the first three reach 0.75 (as shares of 0.9, the first two do), and 0.3 * 0.4 is 0.12."""
    logits = jnp.log(jnp.array([[0.1, 0.4, 0.2, 0.3]]))
    keys = jax.random.split(jax.random.key(0), 500)
    tokens = jax.vmap(lambda key: sampling(4, temperature=1.0, **rule).pick(key, logits))(keys)
    expected = {1: 4 / 7, 3: 3 / 7} if "top_k" in rule else {1: 4 / 9, 2: 2 / 9, 3: 3 / 9}
    found = {int(token): float((tokens == token).mean()) for token in np.unique(tokens)}
    assert found == pytest.approx(expected, abs=0.07)


def test_with_a_key_per_example_a_draw_depends_on_its_own_key_alone(decoder, tokens):
    draw = lambda rows, keys: np.asarray(generate(decoder, tokens[rows, :3], 6, temperature=2.0, top_p=0.95, key=keys))
    both = draw([0, 1], KEYS)
    np.testing.assert_array_equal(draw([1, 0], KEYS[::-1]), both[::-1])
    np.testing.assert_array_equal(draw([1], KEYS[1:]), both[1:])
    np.testing.assert_array_equal(draw([1], KEYS[1]), both[1:])
    assert (draw([0, 1], KEYS[::-1]) != both).any()


def test_other_numbers_compile_nothing_anew(decoder, tokens):
    call = lambda **rule: generate(decoder, tokens[:, :3], 4, key=KEYS[0], **rule)
    found = [call(temperature=0.5, top_p=0.9, min_p=0.1, stop=3)]
    before = _generate._cache_size()
    found.append(call(temperature=5.0, top_p=0.95, min_p=0.01, stop=[4]))
    assert _generate._cache_size() == before
    assert (found[0] != found[1]).any()
    call(temperature=5.0, top_p=0.95, stop=[4])
    assert _generate._cache_size() == before + 1


def test_several_stop_tokens(decoder, tokens):
    """Each row ends at the first of the stop tokens, and repeats it."""
    call = lambda **stop: np.asarray(generate(decoder, tokens[:, :3], 8, temperature=50.0, key=KEYS, **stop))
    free = call()
    cut = lambda row, stop: row[: 1 + next((i for i, token in enumerate(row) if token in stop), 7)].tolist()
    pairs = [(pair, [cut(row, pair) for row in free]) for pair in itertools.combinations(range(11), 2)]
    stop, rows = next((pair, rows) for pair, rows in pairs if {row[-1] for row in rows} == {*pair})
    expected = [row + row[-1:] * (8 - len(row)) for row in rows]
    assert (expected != free).any()
    np.testing.assert_array_equal(call(stop=stop), expected)
    np.testing.assert_array_equal(call(stop=stop[:1] * 2), call(stop=stop[0]))


@pytest.mark.quick("11-4-{}", "3-8-{'temperature': 3.0, 'top_p': 0.9}")
@pytest.mark.parametrize("rule", [{}, {"temperature": 3.0, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize(("steps", "size"), [(11, 4), (9, 4), (3, 8), (1, 2)])
def test_parts_are_the_tokens_of_one_program(decoder, tokens, rule, steps, size):
    prompt, valid = tokens[:, :4], np.array([[True] * 4, [False] * 2 + [True] * 2])
    whole = generate(decoder, prompt, steps, valid=valid, key=KEYS, **rule)
    parts = list(generate_chunks(decoder, prompt, steps, sampling(11, **rule), size=size, valid=valid, key=KEYS))
    assert [part.shape[1] for part in parts[:-1]] == [1, *[size] * (len(parts) - 2)][: len(parts) - 1]
    np.testing.assert_array_equal(np.concatenate(parts, 1), whole)


def test_all_parts_share_two_programs(decoder, tokens):
    before = _start._cache_size(), _run._cache_size()
    list(generate_chunks(decoder, tokens[:, :2], 14, sampling(11), size=3))
    assert (_start._cache_size(), _run._cache_size()) == (before[0] + 1, before[1] + 1)


def test_parts_end_with_their_rows(decoder, tokens):
    """Row 0 is said to have ended after the first part, and repeats its token; after both have, nothing comes."""
    said = iter([[True, False], [True, True]])
    prompt = tokens[:, :3]
    parts = list(generate_chunks(decoder, prompt, 40, sampling(11), size=5, ended=lambda: next(said)))
    free = np.asarray(generate(decoder, prompt, 6))
    assert [part.shape for part in parts] == [(2, 1), (2, 5)]
    np.testing.assert_array_equal(np.concatenate(parts, 1), [[free[0, 0]] * 6, free[1]])
    stop = sampling(11, stop=np.unique(free[:, 1]).tolist())
    assert sum(part.shape[1] for part in generate_chunks(decoder, prompt, 40, stop, size=5)) <= 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.9}, "generate: top_p=0.9 needs a temperature above 0, got temperature=0"),
        ({"min_p": 0.1}, "generate: min_p=0.1 needs a temperature above 0, got temperature=0"),
        ({"temperature": 1.0, "top_p": 0}, "generate: top_p must be positive and finite, got 0"),
        ({"temperature": 1.0, "top_p": 1.5}, "generate: top_p must be at most 1, got 1.5"),
        ({"temperature": 1.0, "min_p": -0.5}, "generate: min_p must be positive and finite, got -0.5"),
        ({"temperature": 1.0, "min_p": "x"}, "generate: min_p must be a number, got 'x'"),
        ({"temperature": float("nan")}, "generate: temperature must be positive and finite, got nan"),
        ({"stop": [1, 11]}, "generate: stop must be at most 10, got 11"),
        ({"stop": [1, -1]}, "generate: stop must be at least 0, got -1"),
        ({"stop": [1.5]}, "generate: stop must be an integer, got 1.5"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        sampling(11, **options)


def test_keys_must_fit_the_rows(decoder, tokens):
    with pytest.raises(ValueError, match="generate: key must be one key or one per example, 2, got 3"):
        generate(decoder, tokens[:, :3], 4, temperature=1.0, key=jax.random.split(KEYS[0], 3))
    with pytest.raises(ValueError, match="key must be one typed key"):
        generate(decoder, tokens[:, :3], 4, temperature=1.0, key=jax.random.split(KEYS[0], (2, 1)))
    with pytest.raises(ValueError, match="generate: size must be at least 1, got 0"):
        next(generate_chunks(decoder, tokens[:, :3], 4, sampling(11), size=0))
