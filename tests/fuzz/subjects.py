"""The genuine things that are mutated, made once at the start, and what is true of them.

sweep     two runs of different encodings: one done, one stopped at step 40 of 60
frozen    two runs as an earlier version wrote them (tests/frozen)
text      a run that reads a file, so that its folder names a path
model     a published architecture with config.json, weights and tokenizer.json
config    a JSON config
python    a Python config with a mistake
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
import shutil
from typing import Any

from tests.fuzz import pages
from tests.fuzz.warm import ROOT, Reply, Worker
from tests.train.killing import CONFIG

FROZEN = ROOT / "tests" / "frozen" / "format_1"
TRAIN = {"steps": 60, "batch": 2, "log_every": 20, "checkpoint_every": 20, "keep": 3}
SWEEP = {**CONFIG, "train": TRAIN, "evaluate": {**CONFIG["evaluate"], "every": 20}}
TEXT = {
    "name": "letters",
    "task": {"name": "text", "options": {"path": "../text.txt"}, "length_min": 4, "length_max": 8},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": {"name": "nope"}},
    "train": TRAIN,
    "evaluate": {
        "lengths": [6, 24],
        "validation_lengths": [8],
        "count": 4,
        "batch": 4,
        "bucket_sizes": [24],
        "every": 20,
    },
}
OVER = {"sweep": ["model.encoding=rope,nope"], "frozen": ["seed=0,1"], "text": []}
STEPS = (20, 40, 60)
KEPT = ("config.json", "status.json", "results.jsonl")


def _sets() -> Any:
    return collections.defaultdict(set)


@dataclasses.dataclass
class Facts:
    """What is true of the runs of a subject.

    Args:
      states: the fingerprints of the parameters at each step, by run; several where an earlier version trained elsewhere.
      maps: the attention weights that a page shows at each step, the same way.
      outcomes: the fingerprints with which a run may end: on this machine, and as its own records say.
      results: every value measured, by run and metric.
      fields: what a line of results has.
      ends: state and step of each run before any mutation.
      files: the digests of some of its files before any mutation, by run and name.
    """

    states: dict[str, dict[int, set[str]]] = dataclasses.field(default_factory=lambda: collections.defaultdict(_sets))
    maps: dict[str, dict[int, set[Any]]] = dataclasses.field(default_factory=lambda: collections.defaultdict(_sets))
    outcomes: dict[str, set[str]] = dataclasses.field(default_factory=_sets)
    results: dict[tuple[str, str], set[float]] = dataclasses.field(default_factory=_sets)
    fields: set[str] = dataclasses.field(default_factory=set)
    ends: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    files: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)


def make(worker: Worker, home: pathlib.Path) -> dict[str, Facts]:
    """Everything in `home`: a folder per subject, `work` beside them as each case has it; and the facts."""
    (home / "work").mkdir(parents=True)
    (home / "sweep.json").write_text(json.dumps(SWEEP))
    (home / "text.json").write_text(json.dumps(TEXT))
    shutil.copyfile(next(FROZEN.glob("*/config.json")), home / "frozen.json")
    (home / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 100)
    shutil.copytree(FROZEN, home / "frozen")
    (home / "config").mkdir()
    (home / "config" / "config.json").write_text(json.dumps(SWEEP))
    (home / "python").mkdir()
    _good(worker.call("tests.fuzz.programs:model", ["../model"], home / "work", limit=300))
    return {name: _sweep(worker, home, name) for name in OVER}


def command(name: str, out: str) -> list[str]:
    """The command that trains, or goes on with, a sweep; runs of one shape apart, as they were made."""
    over = [word for one in OVER[name] for word in ("--over", one)]
    return ["sweep", f"../{name}.json", *over, "--out", out, "--population", "1"]


def _sweep(worker: Worker, home: pathlib.Path, name: str) -> Facts:
    """Train without and with an interruption, and look at every checkpoint on its own."""
    facts, full, work = Facts(), home / f"{name}-full", home / "work"
    if name != "frozen":
        _good(worker.call("tests.fuzz.programs:make", [f"../{name}.json", f"../{name}", *OVER[name]], work, limit=300))
    _good(worker.call("attnjax.cli:main", command(name, f"../{full.name}"), work, limit=300))
    resumed = home / f"{name}-resumed"
    shutil.copytree(home / name, resumed)
    _good(worker.call("attnjax.cli:main", command(name, f"../{resumed.name}"), work, limit=300))
    for folder in (home / name, full, resumed):
        for run in sorted(path.parent for path in folder.glob("*/config.json")):
            _note(facts, run)
            _look(worker, facts, run, home)
    for run in (path.parent for path in (home / name).glob("*/config.json")):
        status = json.loads((run / "status.json").read_text())
        facts.ends[run.name] = (status["state"], status["step"])
        facts.files[run.name] = {file: digest(run / file) for file in KEPT}
    return facts


def _note(facts: Facts, run: pathlib.Path) -> None:
    """What the records of an untouched run say."""
    manifest = json.loads((run / "manifest.json").read_text())
    if "parameters_sha256" in manifest:
        facts.outcomes[run.name].add(manifest["parameters_sha256"])
    for line in (run / "results.jsonl").read_text().splitlines():
        one = json.loads(line)
        facts.fields = set(one)
        facts.results[run.name, one["metric"]].add(one["value"])


def _look(worker: Worker, facts: Facts, run: pathlib.Path, home: pathlib.Path) -> None:
    """Fingerprint and page of each checkpoint that was not seen before, in a copy that has no other."""
    work, page = home / "work", home / "alone.html"
    for step in (step for step in STEPS if (run / "checkpoints" / str(step)).is_dir()):
        alone = home / "alone" / run.name
        shutil.copytree(run, alone)
        for other in (alone / "checkpoints").iterdir():
            if other.name != str(step):
                shutil.rmtree(other)
        reply = _good(worker.call("tests.fuzz.programs:load", [str(alone)], work, limit=300))
        fingerprint = json.loads(reply.output.splitlines()[-1])["fingerprint"]
        if fingerprint not in facts.states[run.name][step]:
            facts.states[run.name][step].add(fingerprint)
            _good(worker.call("attnjax.cli:main", ["explore", str(alone), "--out", str(page)], work, limit=300))
            facts.maps[run.name][step].add(pages.maps(pages.data(page)["runs"][0]))
        shutil.rmtree(alone)


def digest(path: pathlib.Path) -> str:
    """The sha256 of an ordinary file of moderate size."""
    return hashlib.sha256(readable(path)).hexdigest()


def readable(path: pathlib.Path) -> bytes:
    """The content of an ordinary file of at most a mebibyte that may be read; nothing otherwise."""
    try:
        plain = path.is_file() and not path.is_symlink() and not path.parent.is_symlink()
        return path.read_bytes() if plain and path.stat().st_size <= 2**20 else b""
    except OSError:
        return b""


def _good(reply: Reply) -> Reply:
    if reply.status != 0:
        raise RuntimeError(f"a subject could not be made: {reply}")
    return reply
