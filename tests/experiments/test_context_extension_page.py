"""Context extension, from records to the page: numbers by hand, everything made anew, and commands from end to end."""

import json
import pathlib
import re

import numpy as np
import pytest
from flax import nnx

from attnjax.models import architecture, save
from attnjax.models.folder import Loaded
from attnjax.records import jsonl
from experiments.context_extension import recording, suite_records, texts
from experiments.context_extension.__main__ import main, read_factors
from experiments.context_extension.measuring import Protocol
from experiments.context_extension.page import RECORDS, page, render, tables_of
from experiments.context_extension.recording import Plan
from experiments.context_extension.results import _results, read
from tests.experiments.test_context_extension import L, corpus_of, subject_of

pytestmark = pytest.mark.slow
COMMITTED = pathlib.Path(__file__).parents[2] / "experiments" / "context_extension"
NAMES = ("README.md", "table.md", "figure.png", "figure.svg", "figure_depth.png", "figure_depth.svg")


def made_up(path, runs=3, methods=("none", "yarn", "drope"), steps=5):
    """Loss 2 at the trained length and 2 + 0.5 per doubling; a run adds 0.1, YaRN takes 1 % of that, tuning halves it."""
    about = {"trained": 8, "factor": 4, "documents": 2, "needles": 3, "steps": steps, "rate": 0.001, "tokens": 64}
    about |= {"logit_scale": 0.0, "methods": list(methods), "depths": [0.0, 1.0], "lengths": [8, 16, 32]}
    about |= {"edges": [0, 8, 16, 24, 32], "stride": 2, "text": "made up", "unit": "byte" if runs > 1 else "token"}
    about |= {"chance": 0.01, "longrope": "NTK-by-parts"}
    made = {"kind": "made", "processor": "none", "date": "2026-01-01", "python": "3", "jax": "0", "flax": "0"}
    rows = [{"kind": "protocol", **about}, made]
    if runs > 1:  # n-grams lose 3.5, 2.5 and 2.205 at any length
        at = lambda x: {length: [x - 0.1, x + 0.1] for length in (8, 16, 32)}
        level = lambda x: {"windows": at(x), "sliding": at(x), "position": [[x] * 4] * 2}
        rows.append({"kind": "ngrams", "bytes": 9})
        rows[-1] |= {"unigram": level(3.5), "bigram": level(2.5), "trigram": level(2.205)}
    for run in range(runs):
        sizes = {"layers": 1, "heads": 2, "model": 16, "parameters": 1000, "steps": 9, "batch": 2, "seconds": 1.0}
        rows.append({"kind": "run", "run": f"r{run}", "seed": run, **sizes, "factors": [1.0, 2.0]})
        for method in methods:
            for stage in ("zero-shot", "tuned") if steps else ("zero-shot",):
                rows.append({"kind": "method", "run": f"r{run}", "method": method, "stage": stage, "seconds": 1.0})
                rise = 0.5 * (0.01 if method == "yarn" else 1) * (0.5 if stage == "tuned" else 1)
                loss = {
                    n: [2 + rise * i + 0.1 * run, 2 + rise * i + 0.1 * run + 0.2] for i, n in enumerate((8, 16, 32))
                }
                find = [[1, 1, 0], [1, 1, 1]] if method == "yarn" else [[0, 0, 0], [1, 0, 0]]
                rows[-1] |= {"windows": loss, "sliding": loss, "found": dict.fromkeys(loss, find), "losses": []}
                rows[-1] |= {"needle": {n: [[1.0] * 3] * 2 for n in loss}, "position": [[2.0, 2.0, 3.0, 4.0]] * 2}
    jsonl.append(path / RECORDS, *rows)
    return path


def test_numbers_by_hand(tmp_path):
    found = read(made_up(tmp_path) / RECORDS)
    assert found.stages == ("zero-shot", "tuned")
    assert list(found.cells["tuned"]) == ["none", "yarn", "drope"]
    plain = found.cells["zero-shot"]["none"]
    # The means over documents of the runs are 3.1, 3.2 and 3.3; resamples of three are all the same at both ends.
    np.testing.assert_allclose(plain.units("sliding", 32), [3.1, 3.2, 3.3])
    one = plain.estimate("sliding", 32)
    assert (one.value, one.low, one.high) == pytest.approx((3.2, 3.1, 3.3))
    assert plain.estimate("found", 8).value == pytest.approx(1 / 6)
    assert plain.by_depth("found", 8).tolist() == pytest.approx([0, 1 / 3])
    difference = found.difference("sliding", 32, "zero-shot", "yarn", "none")
    assert (difference.value, difference.low, difference.high) == pytest.approx((-0.99, -0.99, -0.99))
    assert [end.tolist() for end in plain.curve()] == [[2.0, 2.0, 3.0, 4.0]] * 3


