"""The comparison of bfloat16 with float32: its intervals by hand, its verdicts, and the committed tables from their records."""

import numpy as np

from experiments.bfloat16.__main__ import difference


def test_the_interval_is_that_of_a_textbook():
    """Mean 3.5, standard deviation sqrt(3.5), and t(0.975, 5) = 2.5706."""
    found = difference(np.array([1.0, 2, 3, 4, 5, 6]))
    half = 2.5706 * 3.5**0.5 / 6**0.5
    np.testing.assert_allclose(found, [3.5, 3.5 - half, 3.5 + half], rtol=1e-4)
