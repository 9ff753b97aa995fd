"""Generation: the likeliest tokens, filters against those of transformers, draws, padding, stops, keys of rows."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.modules import Decoder, EncoderDecoder, generate
from attnjax.modules.generate import (
    Prompt,
    _generate,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    sampling,
)
from attnjax.positions import Learned, RoPE
from tests.golden_arrays import load
from tests.modules.by_hand import TOKENS, build, call, config

PROMPT, STEPS = TOKENS[:, :4], 8
RULE = {"temperature": 1.5, "top_p": 0.95}


@pytest.fixture(scope="module")
def decoder():
    return build(Decoder, config(layers=1, encoding=RoPE(), window=3), scale=0.6)


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(3), 2)


@pytest.fixture(scope="module")
def drawn(decoder, keys):
    """Returns tokens drawn with a key for each row."""
    return np.asarray(generate(decoder, PROMPT, STEPS, **RULE, key=keys))


@pytest.fixture(scope="module")
def greedy(decoder):
    return np.asarray(generate(decoder, PROMPT, 12, valid=np.ones((2, 4), bool)))


def likeliest(decoder, prompt, tokens):
    """Returns the likeliest token after each prefix, by one pass over the whole sequence."""
    logits = call(decoder, np.concatenate([prompt, tokens], 1))
    return np.asarray(logits[:, prompt.shape[1] - 1 : -1].argmax(-1))


def test_greedy_tokens_are_the_likeliest_also_past_the_end_of_a_ring(decoder, greedy):
    """The cache has seven slots for a prompt of four and a window of three, and twelve tokens follow."""
    np.testing.assert_array_equal(greedy, likeliest(decoder, PROMPT, greedy))
    assert len(np.unique(greedy)) > 1


def test_padding_on_either_side_changes_nothing(decoder, greedy):
    """Prompts of 2 and 4 tokens in one batch."""
    for side in (slice(0, 2), slice(2, 4)):
        prompt, valid = np.array([[5] * 4, PROMPT[1]]), np.ones((2, 4), bool)
        valid[0] = False
        prompt[0, side], valid[0, side] = PROMPT[0, :2], True
        out = np.asarray(generate(decoder, prompt, 12, valid=valid))
        np.testing.assert_array_equal(out[1], greedy[1])
        np.testing.assert_array_equal(out[:1], likeliest(decoder, PROMPT[:1, :2], out[:1]))


def test_an_encoder_decoder_continues_a_target():
    """Padding of the source takes no position: nine tokens, eight of them valid, fit a table of eight rows."""
    model = build(EncoderDecoder, config(layers=1, encoding=Learned(8)), scale=0.6)
    source, valid = np.concatenate([TOKENS[:, :1], TOKENS], 1), np.tile(np.arange(9) > 0, (2, 1))
    valid[1, :4] = False
    out = generate(model, TOKENS[:, :1], 5, source=source, source_valid=valid)
    known = {"source_mask": Mask(k_valid=valid), "source_pos": np.maximum(valid.cumsum(1) - 1, 0)}
    logits = call(model, source, np.concatenate([TOKENS[:, :1], out], 1), **known)
    np.testing.assert_array_equal(out, logits[:, :-1].argmax(-1))


def test_no_logits_of_the_whole_prompt_are_computed():
    model = build(Decoder, config(layers=1, encoding=RoPE(), vocab=300))
    prompt = Prompt(np.zeros((2, 40), np.int32), np.ones((2, 40), bool), None, None)
    program = str(_generate.trace(model, prompt, jax.random.key(0), 2, sampling(300)).jaxpr)
    assert "[2,1,300]" in program
    assert "40,300]" not in program


# Draws -----------------------------------------------------------------------------------------------------------------


def test_a_draw_depends_on_the_key_of_its_row_alone(decoder, keys, drawn):
    draw = lambda rows, keys: np.asarray(generate(decoder, PROMPT[rows], STEPS, **RULE, key=keys))
    np.testing.assert_array_equal(draw([1, 0], keys[::-1]), drawn[::-1])
    found = draw([1, 1], keys[::-1])
    np.testing.assert_array_equal(found[0], drawn[1])
    assert (found[1] != drawn[1]).any()


def test_other_numbers_and_prompts_compile_nothing_anew(decoder, keys, drawn):
    before = _generate._cache_size()
    other = generate(decoder, PROMPT[::-1], STEPS, temperature=0.3, top_p=0.9, key=keys)
    assert _generate._cache_size() == before
    assert (other != drawn).any()


def test_a_row_ends_at_the_first_stop_token_and_repeats_it(decoder, keys, drawn):
    cut = lambda row, stop: row[: 1 + next((i for i, token in enumerate(row) if token in stop), STEPS)].tolist()
    pairs = [(pair, [cut(row, pair) for row in drawn]) for pair in itertools.combinations(range(11), 2)]
    stop, rows = next((pair, rows) for pair, rows in pairs if {row[-1] for row in rows} == {*pair})
    expected = [row + row[-1:] * (STEPS - len(row)) for row in rows]
    assert (expected != drawn).any()
    np.testing.assert_array_equal(generate(decoder, PROMPT, STEPS, **RULE, key=keys, stop=stop), expected)
    assert sampling(11, stop=3).stops.tolist() == sampling(11, stop=[3, 3]).stops.tolist() == [3]


SHARES = [
    ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
    ({"temperature": 0.5, "top_k": 2}, [0, 16 / 25, 0, 9 / 25]),
    ({"temperature": 1.0, "top_p": 0.75}, [0, 4 / 9, 2 / 9, 3 / 9]),  # the first three reach 0.75
    ({"temperature": 1.0, "min_p": 0.3}, [0, 4 / 9, 2 / 9, 3 / 9]),  # 0.3 * 0.4 is 0.12
    ({"temperature": 1.0, "top_k": 3, "top_p": 0.75}, [0, 4 / 7, 0, 3 / 7]),  # of shares of 0.9
]


def test_tokens_are_drawn_by_their_shares_of_those_that_are_kept():
    logits, keys = np.log(np.float32([[0.1, 0.4, 0.2, 0.3]])), jax.random.split(jax.random.key(0), 1000)
    draw = lambda key: [sampling(4, **rule).pick(key, logits) for rule, _ in SHARES]
    for tokens, (rule, shares) in zip(jax.jit(jax.vmap(draw))(keys), SHARES, strict=True):
        found = np.bincount(np.ravel(tokens), minlength=4) / 1000
        np.testing.assert_allclose(found, shares, atol=0.05, err_msg=str(rule))
        assert not found[np.equal(shares, 0)].any()


@pytest.mark.parametrize("names", [("random", "ties"), ("exact", "edges")])
def test_filters_are_the_warpers_of_transformers(names):
    golden = load("sampling")
    rows = lambda rule: np.concatenate([golden[f"{name} {rule}"] for name in names])
    logits = np.concatenate([golden[f"logits {name}"] for name in names])
    texts = [case.partition(" ")[2] for case in golden if case.startswith(f"{names[0]} ")]
    assert len(texts) == 22
    rules = [{"temperature": 1.0, **json.loads(text)} for text in texts]
    for rule in rules:
        if "top_k" in rule:  # transformers takes more tokens than there are, and a rule refuses them
            rule["top_k"] = min(rule["top_k"], logits.shape[1])
    kept = jax.jit(lambda logits: [sampling(logits.shape[1], **rule).kept(logits) for rule in rules])(logits)
    for text, found in zip(texts, map(np.asarray, kept), strict=True):
        expected = rows(text)
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected), err_msg=text)
        np.testing.assert_allclose(found, expected, rtol=3e-7, err_msg=text)
    np.testing.assert_array_equal(keep_top_k(logits, 40), logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_kept_and_probabilities_are_summed_in_32(dtype):
    """1,024 equal tokens: in bfloat16, sums of 1 / 1024 stop growing at 1 / 4."""
    rule, logits = sampling(1024, temperature=0.5), jnp.zeros((1, 1024), dtype)
    found = jax.jit(lambda logits: (keep_top_p(logits, 0.5), keep_min_p(logits, 0.5), rule.kept(logits)))(logits)
    assert [kept.dtype for kept in found] == [dtype] * 3
    assert (found[0] == 0).sum() == 512


def test_a_token_of_nan_logits_is_none():
    logits = jnp.array([[0.0, jnp.nan], [0.0, 1.0]])
    assert sampling(2).pick(jax.random.key(0), logits).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1.0}, r"temperature=1.0 .*key=jax\.random\.key"),
        ({"temperature": 1.0, "key": np.zeros(2, np.uint32)}, "key .*typed key"),
        ({"temperature": 1.0, "key": jax.random.split(jax.random.key(0), 3)}, "key .*2, got 3"),
        ({"top_k": 3}, "top_k=3 .*temperature"),
        ({"temperature": 1.0, "top_k": 12}, "top_k .*11.* got 12"),
        ({"stop": [1, 11]}, "stop .*10, got 11"),
        ({"steps": 0}, "steps .*1, got 0"),
        ({"steps": 7}, r"Learned .*0\.\.8, got positions 0\.\.9"),
        ({"prompt": np.full((2, 3), 11)}, r"prompt .*0\.\.10, got values in 11\.\.11"),
        ({"valid": np.ones((2, 2), bool)}, r"valid .*\(2, 4\), got bool\[2, 2\]"),
        ({"valid": np.array([[True] * 4, [False] * 4])}, "valid.* row 1"),
        ({"source": np.zeros((2, 3), int)}, "source.* Decoder with"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_mistakes_are_refused(options, message):
    model = build(Decoder, config(layers=1, encoding=Learned(9)))
    with pytest.raises(ValueError, match=message):
        generate(model, **{"prompt": PROMPT, "steps": 3, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": np.array([[3, 11], [0, 1]])}, r"source .*0\.\.10, got values in 0\.\.11"),
        ({"source": np.zeros((2, 0), int)}, r"source .*int64\[2, 0\] for 2 prompts"),
        ({"source_valid": np.ones((2, 3), int)}, r"source_valid .*\(2, 4\), got int64\[2, 3\]"),
        ({"source": TOKENS[:, :5]}, r"0\.\.3, got positions 0\.\.4"),
        ({"source": TOKENS[:, :5], "source_valid": np.ones((2, 5), bool)}, r"0\.\.3, got positions 0\.\.4"),
    ],
    ids=["token", "empty", "integers", "long", "all valid"],
)
def test_mistakes_of_a_source_are_refused(options, message):
    model = build(EncoderDecoder, config(layers=1, encoding=Learned(4)))
    with pytest.raises(ValueError, match=message):
        generate(model, TOKENS[:, :2], 2, **{"source": PROMPT, **options})
