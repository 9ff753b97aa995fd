"""Weights as text: read back by hand, within the error that is promised."""

import base64
import re

import numpy as np
import pytest

from attnjax.explore.contents import ERROR, pack, packed_size
from tests.explore.synthetic import random_weights


@pytest.mark.parametrize("causal", [True, False])
def test_every_weight_comes_back_within_the_error(causal):
    weights = random_weights((3, 2, 17), causal=causal)
    text = pack(weights, causal=causal)
    assert len(text) == packed_size(3, 2, 17, causal=causal)
    whole = iter(np.frombuffer(base64.b64decode(text), "<u2"))
    worst = 0.0
    for map_ in weights.reshape(6, 17, 17):
        for i in range(17):
            for j in range(i + 1 if causal else 17):
                worst = max(worst, abs(next(whole) / 65535 - map_[i, j]))
    assert next(whole, None) is None
    assert 0.5 * ERROR < worst <= ERROR * (1 + 1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.01, 1.1])
def test_what_are_no_weights_is_refused(bad):
    weights = random_weights((1, 1, 3))
    weights[0, 0, 2, 1] = bad
    with pytest.raises(ValueError, match=re.escape("attention weights must lie in 0 .. 1; those of this model do not")):
        pack(weights, causal=True)
