"""Reads a published config.json: every key is used, known to change no number, or an error.

A config may have a key that its own library knows and this one does not. Ignoring it silently could load another model,
so `Reader` records which keys were read, and `finish` refuses the rest.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from attnjax.models.base import Json, Spec
from attnjax.models.ignored_keys import IGNORED_KEYS
from attnjax.modules import TransformerConfig
from attnjax.positions import LongRoPE, PositionEncoding, RoPE

LAYERS = 1_000
"""More layers than any published model has; a weight map has about ten entries per layer."""
NUMBER = 2**31 - 1

RUN_FIELDS = (
    *("dtype", "param_dtype", "implementation", "embed_std", "kernel_std", "residual_start"),
    *("attention_dropout", "residual_dropout", "embedding_dropout"),
    *("remat", "scan_layers"),
)
"""Fields of `TransformerConfig` that describe a run, not a model."""
ONLY_VALUES = (
    ("is_decoder", False),
    ("add_cross_attention", False),
    ("tie_encoder_decoder", False),
    ("cross_attention_hidden_size", None),
    ("pruned_heads", {}),
    ("quantization_config", None),
)
"""Keys that any config may have, and the only value of each that is supported."""


class Reader:
    """Reads typed values from a JSON table. A value of null counts as missing; errors name the table and the key."""

    def __init__(self, owner: str, json: Json):
        self.owner, self.json = owner, json
        self.read: set[str] = set()

    def value(self, *names: str, default: Any = ...) -> Any:
        """Returns the value of the first of these names that is present, else the default.

        Raises:
          ValueError: none is present and there is no default, or two are present and differ.
        """
        self.read.update(names)
        found = [self.json[name] for name in names if self.json.get(name) is not None]
        if any(one != found[0] for one in found):
            raise ValueError(f"{self.owner}: {' and '.join(names)} are one thing, but config.json has {found}")
        if not found and default is ...:
            raise ValueError(f"{self.owner}: config.json lacks {' or '.join(names)}")
        return found[0] if found else default

    def integer(self, *names: str, default: Any = ..., lowest: int = 1, highest: int = NUMBER) -> Any:
        """Returns a whole number in lowest .. highest."""
        rule = f"a whole number in {lowest}..{highest}"
        whole = lambda value: isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest
        return self._checked(names, default, whole, rule)

    def number(self, *names: str, default: Any = ..., zero: bool = False) -> Any:
        """Returns a finite number above 0, or of at least 0 with `zero`."""
        rule = f"a finite number {'of at least' if zero else 'above'} 0"
        fits = lambda value: _is_number(value) and (value > 0 or (zero and value == 0))
        found = self._checked(names, default, fits, rule)
        return found if found is default else float(found)

    def flag(self, *names: str, default: Any = ...) -> Any:
        """Returns a boolean."""
        return self._checked(names, default, lambda value: isinstance(value, bool), "true or false")

    def choice(self, *names: str, default: Any = ..., choices: dict[str, Any]) -> Any:
        """Returns the entry of `choices` that the value names."""
        fits = lambda value: isinstance(value, str) and value in choices
        return choices[self._checked(names, default, fits, f"one of {', '.join(choices)}")]

    def numbers(self, name: str) -> tuple[float, ...]:
        """Returns a list of finite numbers above 0 as a tuple."""
        fits = lambda value: isinstance(value, list) and all(_is_number(x) and x > 0 for x in value)
        return tuple(map(float, self._checked((name,), ..., fits, "a list of numbers above 0")))

    def per_layer(self, name: str, layers: int, *values: Any) -> list[Any] | None:
        """Returns a list with one of these values per layer; None if it is missing."""
        fits = lambda value: isinstance(value, list) and len(value) == layers and all(x in values for x in value)
        rule = f"a list of {layers}, each one of {', '.join(map(repr, values))}"
        return self._checked((name,), None, fits, rule)

    def table(self, *names: str) -> Json:
        """Returns a nested table; an empty one if it is missing."""
        return self._checked(names, {}, lambda value: isinstance(value, dict), "a table")

    def must(self, name: str, *allowed: Any) -> None:
        """Raises ValueError unless a key is missing or has one of the values that the modules can compute."""
        self.read.add(name)
        value = self.json.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise ValueError(
                f"{self.owner}: {name} must be {' or '.join(map(repr, allowed))} here, config.json has {value!r}"
            )

    def skip(self, *names: str) -> None:
        """Accepts keys that change no number of this architecture."""
        self.read.update(names)

    def finish(self) -> None:
        """Raises ValueError for a key that was not read and is not known to change no number."""
        for name, allowed in ONLY_VALUES:
            if name not in self.read:
                self.must(name, allowed)
        unknown = [name for name in self.json if name not in self.read | IGNORED_KEYS and self.json[name] is not None]
        if unknown:
            raise ValueError(
                f"{self.owner}: config.json has keys that are not known here, and might change the numbers: "
                f"{', '.join(sorted(map(str, unknown))[:20])}; remove those that do not"
            )

    def _checked(self, names: tuple[str, ...], default: Any, fits: Callable[[Any], bool], rule: str) -> Any:
        value = self.value(*names, default=default)
        if value is not default and not fits(value):
            raise ValueError(f"{self.owner}: {' or '.join(names)} must be {rule}, config.json has {value!r:.200}")
        return value


def checked_json(model_type: str, config: Callable[[Json], Spec], spec: Spec, json: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON of a spec with `model_type` added, after checking that reading it gives the spec back.

    Dtypes, dropout and the implementation of attention are not compared: they describe a run, not a model.

    Raises:
      ValueError: a spec that a config.json of this family cannot express.
    """
    json = {"model_type": model_type, **json}
    found = config(json)
    different = [
        name
        for mine, other in ((spec.config, found.config), (spec.encoder, found.encoder))
        for name in _differences(mine, other)
    ]
    if different or spec.head != found.head:
        what = ", ".join(dict.fromkeys(different)) or "head"
        raise ValueError(f"a config.json of {model_type} cannot say this: {what} would be read back as something else")
    return json


def _differences(mine: TransformerConfig | None, other: TransformerConfig | None) -> list[str]:
    if mine is None or other is None:
        return [] if mine is other else ["encoder"]
    fields, other_fields = _model_fields(mine), _model_fields(other)
    return [name for name, value in fields.items() if value != other_fields[name]]


def _model_fields(config: TransformerConfig) -> dict[str, Any]:
    """Returns the fields on which the numbers of a model depend, with defaults filled in."""
    fields = {name: value for name, value in vars(config).items() if name not in RUN_FIELDS}
    return fields | {
        "kv_heads": config.sizes.kv_heads,
        "head_dim": config.sizes.head_dim,
        "encoding": tuple(map(_as_read, config.encodings)),
        "window": config.layer_windows,
        "windows": None,
        "feed_forward_bias": config.bias_of_feed_forward,
        "attention_output_bias": config.output_bias_of_attention,
        "qk_norm_epsilon": config.qk_norm and config.qk_norm_epsilon,
    }


def _as_read(encoding: PositionEncoding) -> PositionEncoding:
    """Returns an encoding as a config.json has it: the factor of a LongRoPE without one is 1."""
    if isinstance(encoding, RoPE) and isinstance(encoding.scaling, LongRoPE) and encoding.scaling.factor is None:
        return dataclasses.replace(encoding, scaling=dataclasses.replace(encoding.scaling, factor=1.0))
    return encoding


def _is_number(value: Any) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -NUMBER < value < 1e30 and value == value