def test_a_single_model_is_told_by_its_documents(tmp_path):
    found = read(made_up(tmp_path, runs=1, steps=0) / RECORDS)
    assert found.stages == ("zero-shot",)
    plain = found.cells["zero-shot"]["none"]
    assert plain.units("windows", 16).tolist() == pytest.approx([2.5, 2.7])
    assert plain.units("found", 8).tolist() == [0.5, 0, 0]
    render(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "One model: means over documents and needles" in text
    assert "gram" not in text.replace("program", ""), "no n-grams of tokens"


def test_the_page_says_what_the_records_say(tmp_path):
    made = render(made_up(tmp_path))
    assert [path.name for path in made] == list(NAMES)
    first = [path.read_bytes() for path in made]
    assert [path.read_bytes() for path in render(tmp_path)] == first
    text = (tmp_path / "README.md").read_text()
    assert (
        "RoPE as it is has a loss of 3.200 (range 3.100 to 3.300) nats per byte at the end of a window of 32, against 2.200"
        in text
    )
    # Over two doublings YaRN's loss rises by 1 % of 2 * 0.5, in every run.
    lowest = (
        "Without training YaRN has the lowest mean loss there, 2.210 (range 2.110 to 2.310), 0.010 (range 0.010 to 0.010) "
        "above RoPE as trained at 8."
    )
    assert lowest in text
    found = "Needles at 32: without training, most are found by YaRN 0.83 (range 0.83 to 0.83) at a loss"
    assert found in text
    assert "the loss is higher under RoPE as trained, YaRN, DroPE" in text
    assert "A trigram of the training bytes has 2.205 there." in text
    assert (
        "of the same documents: unigram 3.500, bigram 2.500, trigram 2.205. Higher than the trigram: without training, RoPE as "
        "trained, DroPE; after fine-tuning, RoPE as trained, DroPE." in text
    )
    assert "| *bigram* | 2.500 | 2.500 | 2.500 |" in text
    assert "| *bigram* | 12.182 | 12.182 | 12.182 |" in (tmp_path / "table.md").read_text()  # exp(2.5)
    assert "ahead: YaRN; not the same sign in every run: DroPE" in text
    assert f"No difference is shown by {len(read(tmp_path / RECORDS).runs)} runs: *higher*, *lower*" in text
    assert "chance is 0.01" in text
    assert "{" not in text
    # exp(3.2), exp(3.1) and exp(3.3)
    assert "24.533 (range 22.198 to 27.113)" in (tmp_path / "table.md").read_text()
    assert "Such a range is no confidence interval." in text


def test_six_runs_have_t_intervals(tmp_path):
    """Means over documents of 3.1 to 3.6: mean 3.35, deviation sqrt(0.035), t = 2.570582 with 5 degrees of freedom."""
    render(made_up(tmp_path, runs=6))
    text = (tmp_path / "README.md").read_text()
    half = 2.570582 * 0.035**0.5 / 6**0.5
    assert f"RoPE as it is has a loss of 3.350 [{3.35 - half:.3f}, {3.35 + half:.3f}] nats per byte" in text
    assert "with the 95 % t interval of 6 runs" in text
    assert "No difference is shown" not in text


def test_runs_of_two_places_are_told_with_their_seeds(tmp_path):
    records = [json.loads(line) for line in (made_up(tmp_path) / RECORDS).read_text().splitlines()]
    made = {"processor": "another", "date": "2026-01-02", "python": "3", "jax": "0", "flax": "0"}
    changed = [one | ({"made": made, "training": 60} if one.get("seed") == 2 else {}) for one in records]
    (tmp_path / RECORDS).unlink()
    jsonl.append(
        tmp_path / RECORDS, *({k: v for k, v in one.items() if k not in ("crc32", "schema")} for one in changed)
    )
    text = page(read(tmp_path / RECORDS))
    first, second = (
        "2026-01-01 with Python 3, jax 0 and flax 0 on none",
        "2026-01-02 with Python 3, jax 0 and flax 0 on another",
    )
    assert f"Measured on {first} (seeds 0, 1) and on {second} (seeds 2): 1.0 minutes of training" in text


@pytest.mark.skipif(not (COMMITTED / RECORDS).exists(), reason="nothing is committed")
def test_the_committed_page_is_made_anew_from_its_records():
    found, suite = read(COMMITTED / RECORDS), suite_records.read(COMMITTED / suite_records.RECORDS)
    assert suite is not None
    assert (COMMITTED / "README.md").read_text() == page(found, suite)
    assert (COMMITTED / "table.md").read_text() == tables_of(found, suite)
    assert all((COMMITTED / name).exists() for name in (*NAMES, "figure_suite.png", "figure_suite.svg"))
    for name in (RECORDS, suite_records.RECORDS):
        assert not re.search(r"/(tmp|home|root|Users)/", (COMMITTED / name).read_text())


def test_a_method_that_diverged_is_the_worst_and_not_the_best():
    """JSON has null for a loss that is not finite: no order has a place for NaN, and no interval of it excludes 0."""
    tables = jsonl.read(COMMITTED / RECORDS).tables
    seen = 0
    for table in tables:
        if (table.get("method"), table.get("stage")) == ("pi", "tuned"):
            for name in ("windows", "sliding"):
                table[name] = {length: [None] * len(values) for length, values in table[name].items()}
            seen += 1
    found = page(_results(tables))
    assert seen == 6
    assert "After 40 steps of fine-tuning Resonance YaRN has the lowest mean loss there, 1.669" in found
    assert re.search(r"at the end of 1024: ahead: .*; behind: PI, .*DroPE", found)
    assert "DroPE 2.497, PI \N{INFINITY}." in found


def test_methods_that_are_not_tuned_alone_have_a_page():
    """Nothing is tuned of a method of other positions, whatever the number of steps."""
    tables = [one for one in jsonl.read(COMMITTED / RECORDS).tables if one.get("method", "rerope") == "rerope"]
    tables = [one | ({"methods": ["rerope"]} if "methods" in one else {}) for one in tables]
    assert "After 40 steps" not in page(_results(tables))


@pytest.mark.slow
def test_what_is_measured_is_not_measured_again(tmp_path, capsys, monkeypatch):
    subject = subject_of()
    monkeypatch.setattr(subject, "training", lambda: np.frombuffer(b"abacab", np.uint8))
    data = np.where(np.arange(900) % 7 == 0, 10, np.arange(900) % 5).astype(np.int32)
    draw = lambda generator: texts.Needle([5, 6, 7], [5, 6], [int(generator.integers(3)), 7], [True, True])
    corpus = texts.Corpus("byte", lambda n: data, data, data, draw, (), (10,), True, 0.1, {"text": "made up"})
    protocol = Protocol(L, 2, documents=2, needles=2, depths=(0.5,), batch=64)
    plan = Plan(("none", "longrope", "drope"), steps=1, tokens=32, rounds=0)
    path = tmp_path / RECORDS
    recording.record([subject], corpus, protocol, plan, path)
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines] == ["protocol", "made", "ngrams", "run", *["method"] * 6]
    assert [json.loads(line).get("stage") for line in lines[4:6]] == ["zero-shot", "tuned"]
    recording.record([subject], corpus, protocol, plan, path)
    assert path.read_bytes() == before
    # What a crash cost is measured again, to the same numbers.
    path.write_bytes(b"".join(lines[:-1]))
    recording.record([subject], corpus, protocol, plan, path)
    timed = ("seconds", "crc32")
    numbers = lambda line: {name: value for name, value in json.loads(line).items() if name not in timed}
    assert numbers(lines[-1]) == numbers(path.read_bytes().splitlines()[-1])
    with pytest.raises(ValueError, match=r"records of another protocol \(steps\); choose another folder with --out"):
        recording.record([subject], corpus, protocol, Plan(plan.methods, 2, tokens=32, rounds=0), path)
    assert read(path).cells["tuned"]["drope"].windows[16].shape == (1, 2)
    assert "planted drope, tuned" in capsys.readouterr().out


