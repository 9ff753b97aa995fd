"""Every config under every word: it parses, its cells differ, it can be built, and `paper` is the published protocol."""

import csv
import dataclasses
import importlib.util
import itertools
import math
import pathlib

import pytest

from attnjax.config import cell_id, load, override, parse, to_dict
from attnjax.config.files import opening
from attnjax.report import published
from attnjax.report.protocols import differs, protocols
from attnjax.sweep import plan, population_key
from attnjax.sweep.tuning import tuning
from attnjax.tasks import task
from attnjax.tasks.copying import published_symbols
from attnjax.train import describe

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = {
    "ruoss": [f"{rung}{rest}" for rung in ("smoke", "short", "paper") for rest in ("", "-faithful")],
    "huang": ["smoke", "cheap", "copy", "short", "paper"],
    "kazemnejad": ["smoke", "cpu", "wide", "whole", "short", "paper"],
    "press": ["smoke", "cpu"],
}
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
ALL = [(name, word) for name in NAMES for word in WORDS.get(name, [""])]


def changes(name, word):
    """What the sweep sets, run by run."""
    return list(load(f"{name}:{word}" if word else name).sweep())


def cells(name, word):
    """The resolved config of the first run of each task, encoding and policy."""
    config, found = load(f"{name}:{word}" if word else name).config, {}
    for change in changes(name, word):
        keys = ("task.name", "task.options", "model.encoding", "positions.policy")
        found.setdefault(repr([change.get(key) for key in keys]), change)
    # Checking hundreds of lengths in each of hundreds of cells takes a while, and says nothing new.
    few = {"evaluate.lengths": [60]} if len(found) > 50 else {}
    return [parse(override(config, {**few, **change})) for change in found.values()]


def paper(name):
    """The config of `paper` before the sweep, and its sweep."""
    return parse(load(f"{name}:paper").config), changes(name, "paper")


def values(sweep, key):
    return sorted({change[key] for change in sweep})


def encodings(sweep):
    return {(c["model.encoding"]["name"], c.get("positions.policy", "arange")) for c in sweep}


@pytest.mark.parametrize(("name", "word"), ALL)
def test_a_config_parses_and_its_cells_differ(name, word):
    runs = cells(name, word)
    assert len({cell_id(run) for run in runs}) == len(runs)
    assert len({run.name for run in runs}) == 1
    for run in runs:
        shortest = task(run.task.name, **run.task.options).minimum_length
        assert run.task.length_min >= shortest
        assert min(run.evaluate.lengths) >= shortest
        assert run.task.length_max < max(run.evaluate.lengths)


@pytest.mark.quick("huang-smoke", "kazemnejad-smoke")
@pytest.mark.parametrize(
    ("name", "word"), [("ruoss", "short"), ("ruoss", "paper-faithful"), ("huang", "smoke"), ("kazemnejad", "smoke")]
)
def test_one_cell_of_each_kind_can_be_built(name, word):
    kinds = {}
    for run in cells(name, word):
        kind = (run.model.encoding.name, run.positions.policy)
        kinds.setdefault(kind, run)
    for run in kinds.values():
        # Whether parts fit together is told by one layer, in a fifth of the time.
        found = describe(dataclasses.replace(run, model=dataclasses.replace(run.model, layers=1)))
        assert found["parameters"] > 1000
        assert found["longest_trained"] == run.task.length_max


@pytest.mark.parametrize("name", NAMES)
def test_a_config_opens_with_its_question(name):
    text = opening(ROOT / "configs" / f"{name}.py")
    assert text.splitlines()[0].strip()
    for word in ("Question:", "Paper:", "Command:", "Run time:", "Expected"):
        assert name not in WORDS or word in text, word
    assert name not in WORDS or text.splitlines()[0].endswith("?")


@pytest.mark.parametrize("name", WORDS)
def test_an_unknown_word_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match=f"{name} takes one of smoke,.* got 'tiny'"):
        load(f"{name}:tiny")
    assert parse(load(name).config).name == f"{name}_smoke"


