"""`attnjax evaluate` for a run on text, a run on a task of its own, and published weights, and one line for each mistake."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from attnjax.analysis import loaded_model
from attnjax.cli import evaluating, main
from attnjax.config import canonical_json, parse, run_id
from attnjax.models import MODELS, Loaded, save
from attnjax.train import checkpoint
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members

FIELDS = {
    "name": "small",
    "task": {"name": "text", "length_min": 8, "length_max": 8},
    "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 16, "encoding": "alibi"},
    "train": {"steps": 3, "batch": 2},
    "evaluate": {"lengths": [32], "validation_lengths": [], "count": 8, "batch": 8, "bucket_sizes": [32]},
}
MQAR = {"name": "mqar", "length_min": 8, "length_max": 16, "options": {"vocab": 16, "pairs": 2}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_run(root, **changes):
    """The folder of a run with a checkpoint of its first parameters, and its config."""
    config = parse({**FIELDS, **changes})
    folder = root / run_id(config)
    folder.mkdir()
    (folder / "config.json").write_text(canonical_json(config))
    trainer = Trainer(config, make_task(config))
    state = jax.tree.map(lambda leaf: leaf[0], jax.device_get(trainer.start(members([config]))))
    checkpoint.save(folder / "checkpoints", 3, state)
    return folder, config, trainer, state


@pytest.mark.slow
def test_a_run_on_text(here, capsys):
    (here / "text").write_text("A line of words to read.\n" * 2000)
    folder, *_ = a_run(here, task={**FIELDS["task"], "options": {"path": "text"}})
    tasks = ["--tasks", "niah_single_1,fwe", "--lengths", "512,640", "--samples", "2"]
    assert main(["evaluate", str(folder), "--suite", "long", *tasks, "--perplexity", "text", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith((here / "out/table.md").read_text().rstrip())
    assert "| task | 512 | 640 |" in printed
    assert "| Frequent words | - | - |" in printed
    assert (
        "fwe has 736 tokens with its smallest haystack, 64 of them for the answer: a length of 640 is too small."
        in printed
    )
    rows = json.loads((here / "out/scores.json").read_text())
    needle = next(row for row in rows if row.get("task") == "niah_single_1" and row["length"] == 512)
    assert needle["generation"] == 0
    assert needle["ranking"] in (0, 50, 100)
    assert [row["length"] for row in rows if "ppl" in row] == [512, 640]
    assert all(150 < row["ppl"] < 600 for row in rows if "ppl" in row)
    assert [(row["tokens"], row["bytes"], row["stride"]) for row in rows if "ppl" in row] == [
        (2499, 2499, 256),
        (2499, 2499, 320),
    ], "the last 5 % of 50,000 bytes, but for the first of them"
    assert "Perplexity of text under" in printed
    assert ": the last 5 % of the file, which the model was not trained on." in printed
    assert {path.name for path in (here / "out").iterdir()} == {"table.md", "scores.json", "scores.png", "scores.svg"}


def test_a_run_read_past_its_trained_length(here, capsys):
    """By a method whose windows hide all but the last tokens, so that its numbers are others."""
    (here / "text").write_text("A line of words to read.\n" * 2000)
    folder, *_ = a_run(
        here,
        task={**FIELDS["task"], "options": {"path": "text"}},
        model={**FIELDS["model"], "encoding": "rope", "embed_std": 1.0},
    )
    measure = [
        "evaluate",
        str(folder),
        "--tasks",
        "niah_single_1",
        "--lengths",
        "512",
        "--samples",
        "1",
        "--perplexity",
        "text",
    ]
    found = []
    for extend in ([], ["--extend", "rerope+log_n", "--option", "window=3"]):
        assert main([*measure, *extend]) == 0
        name = folder.name + ("-rerope+log_n" if extend else "")
        rows = json.loads((here / "evaluated" / name / "scores.json").read_text())
        found.append(next(row["ppl"] for row in rows if "ppl" in row))
    assert abs(found[0] - found[1]) > 1e-3
    printed = capsys.readouterr().out
    assert "(rerope+log_n) (mean at least 85.6 %)" in printed
    told = "Read by rerope+log_n at 64 times the trained length of 8 tokens (the longest it was trained on)."
    assert told in printed
    assert (here / "evaluated" / f"{folder.name}-rerope+log_n" / "table.md").read_text().endswith(told + "\n")
    assert not (here / "evaluated" / folder.name / "table.md").read_text().endswith(told + "\n")


@pytest.mark.slow
def test_factors_of_longrope_are_searched_on_a_text(here, capsys):
    """On the training split of the text of the run; they give the same numbers when they are given."""
    (here / "text").write_text("A line of words to read.\n" * 400)
    (here / "other").write_text("Words of another text, and more of them.\n" * 40)
    folder, *_ = a_run(
        here,
        task={**FIELDS["task"], "options": {"path": "text"}},
        model={**FIELDS["model"], "encoding": "rope", "embed_std": 1.0},
    )
    measure = ["evaluate", str(folder), "--lengths", "64", "--extend", "longrope", "--perplexity"]
    row = lambda: json.loads((here / "evaluated" / f"{folder.name}-longrope" / "scores.json").read_text())[0]
    assert main([*measure, "text", "--search", "text"]) == 0
    printed = capsys.readouterr().out
    factors = printed.split("Its factors, searched: ")[1].split(".\n")[0]
    assert len(factors.split(", ")) == 4
    found = row()["ppl"]
    assert main([*measure, "text", "--option", f"factors=[{factors}]"]) == 0
    assert row()["ppl"] == pytest.approx(found, rel=1e-6)
    assert "searched" not in capsys.readouterr().out
    assert main([*measure, "other", "--search", "other"]) == 2
    assert "--search must be another text than --perplexity, whose numbers it would be fitted to: other" in (
        capsys.readouterr().err
    )
    assert main([*measure, "text", "--search", "other", "--lengths", "2k"]) == 2
    assert "--search needs a text of 2048 tokens or more, the longest of --lengths, got 1640" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--extend", "rerop"], "unknown method 'rerop' (did you mean 'rerope'?)"),
        (["--extend", "rerope", "--option", "group=2"], "extended: rerope has no such option"),
        (["--option", "window=2"], "--option needs --extend NAME"),
        (["--trained", "8"], "--trained needs --extend NAME"),
        (["--search", "a.txt"], "--search needs --extend NAME"),
        (
            ["--extend", "yarn", "--search", "a.txt"],
            "--search is for the factors of --extend longrope, got --extend yarn",
        ),
        (
            ["--extend", "longrope", "--search", "a.txt", "--option", "factors=[1,2]"],
            "--search finds the factors of longrope, and --option factors gives them: say one of the two",
        ),
        (
            ["--extend", "longrope", "--option", "factors=2"],
            "factors of LongRoPE must be positive numbers, one per pair, got 2",
        ),
    ],
)
def test_mistakes_of_extensions_are_told_in_a_line(options, told, capsys):
    assert main(["evaluate", "nothing", *options]) == 2
    assert told in capsys.readouterr().err


def test_sizes_that_fit_at_some_trained_length_are_left_to_the_model(capsys):
    """Of dual chunks: a chunk of 64 at 128 tokens, and 4,096 local ones at 32,768; nowhere more local ones than a chunk has."""
    for option in ("chunk=64", "local=4096"):
        assert main(["evaluate", "nothing", "--extend", "dual_chunk", "--option", option]) == 2
        assert "local must be smaller" not in capsys.readouterr().err
    sizes = ["--option", "chunk=8", "--option", "local=9"]
    assert main(["evaluate", "nothing", "--extend", "dual_chunk", *sizes]) == 2
    assert "DualChunk: local must be smaller than chunk, got 9 and 8" in capsys.readouterr().err


def test_the_figure_has_all_of_its_scale_and_what_scores_are_compared_with(here, monkeypatch):
    """Scores of 0 % would otherwise fill an axis from 0 to 0.05."""
    saved = []
    monkeypatch.setattr("attnjax.report.drawing.save", lambda figure, path: saved.append(figure))
    rows = [{"task": "fwe", "length": n, "generation": 0.0, "ranking": 40.0} for n in (512, 1024)]
    evaluating._draw(here / "scores", evaluating._curves(rows))
    generation, ranking = saved[0].axes
    assert generation.get_ylim() == ranking.get_ylim() == pytest.approx((-3, 103))
    assert [line.get_label() for line in ranking.lines] == [
        "Frequent words",
        "effective (85.6 %)",
        "guessing (20 %)",
    ]
    lines = {line.get_label(): line.get_ydata()[0] for line in ranking.lines}
    assert list(lines.values())[1:] == [85.6, 20], "RULER's threshold; one of five answers"
    assert [line.get_label() for line in generation.lines] == ["Frequent words", "effective (85.6 %)"]
    (legend,) = saved[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "Frequent words",
        "effective (85.6 %)",
        "guessing (20 %)",
    ]
    assert generation.get_xlabel() == ranking.get_xlabel() == "length, tokens"


def test_the_figure_of_a_text_shows_all_of_its_curve(here, monkeypatch):
    saved = []
    monkeypatch.setattr("attnjax.report.drawing.save", lambda figure, path: saved.append(figure))
    rows = [{"length": n, "bits_per_byte": bits} for n, bits in ((512, 3.5), (1024, 2.5))]
    evaluating._draw(here / "scores", evaluating._curves(rows))
    (axis,) = saved[0].axes
    low, high = axis.get_ylim()
    assert low == 0
    assert high > 3.5


@pytest.mark.slow
def test_a_run_on_a_task_of_its_own_has_the_scores_of_its_own_evaluation(here, capsys):
    folder, config, trainer, state = a_run(here, task=MQAR)
    assert main(["evaluate", str(folder), "--lengths", "32,48", "--samples", "8", "--out", "out"]) == 0
    assert "Task mqar of" in capsys.readouterr().out
    rows = json.loads((here / "out/scores.json").read_text())
    assert {row["length"] for row in rows} == {32, 48}
    own = Evaluator(config, make_task(config), trainer.model)
    ((records,),) = own(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state.params), ("test",))
    expected = {one["metric"]: one["value"] for one in records}
    assert {row["metric"]: row["value"] for row in rows if row["length"] == 32} == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def published(here):
    """A tiny GPT-2 with learned positions up to 600 and a tokenizer of bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    spec = MODELS["gpt2"].config({"vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 600})
    save(Loaded(MODELS["gpt2"].build(spec, nnx.Rngs(0)), spec, MODELS["gpt2"]), here / "tiny")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(here / "tiny" / "tokenizer.json"))
    return here / "tiny"


@pytest.mark.slow
def test_published_weights_and_a_length_that_they_cannot_read(published, capsys):
    command = ["evaluate", str(published), "--tasks", "niah_single_1", "--samples", "2"]
    assert main([*command, "--lengths", "600,700"]) == 0
    printed = capsys.readouterr().out
    assert "| Needle in noise (passkey) | 0.0 / " in printed
    assert "Note: " in printed
    assert (published.parent / "evaluated/tiny/table.md").exists()
    assert main([*command, "--lengths", "600", "--depths", "2"]) == 0
    printed = capsys.readouterr().out
    assert "| depth of the needle | 600 |" in printed
    assert "| 100 % | 0.0 / " in printed


@pytest.mark.slow
def test_perplexity_alone_is_that_of_the_whole_file(here, capsys):
    """The numbers of the table, from the losses of a pass of the model over each window."""
    data = bytes(np.random.default_rng(0).integers(0, 256, 101).tolist())
    (here / "other.txt").write_bytes(data)
    (here / "text").write_text("A line of words to read.\n" * 2000)
    folder, *_ = a_run(here, task={**FIELDS["task"], "options": {"path": "text"}})
    command = ["evaluate", str(folder), "--perplexity", "other.txt", "--lengths", "40,200", "--out", "out"]
    assert main([*command, "--stride", "30"]) == 0
    printed = capsys.readouterr().out
    assert "task" not in printed
    assert "Perplexity of other.txt under" in printed
    rows = json.loads((here / "out/scores.json").read_text())
    model, nats = loaded_model.load(folder), 0.0
    for begin, end, first in ((0, 40, 1), (30, 70, 40), (60, 100, 70), (90, 101, 100)):
        window = np.frombuffer(data, np.uint8)[None, begin:end].astype(np.int32)
        nats += float(np.asarray(model.losses(window), np.float64)[0, first - begin - 1 :].sum())
    assert [row["length"] for row in rows] == [40, 200]
    row = rows[0]
    assert (row["tokens"], row["bytes"], row["stride"], row["tokens_per_byte"]) == (100, 100, 30, 1.0)
    assert row["nats_per_token"] == pytest.approx(nats / 100, rel=1e-5)
    assert row["ppl"] == pytest.approx(np.exp(nats / 100), rel=1e-4)
    assert row["bits_per_byte"] == pytest.approx(nats / 100 / np.log(2), rel=1e-5)
    assert f"| 40 | 30 | {row['ppl']:.4g} | {nats / 100:.4f} |" in printed
    assert "| share of key tokens | windows of LongPPL |" in printed
    assert [line.split(" | ")[-1] for line in printed.splitlines() if line[:5] in ("| 40 ", "| 200")] == [
        "2 of 2 |",
        "0 of 0 |",
    ]
    assert rows[1]["long_ppl"] is None
    assert (here / "out/scores.svg").exists()


def test_a_file_of_the_folder_that_a_run_was_trained_on_is_refused(here, capsys):
    (here / "texts").mkdir()
    for number in range(40):
        (here / "texts" / f"{number}.txt").write_text(f"File {number} of words to read.\n" * 9)
    folder, *_ = a_run(here, task={**FIELDS["task"], "options": {"path": "texts"}})
    command = ["evaluate", str(folder), "--lengths", "32", "--perplexity"]
    assert main([*command, "texts/7.txt"]) == 2
    told = "texts/7.txt is or has a file of the text that the model was trained on: name that text, texts, of which the test"
    assert told in capsys.readouterr().err
    assert not (here / "evaluated").exists()
    searched = [*command, "texts", "--extend", "longrope", "--search", "texts/7.txt"]
    assert main(searched) == 2
    assert "name that text, texts, of which the train split is read" in capsys.readouterr().err


@pytest.mark.slow
def test_perplexity_of_published_weights_where_they_can_read(published, capsys):
    text = "né 你好, words " * 50
    (published.parent / "text.txt").write_text(text, encoding="utf-8")
    assert main(["evaluate", str(published), "--perplexity", "text.txt", "--lengths", "600,700"]) == 0
    printed = capsys.readouterr().out
    rows = json.loads((published.parent / "evaluated/tiny/scores.json").read_text())
    assert rows[0]["tokens"] == rows[0]["bytes"] == len(text.encode()) - 1 > 500
    assert "Note: Learned has rows for positions 0..599" in printed
    assert "| 700 | - | - |" in printed
    (published.parent / "text.txt").write_bytes(b"a\xff")
    assert main(["evaluate", str(published), "--perplexity", "text.txt"]) == 2
    assert "must be UTF-8 for a model with a tokenizer: byte 1 is no part of a character" in capsys.readouterr().err


@pytest.mark.quick(
    "options4---depths is for models that read text; ", "options6-must name each length once, got '1k,1024'"
)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stride", "4"], "--stride is that of the windows of --perplexity SOURCE, which is not given"),
        (
            ["--perplexity", "x", "--stride", "64", "--lengths", "64,128"],
            "--stride must be below every length, the smallest is 64, got 64",
        ),
        (["--perplexity", "x", "--stride", "0"], "must be a whole number from 1 to 999999999, got '0'"),
        (["--tasks", "fwe"], "--tasks is for models that read text; "),
        (["--depths", "3"], "--depths is for models that read text; "),
        (["--lengths", "7"], "task 'mqar' has lengths 8 or more with its options; evaluate.lengths has 7 .. 7"),
        (["--lengths", "1k,1024"], "must name each length once, got '1k,1024'"),
        (["--lengths", "1m"], "must be a whole number from 1 to 999999999, got '1m'"),
        (["--lengths", "90000k"], "must have lengths of at most 16777216, got 92160000"),
        (["--suite", "short"], "invalid choice: 'short' (choose from"),
    ],
)
def test_mistakes_are_one_sentence(here, options, message, capsys):
    folder, *_ = a_run(here, task=MQAR)
    with_code = lambda: main(["evaluate", str(folder), *options])
    try:
        code = with_code()
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_run_is_measured_at_the_lengths_of_its_tests_into_a_folder_of_its_own(here, capsys):
    """Two runs that are told by what they are, whose names end alike: neither replaces what was measured of the other."""
    (here / "runs/small").mkdir(parents=True)
    (here / "runs/small/sweep.json").write_text("{}")
    task = {"task": MQAR, "evaluate": {**FIELDS["evaluate"], "lengths": [16, 24], "bucket_sizes": [24]}}
    folders = [
        a_run(here / "runs/small", **task, model={**FIELDS["model"], "encoding": name})[0] for name in ("alibi", "rope")
    ]
    for name in ("alibi", "rope"):
        assert main(["evaluate", f"small/{name}/0", "--samples", "2"]) == 0
    for folder in folders:
        rows = json.loads((here / "evaluated" / folder.name / "scores.json").read_text())
        assert {row["length"] for row in rows} == {16, 24}
    capsys.readouterr()
    for option, told in (
        ("--suite long", "--suite is for models that read text"),
        ("--seed 4", "--seed is for models"),
    ):
        assert main(["evaluate", "small/rope/0", *option.split()]) == 2
        assert told in capsys.readouterr().err


def test_depths_and_tasks_are_not_both_taken(capsys):
    assert main(["evaluate", "nothing", "--depths", "2", "--tasks", "vt"]) == 2
    assert "--depths asks niah_single_1 alone: leave out --tasks" in capsys.readouterr().err
