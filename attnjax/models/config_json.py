"""Reads config.json by a table: the parts of a family, each with a key and the field that it sets.

A config may have a key that its own library knows and this one does not. Ignoring it silently could load another model,
so `Reader` records which keys were read, and `finish` refuses the rest. A key of a table inside the config is named with a
dot, as rope_scaling.factor.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

Json = Mapping[str, Any]
Fields = dict[str, Any]

NUMBER = 2**31 - 1
LAYERS = 1_000
"""More layers than any published model has; a weight map has about ten entries per layer."""
OFF = ("is_decoder", "add_cross_attention", "tie_encoder_decoder")
"""Keys that any config may have, and that must be false."""
IGNORED = frozenset(
    (
        # files and labels
        *("architectures", "auto_map", "model_type", "name_or_path", "transformers_version", "torch_dtype", "dtype"),
        *("use_bfloat16", "torchscript", "tokenizer_class", "is_encoder_decoder", "task_specific_params", "id2label"),
        *("label2id", "num_labels", "problem_type", "finetuning_task", "prefix", "is_llama_config", "custom_pipelines"),
        *("transformers.js_config", "unsloth_fixed", "unsloth_version", "model_max_length", "model_name"),
        # running and training
        *("attn_implementation", "use_cache", "return_dict", "output_attentions", "output_hidden_states"),
        *("output_past", "output_router_logits", "chunk_size_feed_forward", "pretraining_tp", "gradient_checkpointing"),
        *("initializer_range", "initializer_factor", "classifier_dropout", "language", "directionality"),
        *("tf_legacy_loss", "use_flash_attention_2", "use_liger_kernel", "loss_type", "ddp_find_unused_parameters"),
        # generation, whose settings are in generation_config.json
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
        *("num_return_sequences", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "bad_words_ids"),
        *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("output_scores", "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens"),
    )
)
"""Keys that change no number of a model, besides those that end in _token_id and those that begin with an underscore."""


class Kind(NamedTuple):
    """Which values a key may have: a test, the rule in words, and what a value there is here."""

    fits: Callable[[Any], bool]
    rule: str
    make: Callable[[Any], Any] = lambda value: value


def whole(lowest: int = 1, highest: int = NUMBER) -> Kind:
    """Returns the kind of whole numbers in lowest .. highest."""
    return Kind(lambda v: type(v) is int and lowest <= v <= highest, f"a whole number in {lowest}..{highest}")


def choice(*same: str, **ours: Any) -> Kind:
    """Returns the kind of a few names, each with its meaning here.

    Example:
      >>> choice("relu", gelu_new="gelu_tanh").rule
      'one of relu, gelu_new'
    """
    ours = {name: name for name in same} | ours
    return Kind(lambda v: isinstance(v, str) and v in ours, f"one of {', '.join(ours)}", ours.__getitem__)


def per_layer(layers: int, *values: Any) -> Kind:
    """Returns the kind of a list with one of these values per layer."""
    fits = lambda v: isinstance(v, list) and len(v) == layers and all(one in values for one in v)
    return Kind(fits, f"a list of {layers}, each one of {', '.join(map(repr, values))}")


def _finite(value: Any) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -NUMBER < value < 1e30


COUNT, DEPTH = whole(), whole(highest=LAYERS)
POSITIVE = Kind(lambda v: _finite(v) and v > 0, "a finite number above 0", float)
SHARE = Kind(lambda v: _finite(v) and v >= 0, "a finite number of at least 0", float)
FLAG = Kind(lambda v: isinstance(v, bool), "true or false")
NUMBERS = Kind(
    lambda v: isinstance(v, list) and all(map(POSITIVE.fits, v)),
    "a list of numbers above 0",
    lambda v: tuple(map(float, v)),
)


class Reader:
    """Reads checked values of a config.json, with the keys of tables inside it by dotted names. Errors name family and key.

    Example:
      >>> read = Reader("llama", {"hidden_size": 64, "rope_scaling": {"factor": 2}})
      >>> read.get(COUNT, "hidden_size"), read.get(FLAG, "mlp_bias", default=False), read.get(POSITIVE, "rope_scaling.factor")
      (64, False, 2.0)
    """

    def __init__(self, owner: str, json: Json):
        self.owner, self.json = owner, {}
        self.used: set[str] = set()
        for name, value in json.items():
            self.json |= (
                {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
            )

    def get(self, kind: Kind, *names: str, default: Any = ..., null: Any = ...) -> Any:
        """Returns the value of the first of these names that has one, `null` where the first that is there is null.

        Args:
          kind: which values are allowed.
          names: names of one key; the first is the usual one.
          default: what a config without the key means; an error unless given.
          null: what null means; as if the key were missing unless given.

        Raises:
          ValueError: a value of another kind, none without a default, or two that differ.
        """
        self.used.update(names)
        found = {name: self.json[name] for name in names if self.json.get(name) is not None}
        if not found:
            default = null if null is not ... and names[0] in self.json else default
            if default is ...:
                raise ValueError(f"{self.owner}: config.json lacks {' or '.join(names)}")
            return default
        (name, value), *others = found.items()
        if any(other != value for _, other in others):
            raise ValueError(
                f"{self.owner}: {' and '.join(found)} are one thing, but config.json has {[*found.values()]}"
            )
        if not kind.fits(value):
            raise ValueError(f"{self.owner}: {name} must be {kind.rule}, config.json has {value!r:.200}")
        return kind.make(value)

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Raises ValueError for a key that was not read and is not known to change no number; `unused` are of the family."""
        unknown = sorted(name for name, value in self.json.items() if value is not None and not self._is_harmless(name))
        if unknown := [name for name in unknown if name not in (*self.used, *unused)]:
            raise ValueError(
                f"{self.owner}: config.json has keys that are not known here, and might change the numbers: "
                f"{', '.join(unknown[:20])}; remove those that do not"
            )

    def _is_harmless(self, name: str) -> bool:
        if name in OFF:
            return self.json[name] is False
        ignored = name in IGNORED or name.partition(".")[0] in IGNORED
        return ignored or name.startswith("_") or name.endswith("_token_id")


class Part(Protocol):
    """One or more keys of config.json and the fields that they set: fields of `TransformerConfig`, or of a family."""

    def read(self, reader: Reader, fields: Fields) -> Fields:
        """Returns fields from a config, given those of the parts before."""
        ...


class Key(NamedTuple):
    """A key that is a field. `default` and `null` may be functions of the fields before; without a field it is only checked."""

    field: str
    names: tuple[str, ...]
    kind: Kind
    default: Any = ...
    null: Any = ...

    def read(self, reader: Reader, fields: Fields) -> Fields:
        """Returns the field."""
        default, null = (one(fields) if callable(one) else one for one in (self.default, self.null))
        value = reader.get(self.kind, *self.names, default=default, null=null)
        return {self.field: value} if self.field else {}


def key(field: str, name: str, kind: Kind, default: Any = ..., *others: str, null: Any = ...) -> Key:
    """Returns a key with one name, or with `others` that older configs have."""
    return Key(field, (name, *others), kind, default, null)


def must(name: str, value: Any) -> Key:
    """Returns a key that has one value here, also where a config lacks it."""
    return Key("", (name,), Kind(lambda v: type(v) is type(value) and v == value, repr(value)), value)


SIZES = (
    key("vocab", "vocab_size", COUNT),
    key("model", "hidden_size", COUNT),
    key("layers", "num_hidden_layers", DEPTH),
    key("heads", "num_attention_heads", COUNT),
    key("hidden", "intermediate_size", COUNT),
)
"""The sizes of a model by the names that most families have for them."""
