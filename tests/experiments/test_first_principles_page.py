"""The page of the worked examples: made from its record, which is complete; the command, and what it refuses.

Nothing here trains or times: what was measured is read from the committed record, and how it was measured is checked by hand.
"""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.first_principles import page, record, recurrence, words
from experiments.first_principles.__main__ import main
from experiments.first_principles.sections import NAMES, SECTIONS

pytestmark = pytest.mark.slow
FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "first_principles"


def committed(name: str) -> dict:
    return record.read(FOLDER)[name]["numbers"]


# What was measured. -------------------------------------------------------------------------------------------------


def test_the_lstm_is_the_published_one_and_its_forget_bias_is_where_it_belongs(monkeypatch):
    monkeypatch.setattr(recurrence, "CHANNELS", 3)
    call, params = recurrence.lstm(0, 1.0)
    w_i, w_h = (np.asarray(params[name]["kernel"][...], np.float64) for name in ("dense_i", "dense_h"))
    x = np.random.default_rng(0).normal(size=(1, 4, 3))
    sigmoid = lambda a: 1 / (1 + np.exp(-a))
    c, h, out = np.zeros(3), np.zeros(3), []
    for token in x[0]:
        i, f, g, o = np.split(token @ w_i + h @ w_h, 4)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    np.testing.assert_allclose(call(params, jnp.asarray(x, jnp.float32))[0], out, atol=1e-6)


@pytest.mark.parametrize("kind", ["attention", "lstm"])
def test_one_causal_pass_has_the_gradients_of_all_lengths(kind, monkeypatch):
    for name, value in (("CHANNELS", 4), ("HEADS", 2), ("REACH", 4), ("SEEDS", 2)):
        monkeypatch.setattr(recurrence, name, value)
    make = recurrence.kinds()[kind]
    norms = recurrence.gradients(make)
    x = jax.random.normal(jax.random.key(0), (2, 4, 4))
    for seed in range(2):
        call, params = make(seed)
        whole = jax.jacrev(lambda x, call=call, params=params: call(params, x[None])[0, -1])
        for T in (1, 3):
            derivative = np.asarray(whole(x[seed, :T]))[:, 0]
            np.testing.assert_allclose(norms[seed, T - 1], np.linalg.norm(derivative) / 2, rtol=1e-5)


def test_the_record_of_what_was_measured_is_complete():
    held = committed("training")
    for case in ("with", "without"):
        assert np.shape(held[case]["loss"]) == (len(held["seeds"]), len(held["steps"]) - 1)
        for name in ("entropy", "top"):
            assert np.shape(held[case][name]) == (len(held["seeds"]), len(held["steps"]))
            assert 0 <= np.min(held[case][name]) <= np.max(held[case][name]) <= 1
    # Before the first step the factor is the only difference.
    assert np.max(np.array(held["without"]["entropy"])[:, 0]) < np.min(np.array(held["with"]["entropy"])[:, 0])
    held = committed("recurrence")
    for name in ("attention", "lstm"):
        low_to_high = np.array(held["seconds"][name])[:, [1, 0, 2]]
        assert len(low_to_high) == len(held["lengths"])
        assert (low_to_high > 0).all()
        assert (np.diff(low_to_high, axis=1) >= 0).all()
    for found_by_length in held["gradient"].values():
        assert len(found_by_length["median"]) == len(held["reach"])
    for name in (section.name for section in SECTIONS if section.measured):
        whole = record.read(FOLDER)[name]
        assert set(record.OF_MACHINE) == set(whole["machine"])
        assert len(whole["date"]) == 10


# Page, record, command. ---------------------------------------------------------------------------------------------


def test_the_committed_page_is_made_from_its_record_byte_for_byte():
    held = record.read(FOLDER)
    assert tuple(held) == NAMES
    assert page.render(held).encode() == (FOLDER / "README.md").read_bytes()


