"""Mistakes in the use of attnjax that a type checker must find from outside: one in each line that says so."""

import jax.numpy as jnp

import attnjax as aj
from attnjax import evaluation, models, report
from attnjax.config import parse, run_id
from attnjax.evaluation.samples import Setting
from attnjax.modules import Decoder, TransformerConfig
from attnjax.sweep import plan, prepare, run_here, vary
from attnjax.train import describe

x = jnp.zeros((1, 4, 2, 8))
aj.attend(x, x, x, encoding="rope")  # wrong
aj.attend(x, x, x, mask=4)  # wrong
aj.attend(x, x, x, implementation=5)  # wrong
aj.Mask(causl=True)  # wrong
aj.RoPE(theta="large")  # wrong
number: int = aj.encoding("rope")  # wrong
Decoder(TransformerConfig(vocab=16, layers=1, model=16, heads=2, hidden=16))  # wrong
models.load("folder", dtype=32)  # wrong
models.save("model", "folder")  # wrong
identity: int = run_id(parse({}))  # wrong
vary(3, [1e-3])  # wrong
run_here(prepare("runs", "theta", plan({})), describe)  # wrong
report.answer(7)  # wrong
evaluation.head_scores(0)  # wrong
Setting("4k", 32, len)  # wrong
