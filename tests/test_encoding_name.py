"""Names of encodings: those that a run is told apart by, and those that `attnjax.encoding` does not know."""

import pytest

import attnjax as aj
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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rop", {}, r"'rop' .*'rope'.*nope, sinusoidal, learned, rope"),
        ("RoPE", {}, "'RoPE'.*nope"),
        ("zzz", {}, "'zzz'; choose from nope"),
        ("rope", {"thetta": 5.0}, "'rope' .*'thetta' .*'theta'.*theta, layout"),
        ("nope", {"theta": 5.0}, "'nope' .*'theta'.*none"),
        ("learned", {}, "'learned' .*'length'"),
    ],
)
def test_names_and_options_that_are_unknown(name, options, message):
    with pytest.raises(ValueError, match=message):
        aj.encoding(name, **options)
