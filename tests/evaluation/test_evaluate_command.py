"""`attnjax evaluate` for a run on text, a run on a task of its own, and published weights, and one line for each mistake."""

import json
import re

import jax
import numpy as np
import pytest
from flax import nnx

from attnjax.cli import main
from attnjax.config import parse
from attnjax.evaluation import loaded_model
from attnjax.models import MODELS, Loaded, save
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer
from tests.evaluation.stored import started, stored

FIELDS = {
    "name": "small",
    "task": {"name": "text", "length_min": 8, "length_max": 8},
    "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 16, "encoding": "rope", "embed_std": 1.0},
    "train": {"steps": 3, "batch": 2},
    "evaluate": {"lengths": [32], "validation_lengths": [], "count": 8, "batch": 8, "bucket_sizes": [32]},
}
TEXT = {"task": {**FIELDS["task"], "options": {"path": "text"}}}
MQAR = {"task": {"name": "mqar", "length_min": 8, "length_max": 16, "options": {"vocab": 16, "pairs": 2}}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("A line of words to read.\n" * 2000)
    (tmp_path / "other.txt").write_bytes(np.random.default_rng(0).integers(0, 256, 100, np.uint8).tobytes())
    return tmp_path


@pytest.fixture(scope="module")
def parameters(tmp_path_factory):
    """The first state of the small model on text, which is the same for every text."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("A line of words to read.\n" * 2000)
    return started(parse({**FIELDS, "task": {**FIELDS["task"], "options": {"path": str(path)}}}))


def measured(here, *arguments):
    """The rows that a command writes."""
    assert main(["evaluate", *map(str, arguments), "--out", "out"]) == 0
    assert {path.name for path in (here / "out").iterdir()} == {"table.md", "scores.json"}
    return json.loads((here / "out/scores.json").read_text())


def test_perplexity_is_that_of_the_whole_file(here, parameters, capsys):
    """The numbers of the table, from a pass of the model over each window."""
    folder = stored(here, parse({**FIELDS, **TEXT}), parameters)
    row, whole = measured(here, folder, "--perplexity", "other.txt", "--lengths", "40,200", "--stride", "30")
    data, model, nats = (here / "other.txt").read_bytes(), loaded_model.load(folder), 0.0
    for begin, end, first in ((0, 40, 1), (30, 70, 40), (60, 100, 70)):
        window = np.frombuffer(data, np.uint8)[None, begin:end].astype(np.int32)
        nats += float(np.asarray(model.losses(window), np.float64)[0, first - begin - 1 :].sum())
    assert (row["tokens"], row["bytes"], row["stride"]) == (99, 99, 30)
    assert row["nats_per_token"] == pytest.approx(nats / 99, rel=1e-5)
    line = f"| text | nats per token | {nats / 99:.4f} | {whole['nats_per_token']:.4f} |"
    assert line in capsys.readouterr().out
    extended = ("--lengths", "200", "--extend", "rerope+log_n", "--option", "window=3")
    (other,) = measured(here, folder, "--perplexity", "other.txt", *extended)
    assert abs(other["ppl"] - whole["ppl"]) > 1e-3
    assert "rerope+log_n at 25 times the trained length of 8 tokens" in capsys.readouterr().out.splitlines()[-3]


@pytest.fixture
def published(here):
    """A tiny GPT-2 with learned positions up to 600 and a tokenizer of bytes that puts token 97 before a text."""
    tokenizers = pytest.importorskip("tokenizers")
    sizes = {"vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 600}
    spec = MODELS["gpt2"].config(sizes)
    save(Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"], sizes), here / "tiny")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.TemplateProcessing("a $A", special_tokens=[("a", 97)])
    made.save(str(here / "tiny" / "tokenizer.json"))
    return here / "tiny"


@pytest.mark.slow
def test_published_weights_and_a_length_that_they_cannot_read(here, published, capsys):
    asked = [published, "--tasks", "niah_single_1", "--samples", "2"]
    rows = measured(here, *asked, "--lengths", "600,700")
    assert ["problem" in row for row in rows] == [False, True]
    assert "| Needle in noise (passkey) | generation, % | 0.0 | - |" in capsys.readouterr().out
    text = "né 你好, words " * 50
    (here / "book.txt").write_text(text, encoding="utf-8")
    read = [published, "--perplexity", "book.txt"]
    first, failed = measured(here, *read, "--lengths", "600,700")
    assert first["tokens"] == first["bytes"] == len(text.encode())
    assert "0..599" in failed["problem"]
    printed = capsys.readouterr().out
    assert f"| text | tokens counted | {first['tokens']:,} | - |" in printed
    (short, *_), (each, *_) = (measured(here, *read, "--lengths", "64", *one) for one in ([], ["--bos", "every"]))
    assert short["tokens"] == each["tokens"]
    assert short["ppl"] != each["ppl"]


def test_a_run_on_a_task_of_its_own_has_the_scores_of_its_own_evaluation(here, capsys):
    config = parse({**FIELDS, **MQAR})
    state = started(config)
    folder = stored(here / "runs" / "small", config, state)
    (folder.parent / "sweep.json").write_text("{}")
    rows = measured(here, "small/rope/0", "--lengths", "32,48", "--samples", "8")
    assert "| mqar | token_accuracy | " in capsys.readouterr().out
    assert [row["length"] for row in rows] == [32, 48]
    own = Evaluator(config, make_task(config), Trainer(config, make_task(config)).model)
    ((own,),) = own.measure(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state.params), ("test",))
    expected = {one["metric"]: one["value"] for one in own.records}
    assert {name: rows[0][name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert main(["evaluate", str(folder), "--samples", "2"]) == 0
    found = json.loads((here / "evaluated" / folder.name / "scores.json").read_text())
    assert {row["length"] for row in found} == {32}


def told(model, options, capsys):
    """What a command that must fail with status 2 says."""
    try:
        code = main(["evaluate", str(model), *options.split()])
    except SystemExit as exit_:
        code = exit_.code
    text = capsys.readouterr().err
    assert code == 2, text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--extend rerop", "rerop.*rerope"),
        ("--option window=2", "--option .*--extend"),
        ("--stride 4", "--stride .*--perplexity"),
        ("--perplexity x --stride 64 --lengths 64,128", "--stride .*64, got 64"),
        ("--lengths 1k,1024", "1k,1024"),
        ("--lengths 90000k", "16777216.*92160000"),
    ],
)
def test_mistakes_that_are_known_before_a_model_is_loaded(options, message, capsys):
    assert re.search(message, told("nothing", options, capsys))


def test_mistakes_about_a_run(here, parameters, capsys):
    (here / "texts").mkdir()
    for number in range(40):
        (here / "texts" / f"{number}.txt").write_text(f"File {number} of words to read.\n" * 9)
    config = parse({**FIELDS, "task": {**FIELDS["task"], "options": {"path": "texts"}}})
    folder = stored(here, config, parameters)
    (here / "one.txt").write_bytes(b"a")
    read = "--lengths 32 --perplexity"
    for options, message in (
        (f"{read} texts/7.txt", "name that text, texts, .*test split"),
        (f"{read} nowhere", "nowhere"),
        (f"{read} one.txt", "2 tokens.*got 1"),
        # Where no length can be read there is no table of dashes.
        ("--lengths 300 --tasks fwe", "fwe has 736 tokens"),
    ):
        assert re.search(message, told(folder, options, capsys)), options
    assert not (here / "evaluated").exists()
    own = stored(here, parse({**FIELDS, **MQAR}))
    for option in ("--tasks fwe", "--seed 4"):
        assert re.search(f"{option.split()[0]} is for models that read text", told(own, option, capsys))
    assert re.search("mqar.* 8 or more.*7", told(own, "--lengths 7", capsys))
