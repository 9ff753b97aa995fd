"""Golden models: the arrays of a case, and our model with the same weights."""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from attnjax.attention import Mask
from attnjax.models import MODELS, Architecture, Spec, Weight, with_fields
from attnjax.models.param_paths import abstract, parameters, with_parameters
from attnjax.modules import EncoderDecoder
from tests.golden import drawn

FOLDER = Path(__file__).parent.parent / "golden" / "models"
CASES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))


class Case(NamedTuple):
    """What a file of golden arrays holds, and the architecture of its config."""

    arrays: dict[str, np.ndarray]
    json: dict[str, Any]
    architecture: Architecture
    spec: Spec

    def table(self) -> tuple[Weight, ...]:
        return self.architecture.weights(self.spec)

    def name(self, weight: Weight) -> str:
        """Which of its names a tensor has in the file."""
        return next((name for name in weight.names if f"grad {name}" in self.arrays), weight.names[0])

    def drawn(self, weight: Weight) -> np.ndarray:
        """The parameter of a row."""
        return weight.to_ours(drawn.weight(self.name(weight), weight.shape))


@functools.cache
def case(name: str, dtype: str = "float32") -> Case:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        arrays = dict(file)
    content = json.loads(str(arrays["config"]))
    architecture = MODELS[content["model_type"]]
    return Case(
        arrays, content, architecture, with_fields(architecture.config(content), dtype=dtype, param_dtype=dtype)
    )


def model(one: Case) -> Any:
    """Our model of a case, with the weights of the file."""
    empty = abstract(one.architecture, one.spec)
    given = {weight.path: one.drawn(weight) for weight in one.table()}
    return with_parameters(empty, {path: jnp.asarray(given[path], p.dtype) for path, p in parameters(empty).items()})


def logits(model: Any, arrays: dict[str, np.ndarray]) -> Any:
    """What the model makes of the tokens of a file."""
    mask = Mask(k_valid=arrays["mask"])
    if isinstance(model, EncoderDecoder):
        target = Mask(k_valid=arrays["target_mask"])
        return model(arrays["source"], arrays["target"], source_mask=mask, target_mask=target)
    options = {"types": arrays["types"]} if "types" in arrays else {"pos": positions(arrays)}
    return model(arrays["tokens"], mask=mask, **options)


def positions(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return arrays["pos"].astype(np.int32)


def visible(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Where logits mean something: what is not padding."""
    return arrays["target_mask"] if "target_mask" in arrays else arrays["mask"]
