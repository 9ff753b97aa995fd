"""Training steps beside a plain loop: one jitted step, donated state, batches from the host, as nanodo trains.

The peer trains the same decoder in Flax Linen: pre-norm, LayerNorm, exact GELU, RoPE, tied embeddings. The loss and every
gradient of a batch are compared before anything is timed. The peer computes every token of a padded batch; ours leaves out
padding and rows of the last layer that no target depends on (`attnjax.train.batching`), and draws a new batch in each step.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from attnjax.config import RunConfig, parse
from attnjax.tasks.forms import Sequences
from attnjax.train import data
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from attnjax.typing import Array, PyTree
from experiments.speed.timing import Table, difference, timed

SIZES = ((2, 64), (4, 128))
"""Layers and width."""
STEPS, POOL = 20, 16
"""Steps of one timed call, and batches that the host keeps ready."""
TOLERANCE = 1e-4


def measure(table: Table, lengths: Sequence[int] | None) -> int:
    """Adds a row for each size and returns how many peers disagree."""
    wrong = 0
    for layers, width in ((1, 16),) if table.smoke else SIZES:
        for T in lengths or ((6,) if table.smoke else (64,)):
            run = config(layers, width, T, 4 if table.smoke else 128)
            trainer = Trainer(run, make_task(run))
            model = Transformer(trainer.model.config.vocab, width, layers, run.model.heads)
            error = same_gradients(trainer, model)
            if not error <= TOLERANCE:
                print(f"training, {layers} layers: the peer differs by {error:.1e}, not measured")
                wrong += 1
                continue
            taken = table.race({"ours": timed(our_loop(trainer)), "peer": timed(plain_loop(trainer, model))})
            case = f"{layers} layers, D = {width}, {STEPS} steps"
            fields = {
                "suite": "training",
                "case": case,
                "T": T,
                "ours": "attnjax",
                "peer": "plain loop",
                "error": error,
            }
            table.add(taken["ours"], taken["peer"], **fields)
    return wrong


def config(layers: int, width: int, T: int, batch: int) -> RunConfig:
    """Returns a run on strings of 1 to T - 2 symbols."""
    model = {"layers": layers, "model": width, "heads": 4, "hidden": 4 * width, "encoding": "rope"}
    train = {"schedule": "constant", "checkpoint_every": 0, "batch": batch, "learning_rate": 3e-3, "log_every": STEPS}
    task = {"name": "missing_duplicate_string", "length_max": T - 2}
    return parse({"name": "speed", "task": task, "model": model, "train": train})


def our_loop(trainer: Trainer) -> Callable[[], Array]:
    """Returns a function that trains `STEPS` steps and returns their losses."""
    population = members([trainer.run])
    state = trainer.start(population)

    def run() -> Array:
        nonlocal state
        state, metrics = trainer.advance(state, population, STEPS)
        return metrics.loss

    return run


def plain_loop(trainer: Trainer, model: nn.Module) -> Callable[[], list[Array]]:
    """Returns a function that trains `STEPS` steps of the peer and returns their losses."""
    train = trainer.run.train
    optimizer = optax.chain(
        optax.clip_by_global_norm(train.clip or math.inf),
        optax.adamw(train.learning_rate, train.b1, train.b2, train.epsilon, weight_decay=train.weight_decay),
    )
    pool = [jax.device_get(batch_of(trainer, step)) for step in range(POOL)]
    params = model.init(jax.random.key(0), pool[0][0][:1])
    state = params, optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, Array]:
        loss, gradient = jax.value_and_grad(functools.partial(loss_of, model))(state[0], batch)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the power of a count
            updates, optimizer_state = optimizer.update(gradient, state[1], state[0])
        return (optax.apply_updates(state[0], updates), optimizer_state), loss

    def run() -> list[Array]:
        nonlocal state
        losses: list[Array] = []
        for i in range(STEPS):
            state, loss = step(state, pool[i % POOL])
            losses.append(loss)
        return losses

    return run


def batch_of(trainer: Trainer, step: int) -> tuple[Array, Array, Array]:
    """Returns tokens, targets and which targets count, [B, T] each, of a step."""
    made = data.batch(trainer.run, trainer.task, jnp.uint32(trainer.run.data_seed), jnp.int32(step))
    assert isinstance(made, Sequences)
    return made.tokens, made.targets, made.mask


def loss_of(model: Any, params: PyTree, batch: tuple[Array, Array, Array]) -> Array:
    """Returns the mean cross-entropy of the targets that count."""
    tokens, targets, mask = batch
    entropy = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, tokens), targets)
    weight = jnp.asarray(mask).astype(entropy.dtype)
    return (entropy * weight).sum() / weight.sum()


def same_gradients(trainer: Trainer, model: nn.Module) -> float:
    """Returns the largest relative difference of loss and gradients from the peer, with the same random parameters."""
    generator = np.random.default_rng(0)
    draw = lambda leaf: generator.normal(0, 0.3 if leaf.ndim < 2 else leaf.shape[0] ** -0.5, leaf.shape)
    params = jax.tree.map(lambda leaf: jnp.asarray(draw(leaf), leaf.dtype), trainer.shapes().params)
    sequences = data.batch(trainer.run, trainer.task, jnp.uint32(trainer.run.data_seed), jnp.int32(0))
    (loss, _), gradient = jax.jit(trainer.gradient)(params, sequences)
    theirs = jax.jit(jax.value_and_grad(functools.partial(loss_of, model)))(from_ours(params), batch_of(trainer, 0))
    return difference((loss, from_ours(gradient)), theirs)


class Block(nn.Module):
    """One layer of the peer, [B, T, D] -> [B, T, D]."""

    heads: int

    @nn.compact
    def __call__(self, x: Array, mask: Array) -> Array:
        options: dict[str, Any] = {"num_heads": self.heads, "attention_fn": rotary_attention, "name": "attention"}
        y = nn.LayerNorm(name="attention_norm")(x)
        attended = nn.MultiHeadDotProductAttention(**options)(y, mask=mask)
        assert attended is not None  # weights were not asked for
        x = x + attended
        y = nn.LayerNorm(name="feed_forward_norm")(x)
        y = nn.gelu(nn.Dense(4 * x.shape[-1], name="w_in")(y), approximate=False)
        return x + nn.Dense(x.shape[-1], name="w_out")(y)


class Transformer(nn.Module):
    """The peer: tokens [B, T] to logits [B, T, V], causal."""

    vocab: int
    model: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        table = nn.Embed(self.vocab, self.model, name="embedding")
        x, mask = table(tokens), nn.make_causal_mask(tokens)
        for i in range(self.layers):
            x = Block(self.heads, name=f"block_{i}")(x, mask)
        return table.attend(nn.LayerNorm(name="norm")(x))


def rotary_attention(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """Returns Flax's attention after RoPE of queries and keys (arXiv:2104.09864, eq. 34)."""
    return nn.dot_product_attention(rotate(query), rotate(key), value, mask=mask)


