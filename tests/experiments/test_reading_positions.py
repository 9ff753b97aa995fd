"""The experiment on what models know of positions: its page is what its records say, and its records what the models do."""

import pathlib
import shutil

import numpy as np
import pytest

from attnjax.evaluation.loaded_model import load
from attnjax.records import jsonl
from attnjax.sweep import plan, prepare, run_here, vary
from attnjax.train import train
from experiments.reading_positions import page
from experiments.reading_positions.__main__ import main
from experiments.reading_positions.curves import bias_curves
from experiments.reading_positions.results import read, results

COMMITTED = pathlib.Path(__file__).parents[2] / "experiments" / "reading_positions"
CODE = "def add(first, second):\n    return [first, (second + first)]\n\n\n"


def test_the_page_is_made_anew_from_the_records(tmp_path):
    shutil.copy(COMMITTED / "records.jsonl", tmp_path)
    made = page.render(tmp_path)
    assert [path.name for path in made] == ["README.md", "figure.png", "figure.svg"]
    assert made[0].read_bytes() == (COMMITTED / "README.md").read_bytes()


def made_up(encoding: str, seed: int, first: float, within: float, beyond: float, **more) -> list[dict]:
    """The records of a run of one layer and one head."""
    common = {"run": f"{encoding}{seed}", "encoding": encoding, "seed": seed}
    scores = {"within": [first, within], "beyond": [beyond, 0.0], "penalty": [1.0, 1.0]}
    controls = [
        {"kind": "probe", **common, "of": of, **scores, "within": [0.0, 0.1]} for of in ("untrained", "shuffled")
    ]
    rest = [{"kind": kind, **common, **numbers} for kind, numbers in more.items()]
    about = {"trained": 8, "steps": 2, "layers": 1, "heads": 1, "model": 4}
    return [
        {"kind": "probe", **common, "of": "trained", **scores},
        *controls,
        *rest,
        {"kind": "run", **common, **about},
    ]


def test_numbers_by_hand():
    rotary = {"frequency": [1.0, 0.1, 0.0], "leaves": [False, True, False], "use": [[[3.0, 1.0, 0.0]]]}
    tables = made_up("rope", 0, 0.5, 0.9, 0.2, rotary=rotary) + made_up("rope", 1, 0.5, 0.7, 0.4, rotary=rotary)
    tables += made_up("nope", 0, 0.2, 0.3, -2.0)
    unfinished = made_up("alibi", 0, 1.0, 1.0, 1.0)[:-1]
    found = results([{"kind": "protocol", "sweep": "mine", "documents": 9}, *tables, *unfinished])
    nope, rope = found.cells
    assert (nope.encoding, rope.encoding) == ("nope", "rope")
    assert rope.within["trained"].tolist() == [[0.5, 0.9], [0.5, 0.7]]
    assert rope.leaving.value == 0.25
    assert nope.leaving is None
    assert page.claim(found) == (
        "At the input of the last layer a linear map reads the position, within trained lengths, with R2 of RoPE 0.50 "
        "(range 0.50 to 0.50), NoPE 0.20 (no interval); at initialisation R2 there is RoPE 0.00, NoPE 0.00. After that "
        "layer R2 is RoPE 0.80, NoPE 0.30. Beyond trained lengths, at its input, it is above 0 under RoPE. Under RoPE 1 of 3 "
        "frequencies leave training: they carry 0.25 (range 0.25 to 0.25) of the use, and equal use of all would give them "
        "0.33."
    )
    text = page.rotary_text(rope)
    assert "| layer | 6 | 63 * | inf |\n" in text
    assert "| 0 | 0.75 | 0.25 | 0.00 |\n" in text
    assert page.rotary_text(nope) == ""
    with pytest.raises(ValueError, match="^no run was measured to its end$"):
        results(unfinished)


@pytest.mark.slow
def test_the_records_are_what_the_models_do(tmp_path, capsys):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        (text / f"f{number}.py").write_text(f"x = {number}\n" + CODE * 3)
    config = {
        "name": "tiny",
        "task": {"name": "text", "options": {"path": str(text)}, "length_min": 16, "length_max": 16},
        "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8},
        "train": {"steps": 1, "batch": 2, "log_every": 0, "checkpoint_every": 0},
        "evaluate": {"lengths": [], "validation_lengths": []},
    }
    store = prepare(tmp_path / "runs", "tiny", plan(config, vary("model.encoding", ["rope", "t5"])))
    run_here(store, train)
    arguments = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--documents", "8"]
    assert main(arguments) == 0
    first = (tmp_path / "out" / "records.jsonl").read_bytes()
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "of twice" not in readme
    assert "2 decoders of bytes of a text of the user, 1 layers" in readme
    assert main(arguments) == 0
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == first, "nothing is measured twice"
    rope, t5 = read(tmp_path / "out" / "records.jsonl").cells
    assert rope.within["trained"].shape == (1, 2)
    assert (rope.within["shuffled"] < 0.5).all()
    np.testing.assert_allclose(rope.share.sum(-1), 1)
    entry = next(one for one in store.runs if "t5" in str(one))
    curves = bias_curves(load(store.directory(entry.run)), t5.distance)
    np.testing.assert_allclose(t5.score[0], curves - curves[..., :1], atol=1e-6)
    assert t5.share is None
    jsonl.append(tmp_path / "out" / "records.jsonl", {"kind": "run", "run": "1"})
    assert main(["--render", str(tmp_path / "out")]) == 2
    assert "records.jsonl holds what is no record of positions: KeyError('encoding')" in capsys.readouterr().err


def test_mistakes_are_sentences(tmp_path, capsys):
    store = prepare(tmp_path / "runs", "tiny", plan({"name": "tiny", "task": {"name": "copy"}}))
    assert main(["--runs", str(store.root), "--out", str(tmp_path / "out")]) == 2
    assert "runs holds no run that is done; train the 1 runs of its sweep first" in capsys.readouterr().err
    assert main(["--render", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no records.jsonl: measure first" in capsys.readouterr().err