@pytest.mark.parametrize("name", ["huang", "kazemnejad"])
def test_paper_differs_from_the_published_protocol_in_what_no_config_says(name):
    """Every difference that `differs` computes from the config of a cell is gone; what stands there always stays."""
    config, sweep = load(f"{name}:paper").config, changes(name, "paper")
    known = {(cell.task, cell.options, cell.encoding): cell for cell in published.cells() if name in cell.paper.lower()}
    always = {one["words"] for paper in protocols().values() for one in paper["always"]}
    compared = set()
    # The search has other models; what it chose comes last, a seed at a time.
    for change in sweep[-80:] if name == "huang" else sweep:
        task_of = change["task.name"]
        options = change.get("task.options", {})
        text = "variant={variant}" if "variant" in options else "order={order}" if "order" in options else ""
        cell = known[task_of, text.format(**options), change["model.encoding"]["name"]]
        if cell not in compared:
            few = {"evaluate.lengths": [60], "seed": change["seed"]}
            run = to_dict(parse(override(config, {**change, **few})))
            assert {one.words for one in differs(cell, run)} <= always, cell
            compared.add(cell)
    assert len(compared) == len(known)


def test_published_tokens_of_the_config_are_those_of_the_task():
    symbols = importlib.util.spec_from_file_location("kazemnejad", ROOT / "configs" / "kazemnejad.py")
    module = importlib.util.module_from_spec(symbols)
    symbols.loader.exec_module(module)
    for names in (module.COPIES, module.REVERSALS):
        assert {name: module.SYMBOLS.get(name, 100) for name in names} == {n: published_symbols(n) for n in names}


@pytest.mark.parametrize(
    ("name", "word", "runs", "families", "tuned"),
    [
        ("kazemnejad", "cpu", 4 * 5 * 6, 4 * 5, 20 * 3),
        ("kazemnejad", "wide", 2 * 5 * 6, 2 * 5, 10 * 4),
        ("kazemnejad", "whole", 2 * 6, 2, 2 * 3),
        ("press", "cpu", 4 * 6, 4, 4 * 3 * 2),
    ],
)
def test_sweeps_beside_published_numbers_tune_all_encodings_alike(name, word, runs, families, tuned):
    """As many runs as the docstring says, and the same candidates on the same seeds, none of them one of the sweep."""
    loaded = load(f"{name}:{word}")
    planned = plan(loaded.config, loaded.sweep())
    assert len(planned) == runs
    found = tuning(loaded.config, planned, loaded.tune(), loaded.tuning_seeds())
    assert (len(found.families), len(found.runs)) == (families, tuned)
    assert {run.config.seed for run in planned} == set(range(6))


def test_small_words_of_huang_have_the_published_models_and_stop():
    sizes = {}
    for word, runs in (("cheap", 6 + 6 + 10), ("copy", 6)):
        config, sweep = parse(load(f"huang:{word}").config), changes("huang", word)
        assert len(sweep) == runs
        for c in sweep:
            model = tuple(c[f"model.{k}"] for k in ("layers", "heads", "model"))
            sizes[c["task.name"], c["model.encoding"]["name"]] = model
            assert c["evaluate.validation_lengths"] == tuple(range(1, 51))
        assert (config.train.until, config.evaluate.every, config.train.steps) == (1.0, 3000, 30_000)
        assert (config.model.kernel_std, config.model.residual_start) == (0.02, True)
    assert sizes == {
        ("binary_majority", "learned"): (1, 1, 16),
        ("binary_majority", "nope"): (1, 1, 16),
        ("majority", "nope"): (1, 1, 64),
        ("unique_copy", "learned"): (2, 1, 64),
    }


def test_press_tests_at_the_published_multiples():
    """Every published length past 512 has one of ours within 5 % of its multiple, and none of ours is for nothing."""
    run = parse(load("press:cpu").config)
    near = lambda cell: [n for n in run.evaluate.lengths if 0.95 * cell.low <= 8 * n <= 1.05 * cell.low]
    found = [near(cell) for cell in published.cells() if cell.task == "text" and cell.low > cell.trained]
    assert all(len(one) == 1 for one in found)
    assert {n for one in found for n in one} == set(run.evaluate.lengths) - {64}


def test_ruoss_is_the_published_protocol():
    config, sweep = paper("ruoss")
    assert len(sweep) == 15 * 11 * 3 * 10
    assert values(sweep, "train.learning_rate") == [0.0001, 0.0003, 0.0005]
    assert values(sweep, "seed") == values(sweep, "data_seed") == list(range(10))
    assert len(values(sweep, "task.name")) == 15
    absolute = {"sinusoidal", "learned"}
    both = {*absolute, "rope", "alibi", "transformer_xl"}
    assert encodings(sweep) == {("nope", "arange"), *((e, p) for e in both for p in ("arange", "randomized"))}
    assert {c["positions.maximum"] for c in sweep if "positions.maximum" in c} == {2048}
    assert (config.task.length_min, config.task.length_max, config.task.length_per) == (1, 40, "batch")
    assert config.evaluate.lengths == tuple(range(1, 501))
    assert (config.evaluate.count, config.evaluate.batch, config.positions.at_test) == (512, 64, "same")
    assert (config.train.steps, config.train.batch, config.train.schedule) == (1_000_000, 128, "constant")
    assert (config.train.b1, config.train.b2, config.train.epsilon, config.train.clip) == (0.9, 0.999, 1e-8, 1.0)
    assert (config.train.weight_decay, config.model.residual_dropout) == (0.0, 0.1)
    assert (config.task.tail, config.evaluate.dropout, config.positions.sample_per) == (False, False, "example")


