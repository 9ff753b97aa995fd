"""What a run's encoding is called wherever runs are told apart."""

import pytest

from attnjax.config import encoding_name, parse

ROPE, WIDE, ALIBI = "rope", {"name": "rope", "options": {"theta": 500.0}}, "alibi"


@pytest.mark.parametrize(
    ("encoding", "name", "detailed"),
    [
        (ROPE, "rope", "rope"),
        (WIDE, "rope", "rope(theta=500.0)"),
        ([ALIBI, ROPE, ALIBI], "alibi+rope", "alibi+rope"),
        ([ROPE, WIDE, ROPE], "rope", "rope+rope(theta=500.0)"),
    ],
)
def test_each_distinct_encoding_is_named_once_in_order(encoding, name, detailed):
    model = parse({"model": {"encoding": encoding, "layers": 3}}).model
    assert encoding_name(model) == name
    assert encoding_name(model, options=True) == detailed
