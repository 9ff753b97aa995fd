"""A run whose layers are compiled once: its loss, step by step, is that of the run with unrolled layers."""

import jax
import numpy as np
import pytest

from attnjax.config import override, parse
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members

SMALL = {
    "task": {"name": "copy", "length_max": 6},
    "model": {"layers": 3, "model": 16, "heads": 2, "hidden": 32, "residual_dropout": 0.1},
    "train": {"steps": 4, "batch": 8, "log_every": 1},
}


def losses(changes):
    run = parse(override(SMALL, changes))
    trainer = Trainer(run, make_task(run))
    population = members([run])
    return trainer.advance(trainer.start(population), population, 4)[1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
def test_losses_are_those_of_unrolled_layers(form):
    unrolled, scanned = (losses({"task.form": form, "model.scan_layers": scan}) for scan in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), unrolled, scanned)
