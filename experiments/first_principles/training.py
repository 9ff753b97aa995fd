"""Training with and without 1/sqrt(d_k): loss and entropy of attention, step by step.

The same small decoder learns to copy, from the same seeds and data; `model.scale` is the only difference. Attention is
looked at on one batch that training never sees: the entropy of a row that sees t + 1 keys, divided by log(t + 1), is 1
where all are alike and 0 where one has everything.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import Mask
from attnjax.config import EncodingConfig, ModelConfig, Options, RunConfig, TaskConfig, TrainConfig
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal, markdown_table
from attnjax.tasks.forms import Sequences
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from attnjax.typing import Array, Float, PyTree
from experiments.first_principles.drawing import BLUE, RED, WIDTH
from experiments.first_principles.scale import entropy
from experiments.first_principles.words import mean

TITLE = "Training without it"
CAPTION = "The same decoder learns to copy, with and without the factor; thin lines are seeds, thick ones their mean."

SEEDS = (0, 1, 2)
STEPS, EVERY = 200, 10
SCALES = (("with", None), ("without", 1.0))
UNSEEN = 10_000
"""The data seed of the batch on which attention is looked at."""


def config(scale: float | None, seed: int) -> RunConfig:
    """A decoder of two layers with two heads of 64 channels that copies 16 symbols."""
    return RunConfig(
        name="with_and_without_the_scale",
        task=TaskConfig(name="copy", options=Options({"variant": "cmc", "symbols": 16}), length_min=16, length_max=16),
        model=ModelConfig(
            layers=2, model=64, heads=2, head_dim=64, hidden=128, encoding=EncodingConfig("rope"), scale=scale
        ),
        train=TrainConfig(steps=STEPS, batch=32, learning_rate=2e-3, schedule="constant", warmup=20),
        seed=seed,
        data_seed=seed,
    )


def numbers() -> dict[str, Any]:
    """Both curves of every seed, at step 0 and every `EVERY` steps."""
    found = {name: train([config(scale, seed) for seed in SEEDS]) for name, scale in SCALES}
    run = config(None, 0)
    sizes = {"layers": run.model.layers, "model": run.model.model, "heads": run.model.heads, "d_k": run.model.head_dim}
    return {
        "seeds": list(SEEDS),
        "steps": list(range(0, STEPS + 1, EVERY)),
        "sizes": {**sizes, "length": run.task.length_max, "batch": run.train.batch},
        "learning_rate": run.train.learning_rate,
        **found,
    }


def train(runs: list[RunConfig]) -> dict[str, Any]:
    """Train runs that differ in seeds alone; by seed, the entropy at every look and the losses between them."""
    task = make_task(runs[0])
    trainer, population = Trainer(runs[0], task), members(runs)
    state = trainer.start(population)
    unseen = batch(runs[0], task, jnp.uint32(UNSEEN), jnp.int32(0))
    assert isinstance(unseen, Sequences)
    look = jax.jit(jax.vmap(lambda params: shares(trainer, params, unseen)))
    looks, losses = [look(state.params)], []
    for _ in range(STEPS // EVERY):
        state, metrics = trainer.advance(state, population, EVERY)
        looks.append(look(state.params))
        losses.append(np.asarray(metrics.loss).mean(1))
    entropies, tops = (np.array([np.asarray(one[i]) for one in looks], np.float64).T for i in range(2))
    by_seed = np.array(losses, np.float64).T
    return {"entropy": entropies.tolist(), "top": tops.tolist(), "loss": by_seed.tolist()}


def shares(trainer: Trainer, params: PyTree, unseen: Sequences) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean entropy as a share of its maximum, and mean of the largest weight, of all rows that see two keys or more."""
    model = trainer.model.module(params)
    weights = model.weights(unseen.tokens, pos=unseen.positions, mask=Mask(k_valid=unseen.valid))[..., 1:, :]
    most = jnp.log(jnp.arange(2, weights.shape[-1] + 1, dtype=jnp.float32))
    found = entropy(weights)
    return (found / jnp.broadcast_to(most, found.shape)).mean(), weights.max(-1).mean()


def text(numbers: dict[str, Any]) -> str:
    """What was trained, and both at some steps."""
    sizes, steps = numbers["sizes"], numbers["steps"]
    shown = [0, *(place for place in range(1, len(steps)) if steps[place] in (10, 20, 50, 100, steps[-1]))]
    rows = []
    for place in shown:
        cells = [str(steps[place])]
        for name in ("entropy", "top", "loss"):
            for case, _ in SCALES:
                cells.append(_at(numbers[case][name], place - (name == "loss")))
        rows.append(cells)
    header = ["step"]
    header += [f"{what}, {case}" for what in ("entropy", "largest weight", "loss") for case, _ in SCALES]
    return "\n\n".join(
        [
            f"A decoder of {sizes['layers']} layers, {sizes['model']} channels and {sizes['heads']} heads of d_k = "
            f"{sizes['d_k']} learns to copy {sizes['length']} random symbols, {sizes['batch']} examples a step, Adam at "
            f"{numbers['learning_rate']:g}. Entropy is a share of its maximum; entropy and the largest weight are means "
            f"over layers, heads and rows of a batch kept apart; the loss (nats a symbol) is the mean over the "
            f"{steps[1]} steps before. Means of {len(numbers['seeds'])} seeds:",
            markdown_table(header, rows).rstrip(),
        ]
    )


def _at(by_seed: list[list[float]], place: int) -> str:
    return decimal(mean([values[place] for values in by_seed]), 3) if place >= 0 else decimal(None)


def draw(numbers: dict[str, Any]) -> Any:
    """Entropy and loss against steps."""
    figure, axes = new_figure(WIDTH, 3.4, 1, 2)
    steps = numbers["steps"]
    for case, color, dashes in (("with", BLUE, (None, None)), ("without", RED, (5, 2))):
        for axis, name, x in ((axes[0], "entropy", steps), (axes[1], "loss", steps[1:])):
            by_seed = np.array(numbers[case][name], np.float64)
            for values in by_seed:
                axis.plot(x, values, color=color, linewidth=0.8, alpha=0.5)
            axis.plot(x, by_seed.mean(0), color=color, linewidth=2.2, dashes=dashes, label=f"{case} 1/√d_k")
    axes[0].set_title("entropy of attention")
    axes[0].set_ylabel("share of its maximum")
    axes[0].set_ylim(0, 1)
    axes[1].set_title("training loss")
    axes[1].set_ylabel("nats per symbol")
    axes[1].set_ylim(bottom=0)
    for axis in axes:
        axis.set_xlabel("step")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
