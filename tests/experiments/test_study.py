"""Pages of experiments: tables in Markdown, and the places of a README that they fill."""

import pandas as pd
import pytest

from experiments.study import fill, markdown


def test_fill_replaces_tables_and_single_values_and_is_stable(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("A\n\n<!-- table:a -->old\nlines<!-- /table:a -->\n\nB: <!-- table:b -->1<!-- /table:b -->.\n")
    tables = {"a": "| x |\n|---|\n| \\1 |\n", "b": "2.5"}
    for _ in range(2):
        fill(page, tables)
        assert page.read_text() == (
            "A\n\n<!-- table:a -->\n\n| x |\n|---|\n| \\1 |\n\n<!-- /table:a -->\n\nB: <!-- table:b -->2.5<!-- /table:b -->.\n"
        )


@pytest.mark.parametrize("tables", [{}, {"a": "1", "c": "2"}])
def test_fill_refuses_tables_without_a_place_and_places_without_a_table(tmp_path, tables):
    page = tmp_path / "README.md"
    page.write_text("<!-- table:a -->1<!-- /table:a -->")
    with pytest.raises(ValueError, match=r"README.md.*\['a'\]"):
        fill(page, tables)


def test_markdown_keeps_integers_and_escapes_bars():
    frame = pd.DataFrame({"name": ["a|b", None], "runs": [3, 4], "loss": [0.25, 1.0]})
    rows = ["| name | runs | loss |", "|---|---:|---:|", "| a\\|b | 3 | 0.25 |", "|  | 4 | 1.00 |"]
    assert markdown(frame, "{:.2f}".format).splitlines() == rows
