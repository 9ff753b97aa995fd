"""What a run will cost, before anything runs: parameters, vocabulary, sequence lengths, bytes of state."""

import math
from typing import Any

import jax

from attnjax.config import RunConfig
from attnjax.train.evaluate import bucket
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer


def describe(run: RunConfig) -> dict[str, Any]:
    """Names and numbers about a run, from shapes alone. Raises ValueError where config and task do not fit together."""
    task = make_task(run)
    trainer = Trainer(run, task)
    state = trainer.shapes()
    size = lambda tree: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    longest = max((*run.evaluate.lengths, *run.evaluate.validation_lengths))
    return {
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        "parameter_bytes": size(state.params),
        "state_bytes": size(state),
        "vocabulary": trainer.model.config.vocab,
        "longest_trained": run.task.length_max,
        "longest_tested": longest,
        "evaluation_programs": len({bucket(run, n) for n in (*run.evaluate.lengths, *run.evaluate.validation_lengths)}),
    }
