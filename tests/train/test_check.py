"""What cannot train is refused before anything compiles, by names and numbers of its config; sizes are counted from shapes."""

import jax
import pytest

from attnjax.config import ENCODING_NAMES, parse
from attnjax.train import check, describe
from tests.cases import slow_except
from tests.tasks import cases

SMALL = {
    "task": {"name": "reverse_string", "length_max": 6},
    "model": {"layers": 2, "model": 16, "heads": 2, "hidden": 32},
    "train": {"batch": 4},
    "evaluate": {"lengths": [6, 9], "validation_lengths": [8], "count": 4, "batch": 4},
}
VISIBLE = {
    "lm_infinite": {"model.window": [4095, 0], "model.window_first": 10},
    "streaming_llm": {"model.window": [512, 0], "model.window_first": 4},
}
"""What a model must see with the default sizes of these encodings."""


def learned(length, **options):
    return {"model.encoding": {"name": "learned", "options": {"length": length}}}


def rope(**options):
    return {"model.encoding": {"name": "rope", "options": options}}


def abacus(**positions):
    return {"task.name": "addition", "positions.policy": "abacus"} | {f"positions.{k}": v for k, v in positions.items()}


def run(changes):
    """The small run with dotted changes."""
    settings = {part: dict(fields) for part, fields in SMALL.items()}
    for key, value in changes.items():
        part, _, field = key.partition(".")
        settings.setdefault(part, {})[field] = value
    return parse(settings)


@pytest.mark.parametrize("encoding", slow_except(ENCODING_NAMES, "cope"))
def test_every_encoding_passes_in_a_decoder(encoding):
    named = learned(64) if encoding == "learned" else {"model.encoding": encoding}
    check(run(named | VISIBLE.get(encoding, {})))


TEXT = {"task.name": "text"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"task.options": {"letters": 3}}, "reverse_string letters"),
        # Lengths that the task does not have.
        ({"task.name": "big_endian_addition"}, r"big_endian_addition 4 task.length_min task.length_max 1 \.\. 6"),
        (
            {"task.name": "big_endian_addition", "task.length_min": 4, "evaluate.validation_lengths": [2, 8]},
            r"evaluate.validation_lengths 2 \.\. 8",
        ),
        ({"task.name": "induction", "task.length_min": 2, "task.form": "encoder"}, "task.form 'decoder' 'encoder'"),
        (
            {**TEXT, "task.length_min": 6, "train.until": 0.5, "evaluate.every": 8, "evaluate.validation_lengths": [6]},
            "train.until=0.5 'text'",
        ),
        # Nine symbols, a separator, and nine more; `stop` is only a target.
        (learned(18), r"evaluate.lengths 9 19 0\.\.18 Learned 0\.\.17"),
        (
            learned(64) | {"positions.policy": "offset", "positions.maximum": 65},
            r"task.length_max 6 13 0\.\.64 Learned",
        ),
        ({"positions.policy": "randomized", "positions.maximum": 12}, "positions.maximum=12 13"),
        # Numbers have as many digits as the sum may have, and count from 1.
        (abacus() | learned(10), r"evaluate.lengths 9 0\.\.10 Learned 0\.\.9"),
        (abacus(maximum=60) | learned(64), r"task.length_max 6 0\.\.66 Learned 0\.\.63"),
        ({"positions.policy": "abacus"}, "positions.policy='abacus' 'reverse_string' digits"),
        (abacus() | {"positions.policy": "coupled"}, "positions.policy='coupled' order reversed_answer 'plain'"),
        (abacus() | {"task.form": "encoder"}, "positions.policy='abacus' task.form 'encoder'"),
        ({"task.name": "induction", "task.length_min": 2, "task.begin": True}, "task.begin 'induction'"),
        # What only tracing finds.
        ({"model.encoding": "ssmax", "task.form": "encoder"}, "SSMax causal"),
        ({"model.encoding": "cope", "model.implementation": "chunked"}, "'chunked' CoPE dense"),
        (rope(scaling={"name": "yarn"}), "compiled 2 required"),
        # Encodings, precision and paths.
        (rope(thta=1.0), "thta"),
        (rope(scaling="yarn"), "model.encoding.options.scaling 'yarn'"),
        (rope(scaling={"name": "resonance", "of": "yarn"}), "model.encoding.options.scaling.of 'yarn'"),
        ({"model.encoding": "streaming_llm"}, r"model.encoding \(512, 0\) model.window_first 4 None"),
        ({"model.param_dtype": "float64"}, "model.param_dtype='float64' JAX_ENABLE_X64=1"),
        (
            {"train.dtype_policy": "bfloat16", "model.param_dtype": "bfloat16"},
            "train.dtype_policy='bfloat16' 'float32' model.param_dtype='bfloat16'",
        ),
        ({**TEXT, "task.options": {"split": "test"}}, "task.options.split"),
        ({**TEXT, "task.options": {"path": "nowhere"}}, "'nowhere'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_named(changes, named):
    with pytest.raises(ValueError, match=".*".join(named.split(" "))):
        check(run(changes))


def test_texts_need_bytes_for_every_split(tmp_path):
    text = lambda **options: run({**TEXT, "task.options": {"path": str(tmp_path), **options}})
    with pytest.raises(ValueError, match="train split"):
        check(text())
    cases.corpus(tmp_path)
    check(text())
    with pytest.raises(ValueError, match=r"train split .*'\*.rst'"):
        check(text(pattern="*.rst"))
    with pytest.raises(ValueError, match=r"train split .* 1 \.\. 5 .*task.length_max has 1 \.\. 6"):
        check(text(cap=6))
    # 9 bytes each are left to validation and to test: crops of 8, and their next byte.
    (tmp_path / "alone").write_bytes(bytes(180))
    with pytest.raises(ValueError, match=r"test split .* 1 \.\. 8 .*evaluate.lengths has 6 \.\. 9"):
        check(run({**TEXT, "task.options": {"path": str(tmp_path / "alone")}}))


def test_double_precision_passes_where_it_is(x64):
    assert jax.config.jax_enable_x64
    check(run({"model.dtype": "float64", "model.param_dtype": "float64"}))


def test_sizes_are_counted_from_shapes():
    """Adam keeps two moments of each parameter and a count, the state of a run its step."""
    found = describe(parse({**SMALL, "model": {**SMALL["model"], "encoding": "t5"}}))
    # A layer: four products of attention and two of the feed-forward network, with biases, and two norms.
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 2 * 2 * 16
    assert found["parameters"] == found["vocabulary"] * 16 + 2 * (layer + 2 * 32) + 2 * 16
    assert found["parameter_bytes"] == 4 * found["parameters"]
    assert found["state_bytes"] == 3 * found["parameter_bytes"] + 2 * 4
    assert (found["longest_trained"], found["longest_tested"]) == (6, 9)
    assert found["evaluation_programs"] == 2
