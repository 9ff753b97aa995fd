"""What users pass to a task wrongly: one sentence with the name of the option and what came."""

import os

import jax
import numpy as np
import pytest

from attnjax.tasks import Example, Text, decoder_form, encoder_form, next_token_form, task

KEY = jax.random.key(0)
PAIRS, INDUCTION = task("even_pairs"), task("induction")
NOTHING = Example(*np.zeros((5, 1, 1), np.int32))
MISTAKES = [
    (lambda: task("evenpairs"), "'evenpairs'.*'even_pairs'"),
    (lambda: task("copy", varient="rsc"), "'varient'.*'variant'"),
    (lambda: task("copy", variant="mc"), "Copy: variant .* rsc2x.* got 'mc'"),
    (lambda: task("markov", symbols=1), "Markov: symbols .* 2, got 1"),
    (lambda: task("interleaved_majority", period=0), "period .* got 0"),
    (lambda: task("interleaved_majority", ranges=2), "ranges .* period=3, got 2"),
    (lambda: task("addition", order="upside down"), "order .* reversed_answer"),
    (lambda: task("mqar", vocab=16, pairs=8), "8 pairs .* vocab=16 has 7"),
    (lambda: task("mqar", power=0), "power .* got 0"),
    (lambda: task("flip_flop", ignore=1), "ignore .* got 1"),
    (lambda: PAIRS.sample(jax.random.key_data(KEY), [3], 4), "typed key"),
    (lambda: PAIRS.sample(jax.random.split(KEY), [3], 4), "one typed key"),
    (lambda: PAIRS.sample(jax.random.key(0, impl="rbg"), [3], 4), "threefry2x32, got rbg"),
    (lambda: PAIRS.sample(KEY, [3, 5], 4), r"1 \.\. 4, got 3 \.\. 5"),
    (lambda: PAIRS.sample(KEY, [2.5], 4), r"lengths .* float64\[1\]"),
    (lambda: PAIRS.sample(KEY, [3], 0), "max_length .* got 0"),
    (lambda: task("mqar", pairs=4).sample(KEY, [15], 15), "max_length .* 16, got 15"),
    (lambda: task("unique_copy", symbols=9).sample(KEY, [3], 10), "max_length .* 9, got 10"),
    (lambda: encoder_form(INDUCTION, NOTHING), "Induction .* next_token_form"),
    (lambda: decoder_form(INDUCTION, NOTHING), "Induction .* next_token_form"),
    (lambda: next_token_form(PAIRS, NOTHING), "EvenPairs .* encoder_form"),
    (lambda: Text("a\0b"), "path"),
    (lambda: Text(split_by="line"), "split_by .* group"),
    (lambda: Text(cap=2**31), "cap .* 2147483647, got 2147483648"),
    (lambda: Text(os.devnull).data, "'.*null'"),
    (lambda: Text(__file__, split_by="group").data, "test_mistakes.py.* split_by .*'file'"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("name", "options"), [("missing", {}), ("empty", {}), ("void", {}), ("", {"pattern": "*.c"})])
def test_texts_with_nothing_to_read(tmp_path, name, options):
    (tmp_path / "empty").touch()
    (tmp_path / "void").mkdir()
    with pytest.raises(ValueError, match=f"Text: n.*{name}"):
        _ = Text(str(tmp_path / name), **options).data