def test_figures_are_there_small_and_on_the_page():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    wanted = {f"{section.name}.png" for section in SECTIONS if section.draw is not None}
    assert {path.name for path in FOLDER.glob("*.png")} == wanted
    for name in wanted:
        data = (FOLDER / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 100_000
        assert f"]({name})" in text


@pytest.mark.slow
def test_render_draws_every_figure_again(tmp_path, capsys):
    (tmp_path / record.FILE).write_bytes((FOLDER / record.FILE).read_bytes())
    assert main(["--render", str(tmp_path)]) == 0
    made = {path.name for path in tmp_path.iterdir()} - {record.FILE}
    assert made == {"README.md", *(path.name for path in FOLDER.glob("*.png"))}
    assert (tmp_path / "README.md").read_bytes() == (FOLDER / "README.md").read_bytes()
    assert f"{len(made) - 1} figures" in capsys.readouterr().out


def test_some_sections_are_computed_and_the_others_kept(tmp_path, capsys):
    record.write(tmp_path, {"parameters": record.read(FOLDER)["parameters"]})
    assert main(["--only", "projection", "--out", str(tmp_path)]) == 0
    assert "q[0] = 0.20 + 0.20 - 0.03 - 0.16 = 0.21" in capsys.readouterr().out
    assert list(record.read(tmp_path)) == ["projection", "parameters"]
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "12,288" in text
    assert (tmp_path / "projection.png").exists()
    assert not list(tmp_path.glob("*.new"))


def refused(capsys, *arguments: str) -> str:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.strip()


def test_an_unknown_section_is_one_line_with_the_choices(tmp_path, capsys):
    said = refused(capsys, "--only", "rotary", "nonsense", "--out", str(tmp_path / "new"))
    assert said == f"first_principles: --only must name some of {', '.join(NAMES)}, got 'nonsense'"
    assert not (tmp_path / "new").exists()


BAD_RECORDS = {
    "not JSON": ("{", "is not JSON"),
    "another file": ('{"schema": 9, "sections": {}}', "must hold schema 1 and sections"),
    "a list": ("[1]", "must hold schema 1 and sections"),
    "an unknown section": ('{"schema": 1, "sections": {"poetry": {}}}', "got 'poetry'"),
    "no numbers": ('{"schema": 1, "sections": {"masks": {"jax": "0"}}}', "section 'masks' must hold its numbers"),
    "a number missing": ('{"schema": 1, "sections": {"masks": {"numbers": {}}}}', "section 'masks' is not what this"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_bad_record_is_one_line(case, tmp_path, capsys):
    text, said = BAD_RECORDS[case]
    (tmp_path / record.FILE).write_text(text)
    assert said in refused(capsys, "--render", str(tmp_path))
    assert not (tmp_path / "README.md").exists()


def test_a_folder_without_a_record_and_a_file_in_its_place(tmp_path, capsys):
    assert "record.json cannot be read" in refused(capsys, "--render", str(tmp_path))
    (tmp_path / "file").write_text("")
    assert "file" in refused(capsys, "--only", "projection", "--out", str(tmp_path / "file"))


def test_names_in_a_record_are_shown_and_not_obeyed():
    held = {"training": {**record.read(FOLDER)["training"]}}
    held["training"]["machine"] = {**held["training"]["machine"], "processor": "<b>*x*</b> [y](z)"}
    assert "\\<b\\>\\*x\\*\\</b\\> \\[y\\](z)" in page.render(held)


def test_what_a_record_holds():
    assert record.rounded({"a": (1, np.float32(0.1), math.nan)}) == {"a": [1, 0.1, None]}
    with pytest.raises(TypeError, match="plain numbers and texts, got ndarray"):
        record.rounded({"a": np.zeros(2)})
    assert json.loads(record.laid_out({"a": {"b": [1.5, None]}, "c": {}})) == {"a": {"b": [1.5, None]}, "c": {}}


def test_words():
    assert words.grid([[1, 22.5]], ["x"], ["a", "b"], 1) == "      a     b\nx   1.0  22.5"
    assert words.signed_sum([0.1, -0.15, 0.24]) == "0.10 - 0.15 + 0.24"
    assert [words.seconds(x) for x in (4.124e-4, 0.01234, 1.234)] == ["0.412 ms", "12.3 ms", "1,230 ms"]
    assert [words.small(x) for x in (1.234e-17, 0.0, None)] == ["1.2e-17", "0", "\N{EN DASH}"]
