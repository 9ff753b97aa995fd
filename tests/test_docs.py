"""The pages: their links lead to files, the commands that they show can be typed, and their code runs.

Each block of Python runs in a folder that has the files it names. Models are tiny and barely trained.
"""

import argparse
import dataclasses
import os
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax import models
from attnjax.cli import parsed
from attnjax.cli.parser import parser
from attnjax.cli.planning import planned
from attnjax.config import defaults
from attnjax.evaluation import HeadOverview
from attnjax.sweep import find_run, prepare, run_here
from attnjax.train import train

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*/*.md")]
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(FILES)}
TINY = "model.layers=1 model.model=8 model.heads=2 model.hidden=8 train.steps=2 train.batch=2 train.warmup=1".split()
TINY += ["evaluate.count=4", "evaluate.batch=4"]


def test_links_between_pages_lead_to_files():
    links = [(ROOT / page, link) for page, text in PAGES.items() for link in re.findall(r"\]\(([^)#:\s]+)\)", text)]
    assert len(links) > 100
    assert [(page, link) for page, link in links if not page.parent.joinpath(link).exists()] == []


# Commands ------------------------------------------------------------------------------------------------------------------


VERBS = ("run", "sweep", "work", "report", "list", "show", "compile", "evaluate", "explore")


def texts() -> dict[str, str]:
    """What `--help` prints, of the whole and of each verb, and the pages."""
    top = parser()
    (verbs,) = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    return {"": top.format_help(), **{name: one.format_help() for name, one in verbs.choices.items()}, **PAGES}


def commands(text: str) -> list[str]:
    """Lines that begin with `attnjax` and a verb, without the comments behind them."""
    lines = re.findall(rf"^ *(attnjax (?:{'|'.join(VERBS)})\b.*)$", text, re.MULTILINE)
    return [line.split("#")[0].strip() for line in lines]


def saved(page: str) -> list[tuple[str, str]]:
    """The configs that a page tells its reader to save, with their paths: blocks of code, and texts in triple quotes in one."""
    quoted = re.findall(r"[Ss]ave what.*?as `(\w+\.py)`.*?'''(.*?)'''", page, re.DOTALL)
    quoted += re.findall(r"with `(\w+\.py)`, the config in quotes below.*?'''(.*?)'''", page, re.DOTALL)
    return [*re.findall(r"Save this as `(configs/\w+\.py)`.*?```python\n(.*?)```", page, re.DOTALL), *quoted]


SHOWN = {where: text for where, text in texts().items() if commands(text)}


@pytest.mark.parametrize(
    "where", [pytest.param(one, marks=pytest.mark.slow if one.startswith("experiments/") else ()) for one in SHOWN]
)
def test_commands_that_are_shown_can_be_typed(where, tmp_path, monkeypatch):
    """They are parsed, and their configs, keys and values are there."""
    monkeypatch.chdir(tmp_path)
    for path, config in saved(SHOWN[where]):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(config, encoding="utf-8")
    for line in dict.fromkeys(commands(SHOWN[where])):
        chosen = parsed(shlex.split(line)[1:])
        if hasattr(chosen, "overrides"):
            more = (chosen.over, chosen.seeds) if hasattr(chosen, "over") else ()
            assert planned(chosen.config, chosen.overrides, *more).runs, line


# Code ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages write into an empty folder."""
    monkeypatch.chdir(tmp_path)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)


def run(code: str, **names) -> dict:
    """The names that code leaves behind, where it finds these."""
    Path("page.py").write_text(code, encoding="utf-8")
    return runpy.run_path("page.py", init_globals=names)


def trained(config: str, address: str, *overrides: str) -> Path:
    """The folder of the one run of a sweep that an address means, after two steps of a tiny model; others are not trained."""
    plan = planned(config, [*TINY, *overrides])
    store = prepare(Path("runs", plan.runs[0].config.name), plan.runs[0].config.name, plan.runs)
    folder = find_run(address)
    assert run_here(store.only([folder.name]), train).of("done") == [folder.name]
    return folder


@pytest.mark.slow
def test_the_code_of_the_first_page_runs():
    (code,) = blocks("README.md")
    assert run(code)["out"].shape == (2, 1000, 8, 64)


@pytest.mark.slow
def test_the_code_about_attention_runs():
    first, second, _ = blocks("docs/attention.md")  # the third names a layer of the reader
    assert run(first + second)["out"].shape == (2, 1, 8, 64)


@pytest.mark.slow
def test_the_code_about_other_projects_runs():
    found = run("\n".join(blocks("docs/drop_in.md")))
    np.testing.assert_allclose(found["ringed"], found["sharded"], atol=2e-6)


def test_the_config_and_the_tuning_of_the_page_on_experiments():
    config, tune, *_ = blocks("docs/experiments.md")
    Path("half_rope.py").write_text(f"{config}\n\n{tune}", encoding="utf-8")
    assert len(planned("half_rope.py", []).runs) == 6
    found = planned("half_rope.py", ["evaluate.validation_lengths=[16]"], tune=True).tuning
    assert (len(found.families), len(found.candidates), len(found.runs)) == (2, 6, 36)


@pytest.mark.slow
def test_a_config_and_a_composition_of_the_tutorial():
    config, composition = blocks("docs/tutorials/encoding.md")
    made = run(config, config=defaults())["config"].model.encoding
    assert (made.name, made.options) == ("my_package.encodings:Span", {})
    found = run(composition, aj=aj, dataclasses=dataclasses, PositionEncoding=aj.PositionEncoding)
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
    attend = lambda encoding: aj.attend(x, x, x, encoding=encoding, mask=aj.Mask(causal=True))
    np.testing.assert_array_equal(attend(found["RotaryAlibi"]()), attend(aj.compose(aj.RoPE(), aj.ALiBi())))


@pytest.mark.slow
def test_the_mask_and_the_cache_of_streaming_llm():
    (code,) = blocks("docs/encodings.md")
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, 2, 64))
    found = run(code, aj=aj, q=q, k=k, v=v)
    assert found["out"].shape == (1, 12, 2, 64)
    assert isinstance(found["cache"].append(k[:, :1], v[:, :1]), aj.KVCache)


@pytest.mark.slow
def test_a_published_model_is_loaded_saved_and_continues_texts():
    tokenizers = pytest.importorskip("tokenizers")
    sizes = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    family, described = models.MODELS["smollm3"], {**sizes, **heads}
    spec = family.config(described)
    models.save(models.Loaded(family.build(spec, nnx.Rngs(0)), spec, family, described), "models/SmolLM3-3B")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytes_alone = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    bytes_alone.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = tokenizers.decoders.ByteLevel()
    Path("models/gpt2").mkdir()
    bytes_alone.save("models/gpt2/tokenizer.json")

    found = run("".join(blocks("docs/models.md")), tokens=jnp.array([[3, 1, 4]]))
    assert found["logits"].shape == (1, 3, 256)
    assert Path("models/mine/config.json").is_file()
    assert (found["other"].new, found["other"].unused) == ((), ())
    assert [type(text) for text in found["texts"]] == [str, str]


@pytest.mark.slow
def test_heads_of_a_trained_model_are_measured(capsys):
    """The blocks of the pages on experiments and on the explorer, with the model that they name."""
    folder = trained("heads_lm", "heads_lm/rope/0")
    (code,) = blocks("docs/explorer.md")
    found = run(code)["found"]
    assert isinstance(found, HeadOverview)
    assert found.best("previous_token") in ((0, 0), (0, 1))
    assert "previous_token" in capsys.readouterr().out
    *_, code = blocks("docs/experiments.md")
    found = run(code)
    assert found["load"](folder).weights(found["tokens"]).shape == found["weights"].shape == (1, 1, 2, 19, 19)


# Scripts of the first page -------------------------------------------------------------------------------------------------


@pytest.fixture
def called(tmp_path):
    """Runs a script of the checkout with a python3 that names, in place of an environment, a program that prints its arguments.

    Returns what the script asks `scripts/setup_env.py` for, and the arguments of the program.
    """
    printing, asked = tmp_path / "printing", tmp_path / "asked"
    printing.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").write_text(f'#!/bin/sh\necho "$@" > {asked}\necho {printing}\n')
    for file in (printing, tmp_path / "python3"):
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def call(script, *words):
        command = [ROOT / script, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return asked.read_text().strip(), done.stdout.splitlines()

    return call


@pytest.mark.parametrize(
    ("words", "config", "more"),
    [
        (["--out", "runs/other"], "rope_vs_sinusoidal", ["--out", "runs/other"]),
        (["paper", "--dry-run"], "rope_vs_sinusoidal:paper", ["--dry-run"]),
        (["theta", "train.steps=7", "--workers", "31"], "theta", ["train.steps=7", "--workers", "31"]),
    ],
)
def test_run_is_a_sweep_with_a_report(called, words, config, more):
    asked, command = called("run", *words)
    assert asked == "scripts/setup_env.py"
    assert command[:4] + command[5:] == ["-m", "attnjax", "run", "--workers", "--report", config, *more]
    chosen = parsed(command[2:])
    assert (chosen.config, chosen.report) == (config, True)
    assert chosen.workers == (31 if "31" in more else int(command[4]))


def test_test_hands_its_words_to_pytest(called):
    asked, command = called("test", "--all", "-k", "rope")
    assert asked == "scripts/setup_env.py --dev"
    assert command == ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "", "-k", "rope"]
