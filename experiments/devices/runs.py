"""Training steps and evaluations: of decoders, encoders and encoder-decoders, and of the configs of the project."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from attnjax.aot import Topology, mesh_of
from attnjax.attention.choice import DENSE_BYTES
from attnjax.cli.compiling import encodings
from attnjax.config import RunConfig, cell_id, parse
from attnjax.config.mesh import MeshShape, parse_mesh
from attnjax.train.check import tokens
from attnjax.train.loop import make_task
from attnjax.train.mesh import check_batches
from attnjax.train.model import vocabulary
from attnjax.train.programs import Program, evaluation_program, training_program
from experiments.devices.cases import DEVICES, Case, groups_of

MODEL = {"layers": 4, "model": 512, "heads": 8, "hidden": 2048, "scan_layers": True}
PAIR = {"layers": 2, "model": 512, "heads": 8, "hidden": 2048}
"""Of encoder-decoders, with as many layers on each side."""
WIDE = {"layers": 2, "model": 4096, "heads": 32, "hidden": 16384, "scan_layers": True}
"""Of evaluations."""
ROWS = 4
"""Examples on each device; in a ring as many tokens on each device."""


class Made(NamedTuple):
    """A program of runs, the bytes of temporary memory that it may need, and what a record says of it."""

    program: Program
    budget: int
    about: dict[str, Any]


def program(there: Topology, case: Case) -> Made:
    """The program of a case of the kinds train, evaluate and config."""
    runs, shape = (_of_config if case.kind == "config" else _of_model)(case)
    run, evaluates = runs[0], case.kind == "evaluate"
    length = run.task.length_max
    mesh = mesh_of(there, shape._asdict())
    made = evaluation_program(mesh, shape, runs, length) if evaluates else training_program(mesh, shape, runs)
    about = {"mesh": str(shape), "runs": len(runs), "subject": f"{run.task.name}, {encodings(run)}"}
    return Made(made, budget(runs, shape, made, training=not evaluates), about)


def budget(runs: Sequence[RunConfig], shape: MeshShape, made: Program, *, training: bool) -> int:
    """Bytes of temporary memory that a device may need: 1.5 times a count by hand, and 32 MiB.

    The count: what the backward pass needs of every layer, 12 D + 4 F numbers a token (an encoder-decoder has twice the
    layers); four tables of logits in float32; three copies of the parameters, for the gradient and its update; and 64 bytes
    for each token of the whole batch, which every device draws. An evaluation has one layer at a time, of 6 D + 2 F numbers a
    token, and a copy of the parameters, which are cast.
    A table of scores has no place in it, but for three a layer where it takes at most 4 MiB, which attention computes at once.
    """
    run = runs[0]
    model, task = run.model, make_task(run)
    pair = run.task.form == "encoder_decoder"
    members = -(-len(runs) // shape.population)
    batch, length = (run.train if training else run.evaluate).batch, tokens(run, task, run.task.length_max)
    mine = members * batch * length // (shape.data * shape.sequence)
    itemsize = 2 if run.train.dtype_policy == "bfloat16" else 4
    layers = model.layers * (2 if pair else 1) if training else 1
    width = (12 * model.model + 4 * model.hidden) // (1 if training else 2)
    table = 4 * batch // shape.data * model.heads * length**2
    tables = 3 * layers * members * table if table <= DENSE_BYTES["cpu"] else 0
    params = made.arguments[0].params if training else made.arguments[0]
    learned = sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) // shape.population
    logits = 4 * mine * vocabulary(run, task)
    counted = layers * mine * width * itemsize + tables + 4 * logits + 64 * members * batch * length
    return 3 * (counted + (3 if training else 1) * learned) // 2 + 2**25


def _of_config(case: Case) -> tuple[Sequence[RunConfig], MeshShape]:
    runs = next(runs for runs in groups_of(case.name) if cell_id(runs[0]) == case.variant)
    try:
        check_batches(MeshShape(data=DEVICES), runs[0])
    except ValueError:
        return runs, MeshShape(population=DEVICES)
    return runs, MeshShape(data=DEVICES)


def _of_model(case: Case) -> tuple[Sequence[RunConfig], MeshShape]:
    """The runs of a model, which copies. All see `case.length` tokens: a decoder a start, the input, the answer and its end."""
    shape = parse_mesh(case.variant)
    form, encoding = (case.name, "rope") if case.kind == "train" else ("decoder", case.name)
    length = case.length - 1 if form == "encoder_decoder" else case.length // 2 - (form == "decoder")
    batch = 1 if case.kind == "evaluate" else ROWS * shape.data
    model = WIDE if case.kind == "evaluate" else PAIR if form == "encoder_decoder" else MODEL
    run = {
        "task": {
            "name": "copy",
            "form": form,
            "begin": form == "decoder",
            "length_min": length // 2,
            "length_max": length,
        },
        "model": model | {"encoding": encoding},
        "train": {"batch": batch, "dtype_policy": "bfloat16"},
        "evaluate": {"batch": batch, "count": batch, "lengths": (length,), "validation_lengths": ()},
    }
    return [parse(run | {"seed": seed}) for seed in range(shape.population)], shape
