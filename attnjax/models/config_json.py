"""Reading a published config.json: every key is used, known to change no number, or an error.

A config may hold what its library knows and we do not. To leave that out silently would be to load another model, so
`Reader` remembers what was asked for, and `finish` refuses the rest.
"""

from collections.abc import Callable
from typing import Any

from attnjax.models.base import Json, Spec
from attnjax.models.harmless import HARMLESS
from attnjax.modules import TransformerConfig

LAYERS = 1_000
"""More than any published model; a table of weights has some ten rows per layer."""
NUMBER = 2**31 - 1

OF_RUNS = (
    *("dtype", "param_dtype", "implementation", "embed_std"),
    *("attention_dropout", "residual_dropout", "embedding_dropout"),
)
"""Fields of `TransformerConfig` that belong to a run, not to a model."""
REFUSED = (
    ("is_decoder", False),
    ("add_cross_attention", False),
    ("tie_encoder_decoder", False),
    ("cross_attention_hidden_size", None),
    ("pruned_heads", {}),
    ("quantization_config", None),
)
"""Switches of every config, and the only value that is understood."""


class Reader:
    """Typed access to a JSON table. A value of null counts as missing. Errors name the table and the key."""

    def __init__(self, owner: str, json: Json):
        self.owner, self.json = owner, json
        self.read: set[str] = set()

    def value(self, *names: str, default: Any = ...) -> Any:
        """The value of the first of these names that is there.

        Raises ValueError where none is and there is no default, or where two differ.
        """
        self.read.update(names)
        found = [self.json[name] for name in names if self.json.get(name) is not None]
        if any(one != found[0] for one in found):
            raise ValueError(f"{self.owner}: {' and '.join(names)} are one thing, but config.json has {found}")
        if not found and default is ...:
            raise ValueError(f"{self.owner}: config.json lacks {' or '.join(names)}")
        return found[0] if found else default

    def integer(self, *names: str, default: Any = ..., lowest: int = 1, highest: int = NUMBER) -> Any:
        """A whole number."""
        rule = f"a whole number in {lowest}..{highest}"
        whole = lambda value: isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest
        return self._checked(names, default, whole, rule)

    def number(self, *names: str, default: Any = ..., zero: bool = False) -> Any:
        """A finite number above 0, or from 0 on."""
        rule = f"a finite number {'of at least' if zero else 'above'} 0"
        fits = lambda value: _is_number(value) and (value > 0 or (zero and value == 0))
        found = self._checked(names, default, fits, rule)
        return found if found is default else float(found)

    def flag(self, *names: str, default: Any = ...) -> Any:
        """true or false."""
        return self._checked(names, default, lambda value: isinstance(value, bool), "true or false")

    def choice(self, *names: str, default: Any = ..., choices: dict[str, Any]) -> Any:
        """What a name of the table stands for in `choices`."""
        fits = lambda value: isinstance(value, str) and value in choices
        return choices[self._checked(names, default, fits, f"one of {', '.join(choices)}")]

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers above 0."""
        fits = lambda value: isinstance(value, list) and all(_is_number(x) and x > 0 for x in value)
        return tuple(map(float, self._checked((name,), ..., fits, "a list of numbers above 0")))

    def per_layer(self, name: str, layers: int, *values: Any) -> list[Any] | None:
        """A list with one of these values per layer; None if missing."""
        fits = lambda value: isinstance(value, list) and len(value) == layers and all(x in values for x in value)
        rule = f"a list of {layers}, each one of {', '.join(map(repr, values))}"
        return self._checked((name,), None, fits, rule)

    def table(self, *names: str) -> Json:
        """A table inside; empty if missing."""
        return self._checked(names, {}, lambda value: isinstance(value, dict), "a table")

    def must(self, name: str, *allowed: Any) -> None:
        """Raise ValueError unless a key is missing or has one of the values that the modules can compute."""
        self.read.add(name)
        value = self.json.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise ValueError(
                f"{self.owner}: {name} must be {' or '.join(map(repr, allowed))} here, config.json has {value!r}"
            )

    def skip(self, *names: str) -> None:
        """Keys that change no number of this architecture."""
        self.read.update(names)

    def finish(self) -> None:
        """Raise ValueError for a key that nobody asked for, whatever it means."""
        for name, allowed in REFUSED:
            if name not in self.read:
                self.must(name, allowed)
        unknown = [name for name in self.json if name not in self.read | HARMLESS and self.json[name] is not None]
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


def written(model_type: str, config: Callable[[Json], Spec], spec: Spec, json: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a spec, with `model_type`. Raises ValueError unless reading it gives the spec back.

    Types of numbers, dropout and the implementation of attention are not compared: they belong to a run.
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
    mine_facts, facts = _facts(mine), _facts(other)
    return [name for name, value in mine_facts.items() if value != facts[name]]


def _facts(config: TransformerConfig) -> dict[str, Any]:
    """What the numbers of a model depend on, with defaults filled in."""
    facts = {name: value for name, value in vars(config).items() if name not in OF_RUNS}
    with_bias = lambda given: config.bias if given is None else given
    return facts | {
        "kv_heads": config.sizes.kv_heads,
        "head": config.sizes.head,
        "encoding": config.encodings,
        "window": config.layer_windows,
        "windows": None,
        "feed_forward_bias": with_bias(config.feed_forward_bias),
        "attention_output_bias": with_bias(config.attention_output_bias),
        "qk_norm_epsilon": config.qk_norm and config.qk_norm_epsilon,
    }


def _is_number(value: Any) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -NUMBER < value < 1e30 and value == value
