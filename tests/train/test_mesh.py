"""Training on eight virtual devices beside one: the same examples, the same numbers, one all-reduce a step."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.aot import collectives
from attnjax.cli import main
from attnjax.config import parse
from attnjax.config.mesh import MeshShape, parse_mesh
from attnjax.positions import ENCODINGS, Compose, PositionEncoding, encoding
from attnjax.positions.indices import zigzag
from attnjax.sweep import scan
from attnjax.train import batching, checkpoint, data
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import CHECKPOINTS, make_task, train
from attnjax.train.mesh import (
    check_mesh,
    indices_of_tokens,
    is_zigzag,
    make_mesh,
    padded,
    place,
    sum_over_batch,
    tokens_of_all,
    tokens_of_device,
)
from attnjax.train.step import Trainer, members
from tests.cases import FAST

RINGS = {
    "text of default positions": {"task": {"name": "copy", "form": "decoder"}, "model": {"encoding": {"name": "t5"}}},
    "FoX": {"task": {"name": "copy", "form": "decoder"}, "model": {"encoding": {"name": "fox"}}},
    "FIRE, scanned layers": {
        "task": {"name": "copy", "form": "decoder"},
        "model": {"encoding": {"name": "fire"}, "scan_layers": True},
    },
    "an encoder at random positions": {
        "task": {"name": "copy", "form": "encoder"},
        "model": {"encoding": {"name": "rope"}},
        "positions": {"policy": "randomized", "maximum": 200},
    },
}


MODEL = {"layers": 2, "model": 16, "heads": 2, "hidden": 32}


FORMS = {
    "copy, T5, decoder": {"task": {"name": "copy", "form": "decoder"}, "model": MODEL | {"encoding": {"name": "t5"}}},
    "copy, RoPE, encoder": {
        "task": {"name": "copy", "form": "encoder"},
        "model": MODEL | {"encoding": {"name": "rope"}},
    },
    "reverse, pair": {"task": {"name": "reverse_string", "form": "encoder_decoder"}, "model": MODEL},
}


def population(count=4, **changes):
    train = {"steps": 9, "batch": 8, "clip": 1.0} | changes.pop("train", {})
    optimizer = {"optimizer": {"name": "sgd"}}
    return [parse({"train": train, "seed": i, "data_seed": i} | optimizer | changes) for i in range(count)]


def after(runs, mesh, steps=3):
    """Parameters and losses of the members after some steps, and the trainer."""
    task, there = make_task(runs[0]), make_mesh(mesh)
    trainer, member = Trainer(runs[0], task, there), place(members(runs), there)
    state, metrics = trainer.advance(place(trainer.start(member), there), member, steps)
    return jax.device_get(state.params), metrics, trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "mesh"),
    [
        ("copy, T5, decoder", "population=8"),
        ("copy, T5, decoder", "population=4"),
        ("copy, T5, decoder", "data=4"),
        *((form, "population=2,data=4") for form in FORMS),
    ],
)
def test_every_mesh_trains_the_same_members(form, mesh):
    """To rounding: a program for one of eight rounds other than one for all."""
    runs = population(8 if mesh == "population=8" else 4, **FORMS[form])
    alone, losses, _ = after(runs, MeshShape())
    spread, others, _ = after(runs, parse_mesh(mesh))
    np.testing.assert_allclose(others.loss, losses.loss, rtol=2e-6)
    np.testing.assert_allclose(others.gradient_norm, losses.gradient_norm, rtol=2e-5)
    for a, b in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_members_take_turns_and_padding_is_cut_on_each_device_of_a_population(monkeypatch):
    for name in ("MIN_BATCH_TOKENS", "MIN_RUN_TOKENS"):
        monkeypatch.setattr(batching, name, 1)
    runs = population(4, **FORMS["copy, T5, decoder"])
    _, losses, alone = after(runs, MeshShape())
    _, others, spread = after(runs, MeshShape(population=2))
    assert (alone.in_turn, spread.in_turn) == (True, True)
    assert alone.batching == spread.batching == batching.Batching(microbatches=4, buckets=4)
    np.testing.assert_allclose(others.loss, losses.loss, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ring", RINGS)
def test_tokens_over_devices_train_the_same_members(ring):
    """With 2 x 2 x 2 devices for members, examples and tokens."""
    choice = RINGS[ring] | {"model": MODEL | RINGS[ring]["model"]}
    runs = population(2, **choice)
    alone, losses, one = after(runs, MeshShape())
    spread, others, ring = after(runs, parse_mesh("population=2,data=2,sequence=2"))
    np.testing.assert_allclose(others.loss, losses.loss, rtol=5e-6)
    for a, b in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    evaluate = lambda trainer: Evaluator(runs[0], trainer.task, trainer.model, trainer.mesh)
    measured = [[*evaluate(trainer)(place(alone, trainer.mesh), ("validation",))] for trainer in (one, ring)]
    for whole, parts in zip(*measured, strict=True):
        for a, b in zip(whole[1], parts[1], strict=True):
            assert a["metric"] == b["metric"]
            np.testing.assert_allclose(a["value"], b["value"], rtol=1e-4, atol=1e-5)


P = jax.sharding.PartitionSpec


RING = MeshShape(sequence=4)


SPREAD = {
    "rope": {"encoding": {"name": "rope"}},
    "alibi": {"encoding": {"name": "alibi"}},
    "t5": {"encoding": {"name": "t5"}},
    "fox": {"encoding": {"name": "fox"}},
    "rope in windows": {"encoding": {"name": "rope"}, "windows": [(5, 0), None], "window_first": 2},
}


"""Models of two layers; in zigzag order unless positions are computed from the tokens before."""


def on_ring(model, mesh, *, contiguous=False):
    """Loss and gradients of one batch of ragged examples, and scores of longer ones, of each example and position."""
    task = {"name": "copy", "form": "decoder", "length_max": 20}
    evaluate = {"lengths": [31], "validation_lengths": [], "count": 4, "batch": 4}
    run = population(1, task=task, model=MODEL | SPREAD[model], evaluate=evaluate)[0]
    there = make_mesh(mesh)
    trainer = Trainer(run, make_task(run), there)
    evaluator = Evaluator(run, trainer.task, trainer.model, there)
    assert (trainer.zigzag, evaluator.zigzag) == ((there is not None and model != "fox"),) * 2
    if contiguous:
        trainer.zigzag = evaluator.zigzag = False
    params = trainer.model.init(jax.random.key(0))
    # Learned tables begin at zero, where their gradients would say little.
    moved = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * moved.normal(size=leaf.shape).astype(np.float32), params)
    whole = data.batch(run, trainer.task, np.uint32(0), np.int32(0))
    assert len({*np.asarray(whole.valid.sum(-1))}) > 3
    assert whole.tokens.shape[1] % 8, "lengths are padded"

    def of_device(params, whole):
        own = tokens_of_device(whole, there, zigzag=trainer.zigzag)
        (loss, _), gradient = trainer.gradient(params, own, total=whole.mask.sum(dtype=jnp.float32))
        return sum_over_batch(loss, there), gradient

    if there is not None:
        of_device = jax.shard_map(of_device, mesh=there, in_specs=(P(), P()), out_specs=P())
    loss, gradient = jax.jit(of_device, compiler_options=FAST)(params, whole)
    alone = place(jax.tree.map(lambda leaf: leaf[None], params), there)
    scores = [one.scores for found in evaluator.measure(alone, ("test",)) for one in found]
    return jax.device_get((loss, gradient)), scores


@pytest.mark.slow
@pytest.mark.parametrize("model", SPREAD)
def test_the_order_of_tokens_on_devices_changes_no_result(model):
    """Of examples of many lengths, whose padded length the devices do not divide."""
    (loss, gradient), scores = on_ring(model, MeshShape())
    learned = [leaf for path, leaf in jax.tree.leaves_with_path(gradient) if "position" in jax.tree_util.keystr(path)]
    assert all(np.abs(leaf).max() > 1e-4 for leaf in learned)
    assert bool(learned) == (model in ("t5", "fox"))
    for contiguous in (False, True) if model == "t5" else (False,):
        found, measured = on_ring(model, RING, contiguous=contiguous)
        np.testing.assert_allclose(found[0], loss, rtol=2e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found[1], gradient)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), measured, scores)


def test_tokens_lie_in_the_order_of_zigzag():
    tokens, there = jnp.arange(30)[None], make_mesh(RING)

    def of_device(tokens):
        own = tokens_of_device(tokens, there, zigzag=True)
        return own, indices_of_tokens(8, there, zigzag=True), tokens_of_all(own, 30, there, zigzag=True)

    specs = (P(None, "sequence"), P("sequence"), P())
    own, index, again = jax.jit(jax.shard_map(of_device, mesh=there, in_specs=P(), out_specs=specs))(tokens)
    assert index.tolist() == zigzag(32, 4).tolist()
    assert own[0].tolist() == np.minimum(zigzag(32, 4), 29).tolist()
    assert again.tolist() == tokens.tolist()


def test_blocks_are_contiguous_where_tokens_are_needed_in_their_order():
    """For every encoder, and encodings that compute positions from the tokens before."""
    there = make_mesh(RING)
    of = {name: encoding(name, **({"length": 8} if name == "learned" else {})) for name in ENCODINGS}
    in_order = {"fox", "cable", "repo", "selective_rope", "path"}
    assert {name for name, one in of.items() if not is_zigzag("decoder", [one], there)} == in_order
    assert not any(is_zigzag("encoder", [one], there) for one in of.values())
    assert not is_zigzag("decoder", [of["rope"]], make_mesh(MeshShape(data=4)))
    assert not is_zigzag("decoder", [of["rope"], of["cable"]], there), "layers of their own"
    assert not is_zigzag("decoder", [Compose((of["rope"], of["fox"]))], there)


TILES = collections.Counter()


class Counting(PositionEncoding):
    """Changes no score, and counts the tiles of scores that each device computes."""

    def score(self, p, tile):
        jax.debug.callback(lambda device: TILES.update([int(device)]), jax.lax.axis_index("sequence"))
        return tile.logits


@pytest.mark.slow
@pytest.mark.parametrize(("order", "tiles"), [("zigzag", [9, 9, 9, 9]), ("contiguous", [3, 7, 11, 15])])
def test_devices_compute_as_many_tiles_of_a_causal_model(order, tiles):
    """Of 512 tokens on four devices, in tiles of 64 x 64: forward and backward, by what is executed."""
    size = {"layers": 1, "model": 4, "heads": 1, "hidden": 4, "encoding": {"name": f"{__name__}:Counting"}}
    task = {"name": "copy", "form": "decoder", "length_min": 255, "length_max": 255}
    run = population(1, task=task, model=size, train={"batch": 1})[0]
    there = make_mesh(RING)
    trainer, member = Trainer(run, make_task(run), there), place(members([run]), there)
    trainer.zigzag = order == "zigzag"
    TILES.clear()
    jax.block_until_ready(trainer.advance(place(trainer.start(member), there), member, 1)[0])
    jax.effects_barrier()
    assert [TILES[device] for device in range(4)] == [2 * count for count in tiles]


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        pytest.param("population=8", {}, marks=pytest.mark.slow),
        pytest.param("data=8", {"all-reduce": 1}, marks=pytest.mark.slow),
        ("population=2,data=4", {"all-reduce": 1}),
    ],
)
def test_a_step_has_one_all_reduce_over_the_batch_and_nothing_over_members(mesh, expected):
    run = population(1, **FORMS["copy, T5, decoder"])[0]
    trainer = Trainer(run, make_task(run), make_mesh(parse_mesh(mesh)))
    compiled = jax.jit(trainer.program).lower(*trainer.arguments(8)).compile(compiler_options=FAST)
    assert {one.kind: one.count for one in collectives(compiled.as_text())} == expected


def test_members_are_filled_up_to_a_multiple_of_the_devices():
    assert [padded(n, make_mesh(MeshShape(population=4))) for n in (1, 4, 5)] == [4, 4, 8]
    assert padded(3, None) == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "rows",
            "mesh: each part must be AXIS=SIZE, with an axis of population, data, sequence and a size of 1 or more; got 'rows'",
        ),
        ("data=0", "mesh: each part must be AXIS=SIZE, .*; got 'data=0'"),
        ("data=2,rows=2", "mesh: each part must be AXIS=SIZE, .*; got 'rows=2'"),
        ("data=2,data=2", "mesh: the axis data is given twice"),
    ],
)
def test_a_wrong_mesh_is_refused_in_a_sentence(text, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        parse_mesh(text)


def test_a_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(ValueError, match=r"^the mesh population=4,data=16 needs 64 devices, and there are \d+$"):
        make_mesh(parse_mesh("population=4,data=16"))


def test_a_mesh_that_processes_cannot_share_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"^the mesh data=3 cannot be shared equally by 2 processes$"):
        make_mesh(MeshShape(data=3))
    with pytest.raises(ValueError, match=r"^the mesh of one device cannot be shared equally by 2 processes$"):
        make_mesh(MeshShape())
    with pytest.raises(ValueError, match=r"^the mesh data=4 needs 2 devices in each of 2 processes, and there are 0$"):
        make_mesh(MeshShape(data=4))


@pytest.mark.slow
def test_a_run_on_a_mesh_ends_as_on_one_device_and_its_checkpoint_goes_on_elsewhere(tiny, recorder, folders):
    """Three members on eight devices, stopped, then two, one, and eight again, spread in another way."""
    runs = [dataclasses.replace(tiny, seed=seed, data_seed=seed) for seed in range(3)]
    alone, whole = recorder(), folders("alone", 3)
    train(runs, whole, alone)
    spread = folders("spread", 3)
    steps = {}
    for mesh in ("population=4,data=2", "data=2", "", "population=2,data=4"):
        there = recorder(stop_after=None if len(steps) == 3 else 3, mesh=parse_mesh(mesh))
        train(runs, spread, there)
        steps[mesh] = checkpoint.steps(spread[0] / CHECKPOINTS)[-1]
    assert sorted({*steps.values()}) == [*steps.values()], "each went on and trained"
    losses = lambda one, run: [record["loss"] for record in one.logs[run]]
    for run in ("0", "1", "2"):
        last = len(losses(there, run))
        np.testing.assert_allclose(losses(there, run), losses(alone, run)[-last:], rtol=2e-3)
        assert [{**one, "value": 0} for one in there.found[run]] == [{**one, "value": 0} for one in alone.found[run]]
        values = lambda one, run=run: [record["value"] for record in one.found[run]]
        np.testing.assert_allclose(values(there), values(alone), atol=0.05)
    assert sorted(there.found) == ["0", "1", "2"]


def test_what_a_mesh_cannot_serve_is_said_before_anything_trains(tiny):
    small = dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, batch=6))
    with pytest.raises(ValueError, match=r"^train.batch=6 is no multiple of the 4 devices along data$"):
        check_mesh(parse_mesh("data=4"), small)
    odd = dataclasses.replace(tiny, evaluate=dataclasses.replace(tiny.evaluate, batch=18))
    with pytest.raises(ValueError, match=r"^evaluate.batch=18 is no multiple of the 4 devices along data$"):
        check_mesh(parse_mesh("data=4"), odd)
    pair = dataclasses.replace(tiny, task=dataclasses.replace(tiny.task, form="encoder_decoder"))
    with pytest.raises(
        ValueError, match=r"^an encoder-decoder has two sequences: with task.form='encoder_decoder' the mesh"
    ):
        check_mesh(parse_mesh("sequence=2"), pair)
    dropping = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, residual_dropout=0.1))
    with pytest.raises(
        ValueError, match=r"^dropout draws for a whole batch: with a dropout rate above 0 the mesh may have"
    ):
        check_mesh(parse_mesh("data=2"), dropping)
    check_mesh(parse_mesh("population=2"), dropping)


CONFIG = '''"""Does a mesh train?"""


def get_config():
    model = {"layers": 1, "model": 8, "heads": 1, "hidden": 8}
    evaluate = {"lengths": [3], "validation_lengths": [], "count": 4, "batch": 4}
    return {"model": model, "task": {"name": "copy", "length_max": 4}, "train": {"steps": 2, "batch": 4}, "evaluate": evaluate}


def sweep():
    for seed in (0, 1):
        yield {"seed": seed}
'''


@pytest.mark.slow
def test_the_command_line_takes_a_mesh_and_the_manifest_has_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG)
    assert main(["sweep", "small.py", "--out", "out", "--mesh", "population=2,data=2"]) == 0
    found = scan(tmp_path / "out").runs
    assert [one.status.state for one in found] == ["done", "done"]
    assert {one.manifest()["mesh"] for one in found} == {"population=2,data=2"}
    assert not any("token_order" in one.manifest() for one in found)
    capsys.readouterr()
    for mesh, error in (
        (
            "rows=2",
            "argument --mesh: each part must be AXIS=SIZE, with an axis of population, data, sequence and a size of 1 or more",
        ),
        ("data=3", "train.batch=4 is no multiple of the 3 devices along data"),
        ("population=64", "the mesh population=64 needs 64 devices, and there are 8"),
    ):
        try:
            code = main(["sweep", "small.py", "--out", "other", "--mesh", mesh])
        except SystemExit as ended:
            code = ended.code
        assert (code, error in capsys.readouterr().err) == (2, True), mesh
    assert main(["sweep", "small.py", "--out", "other", "--mesh", "data=2", "--workers", "1"]) == 2
    assert "--mesh spreads runs over the devices of one process: leave out --workers" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "order"), [("rope", "zigzag"), ("fox", "contiguous")])
def test_the_manifest_has_the_order_of_tokens_and_the_name_of_a_run_has_not(tmp_path, monkeypatch, name, order):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG)
    changes = [f"model.encoding.name={name}", "seed=0"]
    assert main(["run", "small.py", *changes, "--out", "out", "--mesh", "sequence=2"]) == 0
    (one,) = scan(tmp_path / "out").runs
    assert (one.status.state, one.manifest()["token_order"]) == ("done", order)
    # The same command on one device finds that everything is done, under the same name.
    assert main(["run", "small.py", *changes, "--out", "out"]) == 0
    assert [other.run for other in scan(tmp_path / "out").runs] == [one.run]
