"""How differences from transformers are counted; `tests/models/test_parity.py` has the numbers of transformers."""

import numpy as np
import pytest

from experiments.parity import __main__ as parity


def test_differences_are_relative_and_gradients_to_a_thousandth_of_the_largest():
    valid = np.array([[True, False]])
    peer = np.array([[[2.0], [1.0]]]), np.array(4.0), {"a": np.array([10.0]), "model.b": np.array([0.0])}
    mine = (
        np.array([[[1.0], [9.0]]]),
        np.array(5.0),
        {"a": np.array([9.0]), "b": np.array([0.001]), "c": np.array([0.02])},
    )
    found = parity.differences(mine, peer, valid)
    expected = {"output": 0.5, "loss": 0.25, "gradient of a": 0.1, "gradient of b": 0.1, "gradient of c": 2.0}
    assert found == pytest.approx(expected)
