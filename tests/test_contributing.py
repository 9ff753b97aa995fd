"""What CONTRIBUTING.md says about adding an encoding and a task, followed to the letter.

The encoding, copied out as it stands, is that of the published code on every way through attention; the task, added to a copy
of the repository, passes the tests of all tasks.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax import positions, registry
from attnjax.modules import Decoder, TransformerConfig, generate
from tests import oracle
from tests.positions.contextual import assert_same, golden, self_attention, with_gradients

PAGE = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"


def blocks(title: str = "Add an encoding") -> list[str]:
    """The Python of a section, without its indentation."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}")[1].split("\n## ")[0]
    found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return ["\n".join(line.removeprefix("   ") for line in block.splitlines()) for block in found]


def module_of(path: Path, text: str):
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributing")
    encoding, formula = blocks()
    module_of(folder / "formula.py", f"from tests.oracle import SCORES, distances\n\n{formula}\n")
    yield module_of(folder / "mine.py", encoding).Mine()
    oracle.SCORES.pop("Mine")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("implementation", ["dense", "chunked", aj.Tiling(5, 3, heads=1)], ids=str)
def test_it_equals_the_published_code_with_all_gradients(mine, implementation):
    arrays = golden("fox")
    params = aj.EncodingParams(head={"w": arrays["gate_kernel"].T, "b": arrays["gate_bias"]})
    out, gradients = with_gradients(mine, params, arrays | {"w": arrays["w"]}, implementation=implementation)
    assert_same(out, arrays["full_out"])
    for name in ("x", "q", "k"):
        assert_same(gradients[name], arrays[f"grad_{name}"])
    assert_same(gradients["params"].head["w"].T, arrays["grad_gate_kernel"])
    assert_same(gradients["params"].head["b"], arrays["grad_gate_bias"])


def test_it_equals_the_kernel_with_a_bias_array(mine):
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in golden("fox").items()}
    params = aj.EncodingParams(head={"w": arrays["gate_kernel"].T, "b": arrays["gate_bias"]})
    out = self_attention(mine, params, *(arrays[name] for name in "xqkv"), implementation="xla")
    assert_same(out, arrays["full_out"], 1e-5)


@pytest.mark.usefixtures("x64")
def test_its_formula_for_the_oracle_is_that_of_the_bias(mine):
    table, pos = np.zeros((5, 5)), np.sort(np.random.default_rng(0).uniform(0, 9, 5))
    context = {"q_pos": jnp.asarray(pos), "k_pos": jnp.asarray(pos)}
    expected = mine.bias(aj.EncodingParams(), pos[:, None] - pos[None, :])
    np.testing.assert_array_equal(oracle.SCORES["Mine"](mine, (), (), table, None, None, context), expected)


@pytest.mark.slow
def test_a_model_learns_it_and_continues_a_prompt_with_it(mine):
    config = TransformerConfig(vocab=11, model=16, layers=2, heads=4, kv_heads=2, hidden=32, encoding=mine)
    model = Decoder(config, rngs=nnx.Rngs(0))
    prompt = jnp.arange(6).reshape(2, 3)
    graph, state = nnx.split(model, graph=False)
    gradient = jax.grad(lambda state: (nnx.merge(graph, state)(prompt) ** 2).mean())(state)
    gates = nnx.to_pure_dict(gradient)["stack"]["blocks"][1]["attention"]["position"]
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gates))
    tokens, expected = generate(model, prompt, 4), prompt
    for _ in range(4):
        expected = jnp.concatenate([expected, model(expected)[:, -1:].argmax(-1).astype(expected.dtype)], axis=1)
    found = getattr(tokens, "tokens", tokens)
    np.testing.assert_array_equal(np.asarray(found)[:, -4:], expected[:, -4:])


def test_a_row_of_the_registry_is_all_that_names_it(mine, monkeypatch):
    row = registry.EncodingRow("attnjax.positions.fox:FoX", "Mine")
    monkeypatch.setitem(positions.ENCODINGS, "mine", type(mine))
    monkeypatch.setitem(registry.ENCODINGS, "mine", row)
    assert positions.encoding("mine") == mine
    from attnjax.report.style import order, style

    assert style("mine").label == "Mine"
    assert order("mine") == len(registry.ENCODINGS) - 1


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository with the task of CONTRIBUTING.md, made in its four steps."""
    root, there = PAGE.parent, tmp_path_factory.mktemp("copy")
    for name in ("attnjax", "tests"):
        shutil.copytree(root / name, there / name, ignore=shutil.ignore_patterns("__pycache__", "*.npz", "frozen"))
    shutil.copy(root / "pyproject.toml", there)
    task, formula = blocks("Add a task")
    (there / "attnjax" / "tasks" / "digit_sum.py").write_text(f'"""The sum of digits."""\n\n{task}\n', encoding="utf-8")
    (row,) = re.findall(r"`(\"digit_sum\": .*?)`", PAGE.read_text(encoding="utf-8"))
    insert(there / "attnjax" / "registry.py", '    "text": ', f"    {row}")
    insert(there / "tests" / "tasks" / "oracle.py", "def answer(", f"{formula}\n\n")
    python(there, "-m", "tests.tasks.make_streams")
    return there


def insert(path: Path, before: str, text: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith(before)]
    path.write_text("\n".join([*lines[:place], text, *lines[place:]]) + "\n", encoding="utf-8")


def python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_task_that_is_added_so_passes_the_tests_of_all_tasks(copy):
    files = [f"tests/tasks/test_{name}.py" for name in ("labels", "sampling", "distributions", "forms")]
    selected = "digit_sum or every_case_has or names_that_need_no_jax"
    told = python(
        copy, "-m", "pytest", "-m", "", "-q", "-p", "no:cacheprovider", *files, "tests/test_config.py", "-k", selected
    )
    assert int(re.search(r"(\d+) passed", told)[1]) >= 5


def test_its_frozen_examples_are_added_and_no_others_change(copy):
    before, after = (json.loads((root / "tests/tasks/streams.json").read_text()) for root in (PAGE.parent, copy))
    added = after.pop("digit_sum")
    assert after == before
    assert all(sum(x) % 7 == y and count == 1 for x, [y], count in added)


@pytest.mark.slow
def test_it_is_listed_described_and_can_be_trained(copy):
    listed = python(copy, "-m", "attnjax", "list", "tasks")
    assert "digit_sum                     The sum of the digits modulo their number: 3 4 2 -> 2" in listed
    assert python(copy, "-m", "attnjax", "list", "tasks", "digit_sum").startswith("# DigitSum\n")
    (copy / "one.json").write_text('{"task": {"name": "digit_sum"}, "model": {"layers": 1}}')
    assert "vocabulary              11" in python(copy, "-m", "attnjax", "show", "one.json")
