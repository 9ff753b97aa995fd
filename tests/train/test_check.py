"""What cannot train is refused before anything compiles, each with a sentence; sizes are counted from shapes."""

import math

import jax
import pytest

from attnjax.config import ENCODING_NAMES, parse
from attnjax.train import check, describe
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer
from tests.cases import slow_except
from tests.tasks import cases

LEARNED = {"name": "learned", "options": {"length": 64}}


SCALING = r"^model\.encoding\.options\.scaling must be a table with a name, as {'name': 'yarn'}, got"


VISIBLE = {
    "lm_infinite": {"window": [4095, 0], "window_first": 10},
    "streaming_llm": {"window": [512, 0], "window_first": 4},
}


"""What a model must see with the default sizes of these encodings."""


SMALL = {
    "task": {"name": "reverse_string", "length_max": 6},
    "model": {"layers": 2, "model": 16, "heads": 2, "hidden": 32},
    "train": {"batch": 4},
    "evaluate": {"lengths": [6, 9], "validation_lengths": [8], "count": 4, "batch": 4},
}


def run(changes):
    """The small run with dotted changes."""
    settings = {part: dict(fields) for part, fields in SMALL.items()}
    for key, value in changes.items():
        part, _, field = key.partition(".")
        settings.setdefault(part, {})[field] = value
    return parse(settings)


@pytest.fixture
def compiles(monkeypatch):
    """The calls of the compiled step: there must be none."""
    asked = []
    monkeypatch.setattr("attnjax.train.step.Trainer.advance", lambda *args: asked.append(args))
    return asked


@pytest.mark.parametrize("encoding", slow_except(ENCODING_NAMES, "cope"))
def test_every_encoding_passes_in_a_decoder(encoding, compiles):
    changes = {f"model.{name}": value for name, value in VISIBLE.get(encoding, {}).items()}
    check(run({"model.encoding": LEARNED if encoding == "learned" else encoding, **changes}))
    assert not compiles


@pytest.mark.parametrize("encoding", VISIBLE)
def test_first_keys_without_their_window_are_refused_before_anything_compiles(encoding, compiles):
    with pytest.raises(
        ValueError, match=r"^model.encoding has .* must be \(\d+, 0\) or \d+ and model.window_first \d+, got"
    ):
        check(run({"model.encoding": encoding}))
    assert not compiles


def test_a_text_passes(tmp_path):
    cases.corpus(tmp_path)
    check(run({"task.name": "text", "task.options": {"path": str(tmp_path)}}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task.options": {"letters": 3}}, "task 'reverse_string' has no option 'letters'"),
        ({"task.name": "copy", "task.options": {"symbols": 0}}, "symbols must be an int of at least"),
        (
            {"task.name": "unique_copy", "task.options": {"symbols": 8}},
            r"task 'unique_copy' has lengths 1 \.\. 8 with its options; evaluate.lengths has 6 \.\. 9",
        ),
        (
            {"task.name": "big_endian_addition"},
            r"task 'big_endian_addition' has lengths 4 or more .*; task.length_min \.\. task.length_max has 1 \.\. 6",
        ),
        (
            {"task.name": "big_endian_addition", "task.length_min": 4, "evaluate.validation_lengths": [2, 8]},
            r"evaluate.validation_lengths has 2 \.\. 8",
        ),
        ({"task.name": "induction", "task.length_min": 2, "task.form": "encoder"}, "task.form must be 'decoder'"),
        # Nine symbols, a separator, and nine more; `stop` is only a target.
        (
            {"model.encoding": {"name": "learned", "options": {"length": 18}}},
            r"evaluate.lengths of 9 makes sequences of 19 tokens, at positions 0\.\.18; Learned has rows for .* 0\.\.17",
        ),
        (
            {"model.encoding": {"name": "learned", "options": {"length": 12}}, "evaluate.lengths": [2]}
            | {"evaluate.validation_lengths": []},
            r"task.length_max of 6 makes sequences of 13 tokens",
        ),
        (
            {"model.encoding": LEARNED, "positions.policy": "offset", "positions.maximum": 65},
            r"task.length_max of 6 makes sequences of 13 tokens, at positions 0\.\.64; Learned has rows",
        ),
        (
            {"model.encoding": LEARNED, "positions.policy": "randomized", "positions.maximum": 12},
            "positions.maximum=12 is shorter than the 13 tokens of a sequence",
        ),
        (
            {"positions.policy": "randomized", "positions.maximum": 18, "positions.at_test": "same"},
            "positions.maximum=18 is shorter than the 19 tokens of a sequence",
        ),
        (
            {"task.name": "addition", "positions.policy": "abacus"}
            | {"model.encoding": {"name": "learned", "options": {"length": 8}}},
            r"evaluate.lengths of 9 makes sequences of \d+ tokens, at positions 0\.\.10; Learned has rows",
        ),
        (
            {"task.name": "addition", "positions.policy": "abacus", "positions.maximum": 60}
            | {"model.encoding": LEARNED},
            r"task.length_max of 6 makes sequences of \d+ tokens, at positions 0\.\.66; Learned has rows",
        ),
        # A sum of more digits than its longer operand, which no 32 examples of length 40 have.
        (
            {"task.name": "addition", "task.length_max": 40, "positions.policy": "abacus"}
            | {"task.options": {"order": "reversed"}, "evaluate.lengths": [], "evaluate.validation_lengths": []}
            | {"model.encoding": {"name": "learned", "options": {"length": 41}}},
            r"task.length_max of 40 makes sequences of \d+ tokens, at positions 0\.\.41; Learned has rows",
        ),
        (
            {"positions.policy": "abacus"},
            "needs a task with numbers, such as 'addition'; 'reverse_string' has no digits",
        ),
        ({"model.encoding": "ssmax", "task.form": "encoder"}, "SSMax.*causal mask"),
        ({"model.encoding": "xpos", "task.form": "encoder"}, "XPos.*causal mask"),
        ({"model.encoding": {"name": "rope", "options": {"thta": 1.0}}}, "thta"),
        (
            {"model.encoding": {"name": "rope", "options": {"scaling": {"name": "yarn"}}}},
            "the run cannot be compiled: .*missing 2 required positional arguments",
        ),
        ({"model.encoding": {"name": "rope", "options": {"scaling": "yarn"}}}, f"{SCALING} 'yarn'$"),
        (
            {"model.encoding": {"name": "rope", "options": {"scaling": {"name": "resonance", "of": "yarn"}}}},
            f"{SCALING.replace('scaling', 'scaling.of', 1)} 'yarn'$",
        ),
        ({"model.head": 7}, "RoPE.*even"),
        (
            {"model.encoding": "alibi", "model.scale": 1e-9, "model.implementation": "cudnn"},
            "'cudnn'.*NVIDIA GPU",
        ),
        ({"model.encoding": "fire", "model.implementation": "xla"}, "'xla'.*'score'.*dense, chunked"),
        ({"model.encoding": "cope", "model.implementation": "chunked"}, "'chunked'.*CoPE.*these can: dense$"),
        ({"model.attention_dropout": 0.1, "model.implementation": "xla"}, "'xla'.*these can: dense$"),
        ({"model.dtype": "float64"}, "model.dtype='float64' needs double precision: set JAX_ENABLE_X64=1"),
        ({"model.param_dtype": "float64"}, "model.param_dtype='float64' needs double precision"),
        (
            {"train.dtype_policy": "bfloat16", "model.param_dtype": "bfloat16"},
            "dtype_policy='bfloat16' needs model.param_dtype='float32' .* got .*model.param_dtype='bfloat16'",
        ),
        ({"task.name": "text", "task.options": {"split": "test"}}, "task.options.split must be left out"),
        ({"task.name": "text", "task.options": {"path": "nowhere"}}, "Text: no file or folder at 'nowhere'"),
    ],
)
def test_mistakes_are_named(changes, message, compiles):
    with pytest.raises(ValueError, match=message):
        check(run(changes))
    assert not compiles


