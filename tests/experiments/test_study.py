"""Pages of experiments: tables in Markdown, and the places of a README that they fill."""

import pandas as pd
import pytest

from experiments.study import fill, markdown


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
