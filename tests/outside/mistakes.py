"""Mistakes in the use of attnjax that a type checker must find from outside: one in each line that says so."""

import jax
import jax.numpy as jnp
from flax import nnx

import attnjax as aj
from attnjax import evaluation, models, report
from attnjax.config import parse, run_id
from attnjax.evaluation.samples import Setting
from attnjax.evaluation.suite import effective_length
from attnjax.modules import Decoder, TransformerConfig
from attnjax.sweep import plan, prepare, run_here, seeds, vary
from attnjax.tasks import task
from attnjax.train import describe

x = jnp.zeros((1, 4, 2, 8))
aj.attend(x, x, x, encoding="rope")  # wrong
aj.attend(x, x, x, mask=4)  # wrong
aj.attend(x, x, x, implementation=5)  # wrong
aj.Mask(causl=True)  # wrong
aj.Rope()  # wrong
aj.RoPE(theta="large")  # wrong
text: str = aj.attend(x, x, x)  # wrong
number: int = aj.encoding("rope")  # wrong
array: jax.Array = task("copy")  # wrong
Decoder(TransformerConfig(vocab=16, layers=1, model=16, heads=2, hidden=16))  # wrong
Decoder("decoder", rngs=nnx.Rngs(0))  # wrong
models.load("folder", dtype=32)  # wrong
models.save("model", "folder")  # wrong
identity: int = run_id(parse({}))  # wrong
run_id("theta")  # wrong
vary(3, [1e-3])  # wrong
seeds("3")  # wrong
run_here(prepare("runs", "theta", plan({})), describe)  # wrong
describe("theta")  # wrong
report.answer(7)  # wrong
evaluation.head_scores(0)  # wrong
Setting("4k", 32, len)  # wrong
effective_length([85.6, 80.0])  # wrong