def rotate(x: Array) -> Array:
    """Returns [B, T, N, H] turned by its index, in the layout that pairs channel i with channel i + H/2."""
    half = x.shape[-1] // 2
    count = functools.partial(jnp.arange, dtype=x.dtype)
    angle = jnp.outer(count(x.shape[1]), 10_000.0 ** (-count(half) / half))[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def from_ours(params: PyTree) -> PyTree:
    """Returns our decoder's parameters by the names of the peer."""
    pair = lambda kernel, bias: {"kernel": kernel, "bias": bias}
    found: dict[str, Any] = {"embedding": {"embedding": params["embedding"]["table"]}, "norm": params["stack"]["norm"]}
    for i, block in params["stack"]["blocks"].items():
        inside, ffn = block["attention"], block["feed_forward"]
        names = {"query": "q", "key": "k", "value": "v", "out": "o"}
        found[f"block_{i}"] = {
            "attention": {name: pair(inside[f"w_{x}"], inside[f"b_{x}"]) for name, x in names.items()},
            "attention_norm": block["attention_norm"],
            "feed_forward_norm": block["feed_forward_norm"],
            "w_in": pair(ffn["w_in"], ffn["b_in"]),
            "w_out": pair(ffn["w_out"], ffn["b_out"]),
        }
    return {"params": found}
