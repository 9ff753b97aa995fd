"""How differences from transformers are counted; `tests/models/test_parity.py` has the numbers of transformers."""

import numpy as np
import pytest
from flax import nnx

from attnjax.models import MODELS, Loaded, load, save
from experiments.parity import __main__ as parity

SIZES = {"vocab_size": 17, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def llama(tmp_path):
    spec = MODELS["llama"].config(SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 16})
    return load(save(Loaded(MODELS["llama"].build(spec, nnx.Rngs(0)), spec, MODELS["llama"]), tmp_path / "llama"))


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


@pytest.mark.slow
def test_our_gradients_are_slopes_of_the_loss_by_published_names(llama, tmp_path):
    given = parity.inputs(llama, 8, 0)
    assert given["valid"].tolist() == [[True] * 8, [False] * 2 + [True] * 6]
    assert given["positions"][1].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    output, loss, gradients = parity.ours(llama, given)
    assert output.shape == (2, 8, 17)
    kernel = nnx.state(llama.model)["stack"]["blocks"][0]["feed_forward"]["w_out"]
    before, moved = kernel[...], []
    for step in (1e-2, -1e-2):
        kernel[...] = before.at[3, 2].add(step)
        moved.append(float(parity.ours(llama, given)[1]))
    slope = (moved[0] - moved[1]) / 2e-2
    assert gradients["model.layers.0.mlp.down_proj.weight"][2, 3] == pytest.approx(slope, rel=2e-2)
    assert float(loss) != 0


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert parity.main([str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