def test_ruoss_faithful_has_the_quirks_and_nothing_else():
    plain, faithful = (parse(load(f"ruoss:paper{rest}").config) for rest in ("", "-faithful"))
    assert set(range(1, 501)) - set(faithful.evaluate.lengths) == {41}
    assert (plain.train.steps, faithful.train.steps) == (1_000_000, 1_000_001)
    assert (faithful.task.tail, faithful.evaluate.dropout, faithful.positions.sample_per) == (True, True, "batch")
    found = {(c["model.encoding"]["name"], "positions.policy" in c): c for c in changes("ruoss", "paper-faithful")}
    relative = {"table": "clamped", "length": 2048}
    assert found["transformer_xl", True]["model.encoding"]["options"] == relative
    assert found["transformer_xl", False]["model.encoding"]["options"] == {}
    layers = {name for (name, drawn), c in found.items() if drawn and c["positions.sample_per_layer"]}
    assert layers == {"rope", "alibi", "transformer_xl"}
    dropped = {name for (name, _), c in found.items() if c["model.embedding_dropout"]}
    assert dropped == {"sinusoidal", "learned"}
    assert not any("model.embedding_dropout" in c for c in changes("ruoss", "paper"))


def test_huang_is_the_published_protocol():
    config, sweep = paper("huang")
    models = {tuple(c[f"model.{k}"] for k in ("layers", "heads", "model")) for c in sweep}
    grid = {(layers, heads, d) for layers in (1, 2, 4) for heads in (1, 2, 4) for d in (16, 64, 256)}
    assert models == grid | {(12, 12, 768)}
    searched = [c for c in sweep if c["model.layers"] < 12]
    assert values(searched, "train.learning_rate") == [0.0001, 0.001]
    # 54 models of 8 tasks in 2 cells, then 5 seeds of the 16 chosen ones.
    assert len(sweep) == 54 * 8 * 2 + 16 * 5
    assert values(sweep, "seed") == [0, 1, 2, 3, 4]
    big = [c for c in sweep if c["model.layers"] == 12]
    assert {(c["train.steps"], c["train.warmup"]) for c in big} == {(60_000, 3000)}
    assert values(big, "train.learning_rate") == [3e-5, 1e-4]
    assert (config.train.steps, config.train.batch, config.train.schedule) == (30_000, 64, "linear")
    assert (config.train.weight_decay, config.train.b2, config.train.warmup) == (0.01, 0.999, 0)
    assert (config.task.length_max, config.task.begin, config.positions.at_test) == (50, True, "arange")
    lengths = config.evaluate.lengths
    for low, high in ((51, 100), (101, 150)):
        assert sum(low <= n <= high for n in lengths) * config.evaluate.count == 2000
    # One position less than their n_positions, which has one for the last token too.
    places = {c["task.name"]: c["positions.maximum"] for c in sweep if "positions.maximum" in c}
    assert places == {
        **dict.fromkeys(("binary_majority", "majority", "parity"), 153),
        **dict.fromkeys(("unique_copy", "repeated_copy", "sort"), 302),
        "interleaved_majority": 155,
        "big_endian_addition": 299,
    }


def test_kazemnejad_is_the_published_protocol():
    config, sweep = paper("kazemnejad")
    assert len(sweep) == 9 * 5 * 3
    assert values(sweep, "seed") == values(sweep, "data_seed") == [146317, 234054, 256788]
    model = config.model
    assert (model.layers, model.model, model.heads, model.hidden) == (12, 768, 12, 3072)
    assert (model.activation, model.norm, model.bias, model.residual_dropout) == ("relu", "rms", False, 0.1)
    train = config.train
    assert (train.learning_rate, train.weight_decay, train.batch, train.steps) == (3e-5, 0.05, 64, 40_000)
    assert (train.schedule, train.warmup) == ("linear", 2400)
    assert set(range(21, 41)) < set(config.evaluate.lengths)
    addition = next(c for c in sweep if c["task.name"] == "addition")
    assert addition["task.length_max"] == 8
    assert set(range(9, 17)) < set(addition["evaluate.lengths"])


