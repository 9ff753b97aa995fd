"""Testing one model at 500 lengths: padded to a few sizes, against one compilation per length.

Ours is the whole `Evaluator`, everything included. The peer is measured at a sample of lengths, the middles of equal parts of
the range, with the compilation of each; its time for all lengths is the sum over the parts. It uses our model: what is
compared is padding and compiling. The loss and accuracy of every sampled length must agree.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attnjax.config import RunConfig, parse
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences
from attnjax.train import data
from attnjax.train.evaluate import Evaluator, padded_size
from attnjax.train.loop import make_task
from attnjax.train.model import Model, build
from attnjax.train.streams import branch, stream
from attnjax.typing import Array, PyTree
from experiments.speed.harness import Settings, agree, config_of, sizes_of
from experiments.speed.peers.loops import length_by_length
from experiments.speed.timing import cold, counted, timed


@dataclasses.dataclass(frozen=True)
class Size:
    """Lengths are 1 .. `lengths`, `count` examples each; the peer is measured at `sample` of them."""

    lengths: int = 500
    sample: int = 12
    layers: int = 2
    model: int = 64
    count: int = 64


FULL, SMOKE = Size(), Size(lengths=6, sample=2, layers=1, model=16, count=4)


def evaluation(settings: Settings) -> None:
    """A row of seconds, and one of programs."""
    size = SMOKE if settings.smoke else FULL
    run = config(size)
    task = make_task(run)
    model = build(run, task)
    with cold(quick=settings.smoke):
        params = jax.jit(model.init)(jax.random.key(0))
        alone, mine = jax.tree.map(lambda leaf: leaf[None], params), []
        with counted() as our_programs:
            our_seconds = timed(lambda: mine.extend(Evaluator(run, task, model)(alone, ("test",))))()
        test = length_by_length(drawing(run, task.for_split("test")), measuring(model), params)
        theirs, their_seconds = {}, []
        with counted() as their_programs:
            for length in sampled(size):
                their_seconds.append(timed(lambda length=length: theirs.update({length: test(length)}))())
    found = [{record["metric"]: record["value"] for record in records[0]} for records in mine]
    error = agree("evaluation", {n: {name: found[n - 1][name] for name in theirs[n]} for n in theirs}, theirs)
    buckets = {padded_size(run, length) for length in run.evaluate.lengths}
    share = size.lengths / size.sample
    common: dict[str, Any] = {
        "suite": "evaluation",
        "ours": f"{len(buckets)} padded sizes",
        "peer": "a compilation per length",
        "sizes": sizes_of(run, B=run.evaluate.batch, examples=size.count, lengths=size.lengths),
        "error": error,
        "note": f"the peer is measured at {size.sample} lengths ({sum(their_seconds):.3g} s, "
        f"{len(their_programs)} programs), and taken {share:.4g} times",
    }
    case = f"{size.lengths} lengths, {size.count} examples each, compilation included"
    settings.row([our_seconds], [sum(their_seconds) * share], case=case, goal=20.0, **common)
    counts = [float(len(our_programs))], [len(their_programs) * share]
    settings.row(*counts, unit="programs", case=f"{size.lengths} lengths, programs compiled", **common)


def config(size: Size) -> RunConfig:
    """A run that is tested at all lengths."""
    tested = {"lengths": tuple(range(1, size.lengths + 1)), "count": size.count, "batch": size.count}
    task = {"name": "missing_duplicate_string", "length_max": min(40, size.lengths - 2)}
    return parse(config_of(size.layers, size.model, task, evaluate=tested | {"validation_lengths": ()}))


def sampled(size: Size) -> list[int]:
    """The middles of `sample` equal parts of 1 .. lengths."""
    part = size.lengths / size.sample
    return [int(part * (i + 0.5)) + 1 for i in range(size.sample)]


def drawing(run: RunConfig, task: Task) -> Callable[[int], Sequences | SequencePair]:
    """The examples that `Evaluator` tests a length on, without padding: a function of the length."""

    def draw(length: int) -> Sequences | SequencePair:
        # The content of examples depends on the key and the length, and not on the padding.
        key = jax.random.fold_in(jax.random.fold_in(stream(0, "test"), length), 0)
        return data.sequences(
            run, task, branch(key, "content"), jnp.full((run.evaluate.batch,), length, jnp.int32), length
        )

    return draw


def measuring(model: Model) -> Callable[[PyTree, Sequences], dict[str, Array]]:
    """Mean loss and accuracy of the tokens that count, over all examples."""

    def measure(params: PyTree, made: Sequences) -> dict[str, Array]:
        logits = model.apply(params, made)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, made.targets)
        right = (logits.argmax(-1) == made.targets).astype(jnp.float32)
        weight = made.mask.astype(jnp.float32)
        mean = lambda x: ((x * weight).sum(-1) / weight.sum(-1)).mean()
        return {"loss": mean(loss), "token_accuracy": mean(right)}

    return measure
