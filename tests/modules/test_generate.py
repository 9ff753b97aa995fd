"""Generation: greedy choice, top k, padding on either side, stop tokens, rings, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.modules import Decoder, EncoderDecoder, generate
from attnjax.modules.decoding import Source
from attnjax.modules.generate import _generate
from attnjax.modules.sampling import Sampling, sampling
from attnjax.positions import CoPE, FoX, Learned, PaTH, RoPE, SelectiveRoPE

STEPS = 5


@pytest.fixture
def decoder(config, build):
    return build(Decoder, config(layers=1, encoding=RoPE(), window=3), scale=0.6)


def test_greedy_tokens_are_the_likeliest(config, build, call, tokens):
    decoder = build(Decoder, config(encoding=RoPE()), scale=0.6)
    prompt = tokens[:, :3]
    out = generate(decoder, prompt, STEPS)
    logits = call(decoder, jnp.concatenate([prompt, out], 1))
    np.testing.assert_array_equal(out, logits[:, 2:-1].argmax(-1))
    assert len(np.unique(out)) > 1


def test_no_logits_of_the_whole_prompt_are_kept(config, build):
    """With a vocabulary of 3,000 they would be the largest array by far: 2 x 400 x 3,000 numbers of 4 bytes."""
    decoder = build(Decoder, config(layers=1, encoding=RoPE(), vocab=3000))
    prompt, valid, rule = jnp.zeros((2, 400), jnp.int32), jnp.ones((2, 400), bool), sampling(3000)
    lowered = _generate.lower(decoder, prompt, valid, Source(), jax.random.key(0), 2, rule)
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 2 * 400 * 3000 * 4 / 2


def test_padding_on_either_side_changes_nothing(decoder, tokens):
    """Two prompts of 2 and 4 tokens, together and alone, through a window."""
    alone = [generate(decoder, tokens[:1, :2], STEPS), generate(decoder, tokens[1:, :4], STEPS)]
    for side in (slice(0, 2), slice(2, 4)):
        prompt, valid = np.array([[5] * 4, tokens[1, :4]]), np.ones((2, 4), bool)
        prompt[0, side], valid[0] = tokens[0, :2], False
        valid[0, side] = True
        np.testing.assert_array_equal(generate(decoder, prompt, STEPS, valid=valid), np.concatenate(alone))


@pytest.mark.quick("fox")
@pytest.mark.parametrize("encoding", [PaTH(), SelectiveRoPE(), FoX()], ids=["path", "selective_rope", "fox"])
def test_padding_is_not_mixed_into_positions_computed_from_content(config, build, call, tokens, encoding):
    """Three tokens of padding on the left, in a call and in a cache; convolutions of PaTH and Selective RoPE reach them."""
    model = build(Decoder, config(layers=1, encoding=encoding), scale=0.6)
    alone = call(model, tokens[:, 3:])
    valid = np.broadcast_to(np.arange(8) >= 3, tokens.shape)
    np.testing.assert_allclose(call(model, tokens, mask=Mask(k_valid=valid))[:, 3:], alone, atol=1e-5)
    padded, _ = model.decode(tokens, model.cache(*tokens.shape), valid=valid)
    np.testing.assert_allclose(padded[:, 3:], alone, atol=1e-5)


def test_a_ring_serves_a_sequence_longer_than_itself(decoder, call, tokens):
    """Seven slots, prompt of four, window of three: twelve more tokens wrap around."""
    prompt = tokens[:, :4]
    out = generate(decoder, prompt, 12)
    logits = call(decoder, jnp.concatenate([prompt, out], 1))
    np.testing.assert_array_equal(out, logits[:, 3:-1].argmax(-1))


def test_after_the_stop_token_comes_nothing_else(decoder, tokens):
    prompt = tokens[:, :3]
    free = np.asarray(generate(decoder, prompt, STEPS))
    stop = int(free[0, 1])
    stopped = np.asarray(generate(decoder, prompt, STEPS, stop=stop))
    for row, plain in zip(stopped, free, strict=True):
        end = plain.tolist().index(stop) + 1 if stop in plain else STEPS
        np.testing.assert_array_equal(row[:end], plain[:end])
        assert (row[end:] == stop).all()


def test_an_encoder_decoder_continues_a_target(config, build, call, tokens):
    model = build(EncoderDecoder, config(layers=1, encoding=RoPE()), scale=0.6)
    source, prompt, valid = tokens[:, ::-1], tokens[:, :1], np.array([[True] * 8, [False] * 3 + [True] * 5])
    out = generate(model, prompt, STEPS, source=source, source_valid=valid)
    mask = Mask(k_valid=valid)
    logits = call(model, source, jnp.concatenate([prompt, out], 1), source_mask=mask)
    np.testing.assert_array_equal(out, logits[:, :-1].argmax(-1))


TOO_LONG = np.zeros((2, 5), int)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": np.array([[3, 11], [0, 1]])}, r"source must be in 0\.\.10, got values in 0\.\.11"),
        ({"source": np.zeros((2, 3))}, r"source must be integers \[B, T\], got float64\[2, 3\]"),
        ({"source": [[1, 2], [3, 4]]}, r"source must be integers \[B, T\], got list"),
        (
            {"source": np.zeros((1, 3), int)},
            r"a row per prompt, of at least one token, got int64\[1, 3\] for 2 prompts",
        ),
        (
            {"source": np.zeros((2, 0), int)},
            r"a row per prompt, of at least one token, got int64\[2, 0\] for 2 prompts",
        ),
        ({"source_valid": np.ones((2, 2), bool)}, r"source_valid must be booleans \(2, 3\), got bool\(2, 2\)"),
        ({"source_valid": np.ones((2, 3), int)}, r"source_valid must be booleans \(2, 3\), got int64\(2, 3\)"),
        ({"source_valid": [[True] * 3] * 2}, r"source_valid must be booleans \(2, 3\), got list"),
        ({"source": TOO_LONG}, r"Learned has rows for positions 0\.\.3, got positions 0\.\.4"),
        ({"source": TOO_LONG, "source_valid": TOO_LONG == 0}, r"rows for positions 0\.\.3, got positions 0\.\.4"),
    ],
    ids=["token", "floats", "list", "batch", "empty", "valid", "int valid", "list valid", "long", "long valid"],
)
def test_mistakes_of_a_source_are_refused(config, build, tokens, options, message):
    model = build(EncoderDecoder, config(layers=1, encoding=Learned(4)))
    with pytest.raises(ValueError, match=message):
        generate(model, tokens[:, :2], 2, **{"source": tokens[:, :3], **options})


def test_padding_of_a_source_takes_no_position(config, build, tokens):
    """Five tokens of which four count fit a table of four rows."""
    model = build(EncoderDecoder, config(layers=1, encoding=Learned(4)), scale=0.6)
    source, valid = np.concatenate([tokens[:, :1], tokens[:, :4]], 1), np.broadcast_to(np.arange(5) > 0, (2, 5))
    out = generate(model, tokens[:, :2], 2, source=source, source_valid=valid)
    np.testing.assert_array_equal(out, generate(model, tokens[:, :2], 2, source=tokens[:, :4]))
    assert out.min() >= 0


def test_calling_again_compiles_nothing(decoder, tokens):
    generate(decoder, tokens[:, :3], STEPS)
    before = _generate._cache_size()
    generate(decoder, tokens[:, 3:6], STEPS)
    assert _generate._cache_size() == before


@pytest.mark.slow
def test_generation_runs_under_vmap(config, build, tokens):
    members = [build(Decoder, config(layers=1, encoding=CoPE()), scale=0.6, seed=seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    out = jax.vmap(lambda model: generate(model, tokens[:, :3], 3))(stacked)
    np.testing.assert_array_equal(out, np.stack([generate(model, tokens[:, :3], 3) for model in members]))


def test_top_k_draws_from_the_likeliest_only():
    logits = jnp.log(jnp.array([[0.1, 0.4, 0.2, 0.3], [0.3, 0.1, 0.5, 0.1]]))
    keys = jax.random.split(jax.random.key(0), 300)
    tokens = jax.vmap(lambda key: Sampling(vocab=4, temperature=1.0, top_k=2).pick(key, logits))(keys)
    np.testing.assert_array_equal(np.unique(tokens[:, 0]), [1, 3])
    np.testing.assert_array_equal(np.unique(tokens[:, 1]), [0, 2])
    np.testing.assert_allclose((tokens[:, 0] == 1).mean(), 4 / 7, atol=0.1)


@pytest.mark.parametrize("top_k", [None, 2])
def test_temperature_sharpens(top_k):
    logits = jnp.log(jnp.array([[0.2, 0.8]]))
    keys = jax.random.split(jax.random.key(0), 1000)
    for temperature, expected in ((1.0, 0.8), (0.5, 16 / 17), (2.0, 2 / 3)):
        drawn = jax.vmap(lambda key, t=temperature: Sampling(vocab=2, temperature=t, top_k=top_k).pick(key, logits))(
            keys
        )
        np.testing.assert_allclose(drawn.mean(), expected, atol=0.04)


def test_a_token_of_nan_logits_is_none():
    logits = jnp.array([[0.0, jnp.nan], [0.0, 1.0]])
    np.testing.assert_array_equal(Sampling(vocab=2).pick(jax.random.key(0), logits), [-1, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1.0}, r"temperature=1.0 draws tokens and needs key=jax\.random\.key\(seed\)"),
        ({"temperature": -1.0, "key": jax.random.key(0)}, "temperature must be positive and finite, got -1.0"),
        ({"temperature": 1.0, "key": jnp.zeros(2, jnp.uint32)}, "key must be one typed key"),
        ({"top_k": 3}, "top_k=3 needs a temperature above 0"),
        ({"top_k": 12}, "top_k must be at most 11, got 12"),
        ({"stop": 11}, "stop must be at most 10, got 11"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"source": np.zeros((2, 3), int)}, "an EncoderDecoder needs a source, a Decoder takes none; got Decoder with"),
        ({"prompt": np.zeros((2, 0), int)}, "the prompt must have at least one token per example"),
        ({"prompt": np.full((2, 3), 11)}, r"prompt must be in 0\.\.10, got values in 11\.\.11"),
        ({"valid": np.ones((2, 2), bool)}, r"valid must be booleans \(2, 3\), got bool\(2, 2\)"),
        ({"valid": np.array([[True] * 3, [False] * 3])}, "every prompt needs a token that is valid, got none in row 1"),
        ({"steps": 8}, r"Learned has rows for positions 0\.\.8, got positions 0\.\.9"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_are_refused(config, build, tokens, options, message):
    decoder = build(Decoder, config(layers=1, encoding=Learned(9)))
    arguments = {"prompt": tokens[:, :3], "steps": 3, **options}
    with pytest.raises(ValueError, match=message):
        generate(decoder, **arguments)
