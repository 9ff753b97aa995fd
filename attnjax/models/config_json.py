"""Reads a published config.json: every key is used, known to change no number, or an error; and writes one.

A config may have a key that its own library knows and this one does not. Ignoring it silently could load another model,
so `Reader` records which keys were read, and `finish` refuses the rest.

The keys of a family that are fields of `TransformerConfig` are a table of `Key`, which is read and written alike.
"""

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from attnjax.models.base import Json, Spec
from attnjax.modules import TransformerConfig
from attnjax.positions import LongRoPE, PositionEncoding, RoPE

NUMBER = 2**31 - 1
LAYERS = 1_000
"""More layers than any published model has; a weight map has about ten entries per layer."""
RUN_FIELDS = (
    *("dtype", "param_dtype", "implementation", "embed_std", "kernel_std", "residual_start"),
    *("attention_dropout", "residual_dropout", "embedding_dropout"),
    *("remat", "scan_layers"),
)
"""Fields of `TransformerConfig` that describe a run, not a model."""
ONLY_VALUES = MappingProxyType(
    {
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_encoder_decoder": False,
        "cross_attention_hidden_size": None,
        "pruned_heads": {},
        "quantization_config": None,
    }
)
"""Keys that any config may have, and the only value of each that is supported."""
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
    """Which values a key may have: a test, the rule in words, and the value here of each value there where they differ."""

    fits: Any
    rule: str
    ours: dict[str, Any] | None = None


def whole(lowest: int = 1, highest: int = NUMBER) -> Kind:
    """Returns the kind of whole numbers in lowest .. highest."""
    return Kind(lambda v: type(v) is int and lowest <= v <= highest, f"a whole number in {lowest}..{highest}")


def choice(**ours: Any) -> Kind:
    """Returns the kind of a few names, each with its meaning here; to be written, a meaning has its first name.

    Example:
      >>> choice(gelu_new="gelu_tanh", relu="relu").rule
      'one of gelu_new, relu'
    """
    return Kind(lambda v: isinstance(v, str) and v in ours, f"one of {', '.join(ours)}", ours)


def per_layer(layers: int, *values: Any) -> Kind:
    """Returns the kind of a list with one of these values per layer."""
    fits = lambda v: isinstance(v, list) and len(v) == layers and all(one in values for one in v)
    return Kind(fits, f"a list of {layers}, each one of {', '.join(map(repr, values))}")


def _finite(value: Any) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -NUMBER < value < 1e30


COUNT, DEPTH = whole(), whole(highest=LAYERS)
POSITIVE = Kind(lambda v: _finite(v) and v > 0, "a finite number above 0")
SHARE = Kind(lambda v: _finite(v) and v >= 0, "a finite number of at least 0")
FLAG = Kind(lambda v: isinstance(v, bool), "true or false")
TABLE = Kind(lambda v: isinstance(v, dict), "a table")
NUMBERS = Kind(lambda v: isinstance(v, list) and all(_finite(x) and x > 0 for x in v), "a list of numbers above 0")


class Key(NamedTuple):
    """A key of config.json that is a field of `TransformerConfig`: its names, of which the first is written."""

    field: str
    names: tuple[str, ...]
    kind: Kind
    default: Any = ...


def key(field: str, name: str, kind: Kind, default: Any = ..., *others: str) -> Key:
    """Returns a key with one name, or with `others` that older configs have."""
    return Key(field, (name, *others), kind, default)


SIZES = (
    key("vocab", "vocab_size", COUNT),
    key("model", "hidden_size", COUNT),
    key("layers", "num_hidden_layers", DEPTH),
    key("heads", "num_attention_heads", COUNT),
    key("hidden", "intermediate_size", COUNT),
)
"""The sizes of a model by the names that most families have for them."""


class Reader:
    """Reads checked values from a JSON table. A value of null counts as missing; errors name the table and the key.

    Example:
      >>> read = Reader("llama", {"hidden_size": 64})
      >>> read.get(COUNT, "hidden_size"), read.get(FLAG, "mlp_bias", default=False)
      (64, False)
    """

    def __init__(self, owner: str, json: Json):
        self.owner, self.json = owner, json
        self.read: set[str] = set()

    def get(self, kind: Kind | None, *names: str, default: Any = ...) -> Any:
        """Returns the value of the first of these names that is present, else the default.

        Raises:
          ValueError: a value of another kind, none without a default, or two that differ.
        """
        self.read.update(names)
        found = [self.json[name] for name in names if self.json.get(name) is not None]
        if any(one != found[0] for one in found[1:]):
            raise ValueError(f"{self.owner}: {' and '.join(names)} are one thing, but config.json has {found}")
        if not found:
            if default is ...:
                raise ValueError(f"{self.owner}: config.json lacks {' or '.join(names)}")
            return default
        (value, *_), name = found, " or ".join(names)
        if kind is not None and not kind.fits(value):
            raise ValueError(f"{self.owner}: {name} must be {kind.rule}, config.json has {value!r:.200}")
        if kind is None or kind.ours is None:
            return float(value) if kind in (POSITIVE, SHARE) else value
        return kind.ours[value]

    def fields(self, keys: Sequence[Key]) -> dict[str, Any]:
        """Returns the fields of `TransformerConfig` that these keys say."""
        return {one.field: self.get(one.kind, *one.names, default=one.default) for one in keys}

    def must(self, name: str, *allowed: Any) -> None:
        """Raises ValueError unless a key is missing or has one of the values that the modules can compute."""
        value = self.get(None, name, default=None)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise ValueError(
                f"{self.owner}: {name} must be {' or '.join(map(repr, allowed))} here, config.json has {value!r:.200}"
            )

    def skip(self, *names: str) -> None:
        """Accepts keys that change no number of this architecture."""
        self.read.update(names)

    def finish(self) -> None:
        """Raises ValueError for a key that was not read and is not known to change no number."""
        for name, allowed in ONLY_VALUES.items():
            if name not in self.read:
                self.must(name, allowed)
        harmless = lambda name: name in IGNORED or name.startswith("_") or name.endswith("_token_id")
        given = [name for name, value in self.json.items() if value is not None]
        if unknown := sorted(name for name in given if name not in self.read and not harmless(name)):
            raise ValueError(
                f"{self.owner}: config.json has keys that are not known here, and might change the numbers: "
                f"{', '.join(unknown[:20])}; remove those that do not"
            )


def written(config: TransformerConfig, keys: Sequence[Key]) -> dict[str, Any]:
    """Returns the keys of a config.json that say these fields; one that has no name there becomes null."""
    found = {}
    for one in keys:
        value = getattr(config, one.field)
        names = {ours: theirs for theirs, ours in reversed((one.kind.ours or {}).items())}
        found[one.names[0]] = names.get(value) if names else value
    return found


def differences(one: Spec, other: Spec) -> list[str]:
    """Returns the fields by which the numbers of two specs differ.

    Dtypes, dropout and the implementation of attention are not compared: they describe a run, not a model.
    """
    found = [] if one.head == other.head else ["head"]
    for mine, theirs in ((one.config, other.config), (one.encoder, other.encoder)):
        if mine is None or theirs is None:
            found += [] if mine is theirs else ["encoder"]
            continue
        fields, others = _numbers(mine), _numbers(theirs)
        found += [name for name, value in fields.items() if value != others[name]]
    return list(dict.fromkeys(found))


def _numbers(config: TransformerConfig) -> dict[str, Any]:
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
