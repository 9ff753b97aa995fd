"""From trained runs to records: R2 of probes of every layer, the use of every rotary frequency, scores against distance.

Windows are of the test split, of twice the trained length T: probes are fitted at positions below T and tested there and
beyond. What positions add to a logit is measured below T: the bias that the encoding learned or has or, under RoPE, the mean
logit of queries and keys that far apart, both less their value at distance 0. Nothing is trained.
"""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnjax.config import encoding_name
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.positions import Remapped, RoPE
from attnjax.records import jsonl
from attnjax.sweep import load as load_sweep
from attnjax.tasks import Text
from attnjax.typing import Float, Int
from experiments import recorded
from experiments.head_pruning.measuring import text_name, windows
from experiments.reading_positions.curves import bias_curves, has_curve
from experiments.reading_positions.probes import Probe, position_probe
from experiments.reading_positions.rotary import frequency_use, mean_scores, reach, rotary_encoding

Record = dict[str, Any]
KEY = 2203_16634
"""Of the windows: the same bytes for every run of one text and one trained length."""


def measure_sweep(runs: pathlib.Path, path: pathlib.Path, documents: int, say: Callable[[str], None] = print) -> None:
    """Append the records of every trained run that the file does not hold yet.

    Raises ValueError where the folder holds no sweep or nothing that was trained, for several cells of one encoding, for runs
    that are no decoders of text, for
    fewer documents than a probe needs, and where the file holds records of another protocol.
    """
    store = load_sweep(runs)
    trained = [entry for entry in store.runs if store.status(entry.run).state == "done"]
    if not trained:
        raise ValueError(f"{runs} holds no run that is done; train the {len(store.runs)} runs of its sweep first")
    recorded.check_cells(runs, ((encoding_name(store.config(one.run).model), one.cell) for one in trained))
    tables = recorded.begin(path, {"kind": "protocol", "sweep": store.name, "documents": documents})
    there = {record["run"] for record in tables if record.get("kind") == "run"}
    for entry in trained:
        if entry.run not in there:
            jsonl.append(path, *of_run(load(store.directory(entry.run)), documents))
            say(f"{entry}: measured")


def of_run(subject: LoadedModel, documents: int) -> list[Record]:
    """Everything about one run. Raises ValueError for one that is no decoder of text."""
    run, task = subject.run, subject.task
    if run is None or not isinstance(task, Text) or run.task.form != "decoder":
        raise ValueError(f"{subject.name}: positions are read from decoders of text, trained here")
    length, model = run.task.length_max, run.model
    common = {"run": subject.name, "encoding": encoding_name(model), "seed": run.seed}
    tokens = windows(task.for_split("test"), 2 * length, documents, KEY)
    probes = position_probe(subject, tokens, length, run.seed)
    found = [{"kind": "probe", **common, "of": of, **_scores(one)} for of, one in probes._asdict().items()]
    found += [{"kind": kind, **common, **numbers} for kind, numbers in _of_encoding(subject, tokens[:, :length])]
    about = {"trained": length, "steps": run.train.steps, "layers": model.layers, "heads": model.heads}
    about |= {"model": model.model, "text": text_name(task)}
    # At the end: a run whose records were cut off by a crash is measured again.
    return [*found, {"kind": "run", **common, **about}]


def _scores(probe: Probe) -> Record:
    beyond = [] if probe.beyond is None else probe.beyond.value.tolist()
    return {"within": probe.within.value.tolist(), "beyond": beyond, "penalty": probe.penalty.tolist()}


def _of_encoding(subject: LoadedModel, tokens: Int[np.ndarray, "B T"]) -> Iterator[tuple[str, Record]]:
    """The frequencies in use, where there are any, and scores against distance, where positions alone have one."""
    encodings, T = subject.config.encodings, tokens.shape[1]
    distances = np.unique(np.geomspace(1, T - 1, 16).astype(int) - 1)
    if all(isinstance(encoding, RoPE) and not isinstance(encoding, Remapped) for encoding in encodings):
        angles = reach(rotary_encoding(encodings[0]), subject.config.sizes.head_dim, T, 2 * T)
        use = frequency_use(subject, tokens)
        yield "rotary", {"frequency": angles.frequency, "leaves": angles.leaves, "use": use}
        yield "scores", _less_first(distances, mean_scores(subject, tokens)[..., distances])
    elif all(map(has_curve, encodings)):
        yield "scores", _less_first(distances, bias_curves(subject, distances, T - 1))


def _less_first(distances: Int[np.ndarray, " X"], scores: Float[np.ndarray, "L N X"]) -> Record:
    return {"distance": distances, "score": scores - scores[..., :1]}
