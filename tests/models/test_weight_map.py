"""Tables of weights: every parameter once, views that can be undone, and what an ablation keeps."""

import numpy as np
import pytest

from attnjax.models import with_fields
from attnjax.models.matching import groups
from attnjax.models.param_paths import abstract, parameters
from attnjax.positions import ALiBi, Learned, NoPE, T5Bias, compose
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


ABLATIONS = {"alibi": ALiBi(symmetric=True), "none": NoPE(), "longer": compose(Learned(20), T5Bias(bidirectional=True))}


@pytest.mark.quick("gpt2-alibi", "t5-longer", "llama-none", "transformer-alibi")
@pytest.mark.parametrize("encoding", ABLATIONS)
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "bloom", "llama", "smollm3", "transformer"])
def test_another_encoding_keeps_the_other_weights(name, encoding):
    case = published.case(name)
    spec = with_fields(case.spec, encoding=ABLATIONS[encoding])
    found = parameters(abstract(case.architecture, spec))
    paths = {row.path for row in case.architecture.weights(spec)}
    of_encoding = lambda path: "position" in path or "inputs" in path
    before = {row.path for row in case.table()}
    assert {path for path in before if not of_encoding(path)} <= paths <= found.keys()
    assert all(of_encoding(path) for path in found.keys() - paths)


def test_a_table_of_learned_positions_is_found_where_the_encoding_has_it():
    case = published.case("gpt2")
    spec = with_fields(case.spec, encoding=compose(ALiBi(), Learned(12)))
    assert ("stack", "inputs", 0, "table") in {row.path for row in case.architecture.weights(spec)}


def test_what_is_drawn_never_changes():
    """Computed once in Python's integers."""
    assert drawn.tokens("tokens", 1, 5, 13).tolist() == [[11, 8, 12, 11, 7]]
    assert drawn.uniform("a", 3).tolist() == [-0.14589738845825195, 0.7218043804168701, 0.168656587600708]
