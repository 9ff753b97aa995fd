"""Tables of weights: every parameter once, views that can be undone, and what an ablation keeps."""

import numpy as np
import pytest

from attnjax.models.matching import groups
from attnjax.models.param_paths import abstract, parameters
from tests.golden import drawn
from tests.models import published


@pytest.mark.parametrize("name", published.CASES)
def test_every_parameter_has_one_row_of_its_shape(name):
    case = published.case(name)
    found = parameters(abstract(case.architecture, case.spec))
    rows = case.table()
    assert sorted(map(str, found)) == sorted(str(row.path) for row in rows)
    for row in rows:
        assert row.to_ours(np.zeros(row.shape)).shape == found[row.path].shape, row.path


@pytest.mark.parametrize("name", published.CASES)
def test_tensors_come_back(name):
    for rows in groups(published.case(name).table()):
        tensor = drawn.weight(rows[0].names[0], rows[0].shape)
        parts = [row.to_ours(tensor) for row in rows]
        assert all(np.shares_memory(part, tensor) for part in parts)
        np.testing.assert_array_equal(rows[0].to_theirs(*parts), tensor)


def test_what_is_drawn_never_changes():
    """Computed once in Python's integers."""
    assert drawn.tokens("tokens", 1, 5, 13).tolist() == [[11, 8, 12, 11, 7]]
    assert drawn.uniform("a", 3).tolist() == [-0.14589738845825195, 0.7218043804168701, 0.168656587600708]
