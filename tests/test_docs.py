"""Links of the pages lead to files, the code of the pages runs, and the scripts of README call the command with their defaults.

Each block of Python runs in a folder that has the files it names. Models are tiny and barely trained.
"""

import contextlib
import dataclasses
import io
import os
import re
import runpy
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax import models
from attnjax.cli import main
from attnjax.cli.parser import parser
from attnjax.cli.planning import planned
from attnjax.config import defaults
from attnjax.evaluation import HeadOverview
from attnjax.sweep import find_run, prepare, run_here
from attnjax.train import train

ROOT = Path(__file__).resolve().parent.parent
FILES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*/README.md")]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in FILES)]
TINY = (
    "model.layers=1",
    "model.model=8",
    "model.heads=2",
    "model.hidden=8",
    "train.steps=2",
    "train.batch=2",
    "train.warmup=1",
    "evaluate.count=4",
    "evaluate.batch=4",
)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(page: str, code: str, **names) -> dict:
    """The names that a block leaves behind, where it finds these."""
    path = Path(f"{Path(page).stem}.py")
    path.write_text(code, encoding="utf-8")
    return runpy.run_path(str(path), init_globals=names)


def trained(config: str, address: str, *overrides: str) -> Path:
    """The folder of the one run of a sweep that an address means, after two steps of a tiny model; others are not trained."""
    plan = planned(config, [*TINY, *overrides])
    store = prepare(Path("runs", plan.runs[0].config.name), plan.runs[0].config.name, plan.runs)
    folder = find_run(address)
    assert run_here(store.only([folder.name]), train).of("done") == [folder.name]
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_code_of_the_first_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md")
    assert run("README.md", code)["out"].shape == (2, 1000, 8, 64)


@pytest.mark.slow
def test_the_code_about_attention_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, _ = blocks("docs/attention.md")  # the third names a layer of the reader
    assert run("docs/attention.md", first + second)["out"].shape == (2, 1, 8, 64)


@pytest.mark.slow
def test_the_code_about_other_projects_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run("docs/drop_in.md", "\n".join(blocks("docs/drop_in.md")))
    np.testing.assert_allclose(found["ringed"], found["sharded"], atol=2e-6)


def test_the_config_and_the_tuning_of_the_page_on_experiments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, tune, *_ = blocks("docs/experiments.md")
    Path("half_rope.py").write_text(f"{config}\n\n{tune}", encoding="utf-8")
    assert len(planned("half_rope.py", []).runs) == 6
    found = planned("half_rope.py", ["evaluate.validation_lengths=[16]"], tune=True).tuning
    assert (len(found.families), len(found.candidates), len(found.runs)) == (2, 6, 36)


@pytest.mark.slow
def test_a_config_and_a_composition_of_the_tutorial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, composition = blocks("docs/tutorials/encoding.md")
    made = run("docs/tutorials/encoding.md", config, config=defaults())["config"].model.encoding
    assert (made.name, made.options) == ("my_package.encodings:Span", {})
    found = run(
        "docs/tutorials/encoding.md", composition, aj=aj, dataclasses=dataclasses, PositionEncoding=aj.PositionEncoding
    )
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
    attend = lambda encoding: aj.attend(x, x, x, encoding=encoding, mask=aj.Mask(causal=True))
    np.testing.assert_array_equal(attend(found["RotaryAlibi"]()), attend(aj.compose(aj.RoPE(), aj.ALiBi())))


@pytest.mark.slow
def test_the_mask_and_the_cache_of_streaming_llm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/encodings.md")
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, 2, 64))
    found = run("docs/encodings.md", code, aj=aj, q=q, k=k, v=v)
    assert found["out"].shape == (1, 12, 2, 64)
    assert isinstance(found["cache"].append(k[:, :1], v[:, :1]), aj.KVCache)