def test_mistakes_of_a_text_are_named(tmp_path):
    text = lambda **options: run({"task.name": "text", "task.options": {"path": str(tmp_path), **options}})
    with pytest.raises(ValueError, match="nothing to read for the train split"):
        check(text())
    cases.corpus(tmp_path)
    with pytest.raises(ValueError, match=r"nothing to read for the train split .* with '\*.rst'"):
        check(text(pattern="*.rst"))
    check(text(cap=10))
    message = (
        r"the train split of task 'text' has lengths 1 \.\. 5 .*; task.length_min \.\. task.length_max has 1 \.\. 6"
    )
    with pytest.raises(ValueError, match=message):
        check(text(cap=6))
    (tmp_path / "alone").write_bytes(bytes(180))
    # 9 bytes each are left to validation and to test: crops of 8, and their next byte.
    message = r"the test split of task 'text' has lengths 1 \.\. 8 with its options; evaluate.lengths has 6 \.\. 9"
    with pytest.raises(ValueError, match=message):
        check(run({"task.name": "text", "task.options": {"path": str(tmp_path / "alone")}}))


def test_double_precision_passes_where_it_is(x64):
    assert jax.config.jax_enable_x64
    check(run({"model.dtype": "float64", "model.param_dtype": "float64"}))


SIZES = {"model": 8, "heads": 2, "hidden": 12}


SIZED = {
    "one": {"layers": 1, "encoding": "t5"},
    "five": {"layers": 5, "encoding": "t5"},
    "mixed": {"layers": 6, "encoding": ["rope", "t5", "rope", "fire", "t5", "rope"]},
    "equal": {"layers": 6, "encoding": ["t5"] * 6},
    "without parameters": {"layers": 3},
    "windows": {"layers": 3, "windows": [2, None, 2]},
    "scanned": {"layers": 3, "encoding": "t5", "scan_layers": True},
    "first keys": {
        "layers": 2,
        "encoding": ["nope", {"name": "streaming_llm", "options": {"first": 4, "window": 59}}],
        "windows": [None, [59, 0]],
        "window_first": 4,
    },
}


@pytest.mark.parametrize(
    ("name", "shared", "form"),
    [
        ("one", True, "decoder"),
        ("five", False, "encoder_decoder"),
        ("mixed", False, "decoder"),
        ("equal", True, "encoder_decoder"),
        ("without parameters", True, "decoder"),
        ("first keys", False, "decoder"),
        *slow_except(
            [
                ("one", False, "encoder_decoder"),
                ("five", True, "decoder"),
                ("mixed", False, "encoder_decoder"),
                ("windows", False, "decoder"),
                ("windows", True, "encoder_decoder"),
                ("scanned", False, "decoder"),
                ("scanned", False, "encoder_decoder"),
            ]
        ),
    ],
)
def test_sizes_are_those_of_the_whole_model(name, shared, form):
    task = {"name": "bucket_sort", "length_max": 4, "form": form}
    run = parse({"task": task, "model": {**SIZES, **SIZED[name], "share_encoding": shared}})
    state = Trainer(run, make_task(run)).shapes()
    found = describe(run)
    assert found["parameters"] == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    for size, tree in (("parameter_bytes", state.params), ("state_bytes", state)):
        assert found[size] == sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