@pytest.mark.slow
def test_a_published_folder_from_end_to_end(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    json_config = {
        "model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    }  # fmt: skip
    family = architecture("llama")
    spec = family.config(json_config)
    save(Loaded(family.build(spec, nnx.Rngs(0)), spec, family, json_config), tmp_path / "model")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({one: i for i, one in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["[S]"])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[S] $A", special_tokens=[("[S]", 256)])
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "text").write_text("a text of some words, again and again. " * 200)
    options = [
        "--model",
        str(tmp_path / "model"),
        "--text",
        str(tmp_path / "text"),
        "--factor",
        "2",
        "--trained",
        "128",
    ]
    options += ["--documents", "6", "--needles", "6", "--out", str(tmp_path / "out")]
    factors = tmp_path / "factors.json"
    factors.write_text(json.dumps({"rope_scaling": {"long_factor": [1.0, 2]}}))
    assert main([*options, "--methods", "yarn,longrope", "--factors", str(factors)]) == 0
    found = read(tmp_path / "out" / RECORDS)
    assert found.about["unit"] == "token"
    assert found.runs[0]["factors"] == [1.0, 2.0]
    assert found.lengths == (128, 256)
    # An untrained model knows nothing: about ln 300 nats.
    assert found.cells["zero-shot"]["yarn"].estimate("windows", 256).value == pytest.approx(np.log(300), abs=0.5)
    assert main([*options, "--documents", "9"]) == 2
    told = "has 1950 tokens, 7 windows of 256 that do not overlap: give a longer text, or --documents of at most 7"
    assert told in capsys.readouterr().err
    assert main([*options, "--methods", "pie"]) == 2
    assert "methods must be some of none, pi, ntk" in capsys.readouterr().err


def test_bad_arguments(tmp_path, capsys):
    def told(*arguments):
        assert main([*map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        return capsys.readouterr().err

    assert "--model and --text belong together: give both or neither" in told("--model", tmp_path)
    assert "holds no sweep: there is no sweep.json" in told("--runs", tmp_path)
    assert "--needles must be at least 6, of fewer there is no interval, got 5" in told("--needles", 5)
    assert f"holds no {RECORDS}: measure first" in told("--render", tmp_path)
    (tmp_path / "list.json").write_text("[1, 2.5]")
    assert read_factors(tmp_path / "list.json") == (1.0, 2.5)
    (tmp_path / "list.json").write_text('{"short_factor": [1]}')
    with pytest.raises(ValueError, match="must hold a list of numbers, or a table with long_factor"):
        read_factors(tmp_path / "list.json")
    (tmp_path / "list.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        read_factors(tmp_path / "list.json")


def test_a_text_that_is_too_short(tmp_path):
    class Bytes:
        def encode(self, text, *, specials=True):
            return [*([1] if specials else []), *text.encode()]

    (tmp_path / "text").write_text("abc" * 50)
    with pytest.raises(ValueError, match="text has 150 tokens; 10 windows of 64 are needed"):
        texts.user_text(tmp_path / "text", Bytes(), 64)
    corpus = texts.user_text(tmp_path / "text", Bytes(), 15)
    assert corpus.begin == (1,)
    assert [len(part) for part in (corpus.tuning(5), corpus.search, corpus.test)] == [75, 37, 38]
    needle = corpus.needle(np.random.default_rng(0))
    assert bytes(needle.statement).decode().strip() == bytes(needle.question + needle.answer).decode() + "."
    assert re.fullmatch(rb" [0-9]{5}", bytes(needle.answer))


def test_damaged_records(tmp_path):
    (tmp_path / RECORDS).write_text("no JSON\n")
    with pytest.raises(ValueError, match="is damaged: line 1"):
        read(tmp_path / RECORDS)
    (tmp_path / RECORDS).unlink()
    lines = (made_up(tmp_path) / RECORDS).read_text().splitlines(keepends=True)
    # A run whose last method is missing does not count.
    (tmp_path / RECORDS).write_text("".join(lines[:-1]))
    assert len(read(tmp_path / RECORDS).runs) == 2
    (tmp_path / RECORDS).write_text("".join(lines[:4]))
    with pytest.raises(ValueError, match="there is no run with all its methods"):
        read(tmp_path / RECORDS)
    (tmp_path / RECORDS).write_text("".join(lines).replace('"position"', '"places"'))
    with pytest.raises(ValueError, match="is damaged: its checksum does not agree"):
        read(tmp_path / RECORDS)
    renamed = [json.loads(line.replace('"position"', '"places"')) for line in lines]
    (tmp_path / RECORDS).unlink()
    jsonl.append(tmp_path / RECORDS, *({key: value for key, value in one.items() if key != "crc32"} for one in renamed))
    with pytest.raises(ValueError, match="holds what is no record of context extension: KeyError"):
        read(tmp_path / RECORDS)
    assert corpus_of(np.arange(3)).unit == "byte"
