"""docs/reliability.md has a test in every row, and every test that it names is there."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = [
    line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|") and not line.startswith("|---")
]
ROWS = [[cell.strip() for cell in row] for row in ROWS if row[-1].strip() != "test"]


def functions(path: pathlib.Path) -> dict[str, bool]:
    """The tests of a file, and whether they are left to the nightly run as a whole."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_all = "pytest.mark.slow" in [
        ast.unparse(one)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        for one in node.value.elts
    ]
    return {
        node.name: of_all or "pytest.mark.slow" in [ast.unparse(one) for one in node.decorator_list]
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def test_no_cell_is_empty():
    assert len(ROWS) > 60
    assert [row for row in ROWS if len(row) != 4 or not all(row)] == []


def test_every_test_is_there():
    named = [re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1]) for row in ROWS]
    assert [row[-1] for row, found in zip(ROWS, named) if found is None] == []
    missing = [found[0] for found in named if found and found[2] not in functions(ROOT / found[1])]
    assert missing == []


def test_what_is_left_to_the_nightly_run_is_marked():
    named = {row[-1]: re.fullmatch(r"`(.+)::(.+)`", row[-1]) for row in ROWS}
    nightly = {row for row, found in named.items() if found and functions(ROOT / found[1])[found[2]]}
    assert {row[-1] for row in ROWS if "(nightly" in row[1]} == nightly


def test_every_fault_and_class_of_attack_has_a_row():
    told = {name for row in ROWS for name in re.findall(r"[FS]\d+", row[0])}
    assert told >= {f"F{number}" for number in range(1, 39)} | {f"S{number}" for number in range(1, 17)}
