"""Training on eight virtual devices beside one: the same examples, the same numbers, one all-reduce a step."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.aot import collectives
from attnjax.cli import main
from attnjax.config import parse
from attnjax.config.mesh import MeshShape, parse_mesh
from attnjax.positions import ENCODINGS, Compose, encoding
from attnjax.positions.indices import zigzag
from attnjax.train import batching, checkpoint
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import CHECKPOINTS, make_task, train
from attnjax.train.mesh import (
    check_mesh,
    indices_of_tokens,
    is_zigzag,
    make_mesh,
    padded,
    place,
    platform_of,
    tokens_of_all,
    tokens_of_device,
)
from attnjax.train.step import Trainer, members
from tests.cases import FAST, slow_except
from tests.runs import runs_in
from tests.train.conftest import SETTINGS, Recorder, made

P = jax.sharding.PartitionSpec
RING = MeshShape(sequence=4)


TABLES = {
    "task": {"name": "copy", "form": "decoder", "length_max": 20},
    "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 32, "encoding": "rope"},
    "train": {"steps": 9, "batch": 8},
    "evaluate": {"lengths": [20], "validation_lengths": [31], "count": 4, "batch": 4, "bucket_sizes": [31]},
    "positions": {},
    "optimizer": {"name": "sgd"},
}
"""Examples of many lengths, whose padded length no number of devices divides."""


def population(count=2, **changes):
    tables = {name: table | changes.get(name, {}) for name, table in TABLES.items()}
    return [parse(tables | {"seed": i, "data_seed": i}) for i in range(count)]


ENCODER = {"task": {"form": "encoder"}}
WINDOWS = {"model": {"layers": 2, "windows": [(5, 0), None], "window_first": 2}}
CASES = {
    ("t5", "population=2,data=2"): {"model": {"encoding": "t5"}},
    ("t5", "population=2"): {"model": {"encoding": "t5"}},
    ("t5", "data=4"): {"model": {"encoding": "t5"}},
    ("encoder", "population=2,data=4"): ENCODER,
    ("pair", "population=2,data=4"): {"task": {"name": "reverse_string", "form": "encoder_decoder"}},
    ("t5", "sequence=4"): {"model": {"encoding": "t5"}},
    ("fox", "population=2,data=2,sequence=2"): {"model": {"encoding": "fox"}},
    ("scanned", "population=2,data=2,sequence=2"): {"model": {"layers": 2, "encoding": "fire", "scan_layers": True}},
    ("windows", "sequence=4"): WINDOWS,
    ("encoder", "population=2,data=2,sequence=2"): ENCODER | {"positions": {"policy": "randomized", "maximum": 200}},
}
"""What is trained, and where; the changes of its config."""


def measured(trainer, params):
    """Steps, then scores: parameters, losses, gradient norms and records."""
    evaluator = Evaluator(trainer.run, trainer.task, trainer.model, trainer.mesh)
    return [row for length in evaluator.measure(place(params, trainer.mesh)) for one in length for row in one.records]


@pytest.mark.parametrize("case", slow_except(((case,) for case in CASES), (("t5", "population=2,data=2"),)))
def test_every_mesh_trains_and_measures_the_same_members(case):
    """To rounding: a program for one of eight rounds other than one for all. Learned tables move away from their zeros."""
    runs, mesh, found = population(**CASES[case]), parse_mesh(case[1]), []
    for there in (None, make_mesh(mesh)):
        trainer = Trainer(runs[0], make_task(runs[0]), there)
        member = place(members(runs), there)
        program = jax.jit(trainer.program, donate_argnums=0, compiler_options=FAST)
        start = jax.device_get(trainer.start(members(runs))) if there is None else start
        state = place(jax.tree.map(jnp.array, start), there)
        compiled = program.lower(state, member, trainer._arrays, np.int32(3)).compile()
        if there is not None and mesh.sequence == 1:
            sums = {"all-reduce": 1} if mesh.data > 1 else {}
            assert {one.kind: one.count for one in collectives(compiled.as_text())} == sums
        state, metrics = jax.device_get(compiled(state, member, trainer._arrays, np.int32(3)))
        found.append((trainer, state.params, jax.tree.map(lambda rows: rows[:3], metrics)))
    (alone, expected, losses), (spread, params, others) = found
    assert spread.zigzag == (mesh.sequence > 1 and case[0] not in ("fox", "encoder"))
    np.testing.assert_allclose(others.loss, losses.loss, rtol=5e-6)
    np.testing.assert_allclose(others.gradient_norm, losses.gradient_norm, rtol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), params, expected)
    for mine, own in zip(measured(spread, expected), measured(alone, expected), strict=True):
        assert {**mine, "value": 0} == {**own, "value": 0}
        np.testing.assert_allclose(mine["value"], own["value"], rtol=1e-4, atol=1e-5)


def test_members_take_turns_and_padding_is_cut_where_devices_share_no_batch(monkeypatch):
    for name in ("MIN_BATCH_TOKENS", "MIN_RUN_TOKENS"):
        monkeypatch.setattr(batching, name, 1)
    (run,) = population(1)
    for mesh, apart in ((MeshShape(), True), (MeshShape(population=2), True), (MeshShape(data=2), False)):
        trainer = Trainer(run, make_task(run), make_mesh(mesh))
        assert (trainer.in_turn, trainer.batching.buckets) == (apart, 4 if apart else 1)


# The order of tokens


def test_tokens_lie_in_the_order_of_zigzag():
    """Of thirty tokens over four devices the last two are padding, which repeats the last one."""
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
    in_order = {"fox", "cable", "repo", "selective_rope", "path", "asentmax", "tra", "wall", "inkling"}
    assert {name for name, one in of.items() if not is_zigzag("decoder", [one], there)} == in_order
    assert not any(is_zigzag("encoder", [one], there) for one in of.values())
    assert not is_zigzag("decoder", [of["rope"]], make_mesh(MeshShape(data=4)))
    assert not is_zigzag("decoder", [of["rope"], of["cable"]], there), "layers of their own"
    assert not is_zigzag("decoder", [Compose((of["rope"], of["fox"]))], there)


# What a mesh can serve


def test_members_are_filled_up_to_a_multiple_of_the_devices():
    assert [padded(n, make_mesh(MeshShape(population=4))) for n in (1, 4, 5)] == [4, 4, 8]
    assert padded(3, None) == 3


def test_the_platform_is_that_of_the_devices_that_compute():
    """As `attnjax compile --topology` makes a mesh, of devices that are not here."""
    there = types.SimpleNamespace(devices=np.array([[[types.SimpleNamespace(platform="cuda")]]]))
    assert platform_of(there) == "cuda"
    assert platform_of(make_mesh(MeshShape(data=2))) == platform_of(None) == jax.devices()[0].platform
    with jax.default_device("cpu"):
        assert jax.jit(lambda: platform_of(None) == "cpu")()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rows", "population, data, sequence .* 'rows'"),
        ("data=0", "'data=0'"),
        ("data=2,rows=2", "'rows=2'"),
        ("data=2,data=2", "data is given twice"),
        ("population=4,data=16", r"population=4,data=16 needs 64 devices, and there are \d+"),
    ],
)
def test_a_wrong_mesh_is_refused(text, named):
    with pytest.raises(ValueError, match=named):
        make_mesh(parse_mesh(text))


def test_a_mesh_that_processes_cannot_share_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for shape, named in (
        (MeshShape(data=3), "data=3 .* 2 processes"),
        (MeshShape(), "one device .* 2 processes"),
        (MeshShape(data=4), "data=4 needs 2 devices in each of 2 processes, and there are 0"),
    ):
        with pytest.raises(ValueError, match=named):
            make_mesh(shape)


def test_what_a_mesh_cannot_serve_is_told_before_anything_trains(tiny):
    changed = lambda table, **fields: dataclasses.replace(
        tiny, **{table: dataclasses.replace(getattr(tiny, table), **fields)}
    )
    dropping = changed("model", residual_dropout=0.1)
    for mesh, run, named in (
        ("data=4", changed("train", batch=6), "train.batch=6 .* 4 devices along data"),
        ("data=4", changed("evaluate", batch=18), "evaluate.batch=18 .* 4 devices along data"),
        ("sequence=2", changed("task", form="encoder_decoder"), "task.form='encoder_decoder' .* sequence"),
        ("data=2", dropping, "dropout .* population only"),
    ):
        with pytest.raises(ValueError, match=named):
            check_mesh(parse_mesh(mesh), run)
    check_mesh(parse_mesh("population=2"), dropping)


# Whole runs


@pytest.mark.slow
def test_a_run_on_a_mesh_ends_as_on_one_device_and_its_checkpoint_goes_on_elsewhere(tiny, tmp_path):
    """Three members on eight devices, stopped, then two, one, and eight again, spread in another way."""
    runs = [dataclasses.replace(tiny, seed=seed, data_seed=seed) for seed in range(3)]
    alone, spread, ends = Recorder(), made(tmp_path / "spread"), []
    train(runs, made(tmp_path / "alone"), alone)
    for mesh in ("population=4,data=2", "data=2", "", "population=2,data=4"):
        there = Recorder(stop_after=3 if len(ends) < 3 else None, mesh=parse_mesh(mesh))
        train(runs, spread, there)
        ends.append(checkpoint.steps(spread[0] / CHECKPOINTS)[-1])
    assert sorted({*ends}) == ends, "each went on and trained"
    for run in "012":
        losses = [[record["loss"] for record in one.logs[run]] for one in (there, alone)]
        np.testing.assert_allclose(losses[0], losses[1][-len(losses[0]) :], rtol=2e-3)
        last = [row for row in alone.found[run] if row["step"] >= there.found[run][0]["step"]]
        for mine, own in zip(there.found[run], last, strict=True):
            assert {**mine, "value": 0} == {**own, "value": 0}
            np.testing.assert_allclose(mine["value"], own["value"], atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "order"), [("rope", "zigzag"), ("fox", "contiguous")])
def test_the_command_line_takes_a_mesh_which_the_manifest_has_and_the_name_of_a_run_has_not(
    tmp_path, monkeypatch, capsys, encoding, order
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.json").write_text(json.dumps(SETTINGS | {"train": {"steps": 2, "batch": 4}}))
    command = ["run", "small.json", f"model.encoding.name={encoding}", "--out", "out", "--mesh"]
    for mesh, named in (("data=3", "train.batch=4"), ("population=64", "64 devices")):
        assert main([*command, mesh]) == 2
        assert named in capsys.readouterr().err
    assert main([*command, "data=2", "--workers", "1"]) == 2
    assert "--workers" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "sequence=2"]) == 0
    (one,) = runs_in(tmp_path / "out")
    manifest = one.manifest()
    assert (one.status.state, manifest["mesh"], manifest["token_order"]) == ("done", "sequence=2", order)
    # The same command on one device finds that everything is done, under the same name.
    assert main(command[:-1]) == 0
    assert [other.run for other in runs_in(tmp_path / "out")] == [one.run]