@pytest.mark.parametrize(("name", "paper_name"), [("huang", "Huang"), ("kazemnejad", "Kazemnejad")])
def test_every_published_number_has_its_cell(name, paper_name):
    runs = cells(name, "paper")
    have = {}
    for run in runs:
        options = " ".join(f"{k}={v}" for k, v in run.task.options.items() if k in ("variant", "order"))
        key = (run.task.name, options, run.model.encoding.name, run.positions.policy, str(run.task.length_max))
        have[key] = set(run.evaluate.lengths)
    with (ROOT / "attnjax" / "report" / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"].startswith(paper_name)]
    assert len(rows) > 30
    for row in rows:
        key = tuple(row[k] for k in ("task", "options", "encoding", "policy", "trained"))
        assert set(range(int(row["low"]), int(row["high"]) + 1)) <= have[key], key


def test_seeds_and_rates_train_as_one_population():
    config = load("ruoss:paper").config
    alike = [c for c in changes("ruoss", "paper") if c["task.name"] == "parity_check"]
    alike = [c for c in alike if c["model.encoding"]["name"] == "nope"]
    assert len(alike) == 30
    assert len({population_key(parse(override(config, c))) for c in alike[::7]}) == 1


def parameters(name, word, **wanted):
    config = load(f"{name}:{word}").config
    for change in changes(name, word):
        run = parse(override(config, {**change, "evaluate.lengths": [60]}))
        found = {"task": run.task.name, "encoding": run.model.encoding.name, "policy": run.positions.policy}
        if {**found, **wanted} == found and run.task.options.get("variant", "cmc") == "cmc":
            return describe(run)["parameters"]
    raise AssertionError(wanted)


BLOCKS = 5 * (4 * 64 * 64 + 2 * 64 * 256 + 256 + 64 + 2 * 2 * 64)


def test_parameters_of_ruoss():
    assert BLOCKS == 248_640
    # 2 symbols and the empty token are read, and could be answered.
    both = 3 * 64 + 64 * 3 + 3
    wanted = {"task": "reverse_string"}
    count = lambda name, policy="arange": parameters("ruoss", "short", encoding=name, policy=policy, **wanted)
    assert count("rope") == BLOCKS + both
    assert count("transformer_xl") == BLOCKS + both + 5 * (4096 + 128)
    assert count("learned") == BLOCKS + both + 1500 * 64
    assert count("learned", "randomized") == BLOCKS + both + 2048 * 64


def test_parameters_of_huang_and_kazemnejad():
    # A GPT-2 layer of width 16; 2 bits and 4 special tokens; a table of 153 positions.
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 64 + 64 + 16 + 2 * 32
    assert parameters("huang", "smoke", task="binary_majority", encoding="learned") == layer + 32 + 6 * 16 + 153 * 16
    assert parameters("huang", "smoke", task="binary_majority", encoding="nope") == layer + 32 + 6 * 16
    # A T5-base layer; 100 symbols and 4 special tokens; one bias table of 12 heads x 32 buckets for all layers.
    body = 12 * (4 * 768 * 768 + 2 * 768 * 3072 + 2 * 768) + 768
    assert parameters("kazemnejad", "paper", task="copy", encoding="nope") == body + 104 * 768
    assert parameters("kazemnejad", "paper", task="copy", encoding="t5") == body + 104 * 768 + 12 * 32


def test_no_two_bases_of_theta_share_a_wavelength_that_training_or_tests_could_tell():
    """Those below 64 positions turn twice and more in training, those above 2,048 a quarter at most in the longest test."""
    bases = {change["model.encoding"]["options"]["theta"] for change in changes("theta", "")}
    found = {base: [2 * math.pi * base ** (pair / 8) for pair in range(8)] for base in bases}
    between = {base: [wave for wave in waves if 64 < wave < 2048] for base, waves in found.items()}
    apart = [
        abs(math.log(one / other))
        for first, second in itertools.combinations(sorted(bases), 2)
        for one, other in itertools.product(between[first], between[second])
    ]
    assert len(bases) == 5
    assert min(apart) > math.log(1.1)
    past = {base: [round(wave) for wave in waves if 128 < wave < 512] for base, waves in found.items()}
    assert past == {150: [144, 269, 504], 2500: [314], 10_000: [199], 80_000: [433], 600_000: [175]}
