"""The size of a run before anything is compiled: parameters, vocabulary, sequence lengths, bytes of state."""

import dataclasses
import math
from collections import Counter
from typing import Any

import jax

from attnjax.config import ModelConfig, RunConfig
from attnjax.train.check import as_value_errors, check_precision, longest_tested
from attnjax.train.evaluate import evaluation_lengths, padded_size
from attnjax.train.loop import make_task
from attnjax.train.model import layer_kinds, with_layers
from attnjax.train.step import Trainer

NOTHING = "none: evaluate.lengths and evaluate.validation_lengths are empty, so that the run has no results"


def describe(run: RunConfig) -> dict[str, Any]:
    """Return the sizes of a run, counted from shapes without computing anything.

    Returns:
      "parameters", "parameter_bytes", "state_bytes" (parameters, optimizer and step), "vocabulary", "longest_trained" and
      "longest_tested" (lengths of the task), and "evaluation_programs" (padded sizes, each compiled once).

    Raises:
      ValueError: where config and task do not fit together.

    Example:
      >>> from attnjax.config import parse
      >>> found = describe(parse({"task": {"name": "copy"}, "evaluate": {"lengths": [8, 64]}}))
      >>> found["longest_tested"], found["state_bytes"] > 3 * found["parameter_bytes"]
      (64, True)
    """
    check_precision(run)  # also finds that JAX has no platform, which is no mistake of the config
    model, weights = _few_layers(run.model)
    with as_value_errors():
        trainer = Trainer(dataclasses.replace(run, model=model), make_task(run))
        state = trainer.shapes()
    leaves, params = ([(_layer(path), x) for path, x in jax.tree.leaves_with_path(t)] for t in (state, state.params))
    count = lambda layer, leaf: math.prod(leaf.shape) * (1 if layer is None else weights[layer])
    size = lambda leaves: sum(count(layer, leaf) * leaf.dtype.itemsize for layer, leaf in leaves)
    lengths = {length for split in evaluation_lengths(run).values() for length in split}
    return {
        "parameters": sum(count(layer, leaf) for layer, leaf in params),
        "parameter_bytes": size(params),
        "state_bytes": size(leaves),
        "vocabulary": trainer.model.config.vocab,
        "longest_trained": run.task.length_max,
        "longest_tested": longest_tested(run) if lengths else NOTHING,
        "evaluation_programs": len({padded_size(run, length) for length in lengths}),
    }


def _few_layers(model: ModelConfig) -> tuple[ModelConfig, list[int]]:
    """Return the model with at most two layers of each encoding and window, and how many layers each of them represents.

    The second represents all further ones: only the first has the parameters that layers share. The layers are separate.
    """
    kinds, weights = [], []
    for kind, count in Counter(layer_kinds(model)).items():
        kinds += [kind] * min(count, 2)
        weights += [1, count - 1][:count]
    return with_layers(dataclasses.replace(model, scan_layers=False), kinds), weights


def _layer(path: tuple[Any, ...]) -> int | None:
    """Return the index of the layer that a leaf belongs to; None outside of layers."""
    names = [getattr(part, "key", getattr(part, "idx", None)) for part in path]
    return names[names.index("blocks") + 1] if "blocks" in names else None