@pytest.mark.slow
def test_a_published_model_is_loaded_saved_and_continues_texts(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    sizes = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    spec = models.MODELS["smollm3"].config({**sizes, **heads})
    made = models.MODELS["smollm3"].build(spec, nnx.Rngs(0))
    models.save(models.Loaded(made, spec, models.MODELS["smollm3"]), "models/SmolLM3-3B")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytes_alone = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    bytes_alone.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = tokenizers.decoders.ByteLevel()
    Path("models/gpt2").mkdir()
    bytes_alone.save("models/gpt2/tokenizer.json")

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found = run("docs/models.md", "".join(blocks("docs/models.md")), tokens=jnp.array([[3, 1, 4]]))
    assert found["logits"].shape == (1, 3, 256)
    assert Path("models/mine/config.json").is_file()
    assert (found["other"].new, found["other"].unused) == ((), ())
    assert [type(text) for text in found["texts"]] == [str, str]
    assert 0 < len(found["piece"]) <= len(printed.getvalue()) <= 40


@pytest.mark.slow
def test_heads_of_a_trained_model_are_measured(tmp_path, monkeypatch, capsys):
    """The blocks of the pages on experiments and on the explorer, with the model that they name."""
    monkeypatch.chdir(tmp_path)
    folder = trained("heads_lm", "heads_lm/rope/0")
    (code,) = blocks("docs/explorer.md")
    found = run("docs/explorer.md", code)["found"]
    assert isinstance(found, HeadOverview)
    assert found.best("previous_token") in ((0, 0), (0, 1))
    assert "previous_token" in capsys.readouterr().out
    *_, code = blocks("docs/experiments.md")
    found = run("docs/experiments.md", code)
    assert found["load"](folder).weights(found["tokens"]).shape == found["weights"].shape == (1, 1, 2, 19, 19)


@pytest.mark.slow
def test_a_run_of_the_main_job_is_explored_as_the_first_page_says(tmp_path, monkeypatch):
    (line,) = re.findall(r"^(attnjax explore .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    _, command, address = line.split()
    monkeypatch.chdir(tmp_path)
    trained("rope_vs_sinusoidal", address, "evaluate.lengths=16,24", "evaluate.bucket_sizes=64,128")
    assert main([command, address]) == 0
    assert "rope" in Path("explore.html").read_text(encoding="utf-8")


@pytest.fixture
def called(tmp_path):
    """Runs a script of the checkout with a python3 that names, in place of an environment, a program that prints its arguments.

    The program and what the script asks `scripts/setup_env.py` for are returned, and an argument is a line.
    """
    printing, asked = tmp_path / "printing", tmp_path / "asked"
    printing.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").write_text(f'#!/bin/sh\necho "$@" > {asked}\necho {printing}\n')
    for file in (printing, tmp_path / "python3"):
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def call(script, *words):
        done = subprocess.run(
            [ROOT / script, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines(), asked.read_text().split()

    return call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["rope_vs_sinusoidal"]),
        (["--out", "runs/other"], ["rope_vs_sinusoidal", "--out", "runs/other"]),
        (["paper", "--dry-run"], ["rope_vs_sinusoidal:paper", "--dry-run"]),
        (["theta"], ["theta"]),
    ],
)
def test_run_is_a_sweep_with_a_report(called, words, expected):
    command, asked = called("run", *words)
    assert asked == ["scripts/setup_env.py"]
    assert command[:3] == ["-m", "attnjax", "run"]
    assert (command[3], command[5]) == ("--workers", "--report")
    assert int(command[4]) >= 1
    assert command[6:] == expected


@pytest.mark.parametrize("more", [[], ["--workers", "31"]])
def test_options_win_over_the_defaults_of_run(called, more):
    command, _ = called("run", "theta", "train.steps=7", *more)
    chosen = parser().parse_args(command[2:])
    assert (str(chosen.config), chosen.overrides, chosen.report) == ("theta", ["train.steps=7"], True)
    assert chosen.workers == (31 if more else int(command[4]))


def test_test_hands_its_words_to_pytest(called):
    command, asked = called("test", "--all", "-k", "rope")
    assert asked == ["scripts/setup_env.py", "--dev"]
    assert command == ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "", "-k", "rope"]
