"""What `describe` counts from two layers of each kind is what the whole model has."""

import math

import jax
import pytest

from attnjax.config import parse
from attnjax.train import describe
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer

SMALL = {"model": 8, "heads": 2, "hidden": 12}
LAYERS = ["rope", "t5", "rope", "fire", "t5", "rope"]


@pytest.mark.quick(
    "one-True-decoder",
    "five-False-encoder_decoder",
    "mixed-False-decoder",
    "mixed-True-encoder_decoder",
    "without parameters-True-decoder",
    "first keys-False-decoder",
)
@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "chosen",
    [
        {"layers": 1, "encoding": "t5"},
        {"layers": 5, "encoding": "t5"},
        {"layers": 6, "encoding": LAYERS},
        {"layers": 3},
        {"layers": 3, "windows": [2, None, 2]},
        {"layers": 3, "encoding": "t5", "scan_layers": True},
        {
            "layers": 2,
            "encoding": ["nope", {"name": "streaming_llm", "options": {"first": 4, "window": 59}}],
            "windows": [None, [59, 0]],
            "window_first": 4,
        },
    ],
    ids=["one", "five", "mixed", "without parameters", "windows", "scanned", "first keys"],
)
def test_sizes_are_those_of_the_whole_model(form, shared, chosen):
    if "window_first" in chosen and (shared or form != "decoder"):
        pytest.skip("layers differ, and an encoder has no first keys")
    if shared and isinstance(chosen.get("encoding"), list):
        chosen = {"layers": 6, "encoding": ["t5"] * 6}  # a shared encoding must be the same in all layers
    if shared and "scan_layers" in chosen:
        pytest.skip("layers of one loop share no encoding")
    task = {"name": "bucket_sort", "length_max": 4, "form": form}
    run = parse({"task": task, "model": {**SMALL, **chosen, "share_encoding": shared}})
    state = Trainer(run, make_task(run)).shapes()
    found = describe(run)
    assert found["parameters"] == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    for name, tree in (("parameter_bytes", state.params), ("state_bytes", state)):
        assert found[name] == sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_a_thousand_layers_are_described():
    """Each layer adds the same number of parameters."""
    counts = [describe(parse({"model": {**SMALL, "layers": layers}}))["parameters"] for layers in (2, 3, 1000)]
    assert counts[2] - counts[0] == 998 * (counts[1] - counts[0])


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"name": "yarn"}, "the run cannot be compiled: .*missing 2 required positional arguments"),
        (
            {"name": "longrope", "short_factors": 2.0, "long_factors": 2.0, "original_length": 64},
            "LongRoPE.short_factors must be a list .* got 2.0",
        ),
        (3, "model.encoding.options.scaling must be a table with a name, as {'name': 'yarn'}, got 3"),
    ],
    ids=["missing", "of another type", "no table"],
)
def test_options_that_no_encoding_takes_are_a_sentence(scaling, message):
    run = parse({"model": {"encoding": {"name": "rope", "options": {"scaling": scaling}}}})
    with pytest.raises(ValueError, match=message):
        describe(run)
