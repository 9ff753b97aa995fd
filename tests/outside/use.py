"""What a file of another project may look like: it runs with an installed attnjax, and type checkers know its types."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any, assert_type

import jax
import jax.numpy as jnp
from flax import nnx

import attnjax as aj
from attnjax import evaluation, models, report
from attnjax.config import RunConfig, parse, run_id
from attnjax.evaluation.ruler import Sample
from attnjax.evaluation.samples import Setting, samples
from attnjax.evaluation.suite import effective_length, string_match_all
from attnjax.modules import Decoder, TransformerConfig, generate
from attnjax.sweep import Store, Summary, expand, plan, prepare, product, run_here, seeds, vary
from attnjax.train import describe, train


@dataclasses.dataclass(frozen=True)
class Recent(aj.PositionEncoding):
    """score(i, j) = logit - |n| / span."""

    span: float = 8.0

    def bias(self, p: Mapping[str, Any], n: jax.Array) -> jax.Array:
        return -jnp.abs(n) / self.span


q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, 2, 8))
mask = aj.Mask(causal=True, window=4)
out = assert_type(aj.attend(q, k, v, encoding=aj.compose(aj.RoPE(), Recent()), mask=mask), jax.Array)
assert out.shape == (1, 12, 2, 8)
assert_type(aj.RoPE(theta=500.0).theta, float)
assert_type(aj.encoding("alibi"), aj.PositionEncoding)
assert_type(aj.Sizes(model=16, heads=2, kv_heads=2, head_dim=8).heads, int)

config = TransformerConfig(vocab=16, layers=1, model=16, heads=2, hidden=16, encoding=Recent())
model = assert_type(Decoder(config, rngs=nnx.Rngs(0)), Decoder)
tokens = generate(model, jnp.array([[1, 2, 3]]), 4)
assert tokens.shape == (1, 4)

gpt2 = assert_type(models.MODELS["gpt2"], models.Architecture)
sizes = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
spec = assert_type(gpt2.config(sizes), models.Spec)
made = models.Loaded(gpt2.build(spec, nnx.Rngs(0)), spec, gpt2, sizes)
with tempfile.TemporaryDirectory() as folder:
    saved = assert_type(models.save(made, f"{folder}/tiny"), pathlib.Path)
    loaded = assert_type(models.load(saved, fields={"encoding": aj.ALiBi()}), models.Loaded)
assert [name.rpartition("wpe")[2] for name in loaded.unused] == [".weight"]

settings: dict[str, Any] = {
    "name": "outside",
    "task": {"name": "copy", "length_max": 3},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": "alibi"},
    "train": {"steps": 2, "batch": 2},
    "evaluate": {"lengths": [2, 4], "validation_lengths": [3], "count": 2, "batch": 2, "bucket_sizes": [4]},
}
run = assert_type(parse(settings), RunConfig)
assert len(assert_type(run_id(run), str)) == 16
assert_type(describe(run), dict[str, Any])
changes = assert_type(product(vary("train.learning_rate", [1e-3, 1e-2]), seeds(1)), list[Mapping[str, Any]])
assert [one.seed for one in assert_type(expand(run, changes), list[RunConfig])] == [0, 0]
with tempfile.TemporaryDirectory() as folder:
    store = assert_type(prepare(pathlib.Path(folder, "runs"), "outside", plan(run, changes)), Store)
    summary = assert_type(run_here(store, train), Summary)
    assert len(summary.of("done")) == 2
    measured = aj.results(store.root)
    told = assert_type(report.answer(store.root), str)
    trained = assert_type(evaluation.load(store.directory(store.runs[0].run)), evaluation.LoadedModel)
assert set(measured["run"]) == {one.run for one in store.runs}
assert "ALiBi" in told

asked = assert_type(samples("niah_single_1", Setting(1024, 32, len), 2), list[Sample])
assert assert_type(string_match_all([one.answers[0] for one in asked], [one.answers for one in asked]), float) == 100.0
assert assert_type(effective_length({1024: 90.0, 2048: 80.0}), int | None) == 1024
print("used")
