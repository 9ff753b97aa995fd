"""The settings of a run: frozen dataclasses, parsed once from a `ConfigDict`, a dict or JSON. Never imports JAX."""

from attnjax.config.files import ConfigFile, load
from attnjax.config.names import ENCODING_NAMES, TASK_NAMES
from attnjax.config.options import Options
from attnjax.config.overrides import override, parse_choices, parse_override
from attnjax.config.parse import canonical_json, cell_id, defaults, encoding_name, parse, run_id, to_dict
from attnjax.config.schema import (
    SCHEMA,
    EncodingConfig,
    EvaluateConfig,
    ModelConfig,
    OptimizerConfig,
    PositionConfig,
    RunConfig,
    TaskConfig,
    TrainConfig,
)

__all__ = [
    "ENCODING_NAMES",
    "SCHEMA",
    "TASK_NAMES",
    "ConfigFile",
    "EncodingConfig",
    "EvaluateConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Options",
    "PositionConfig",
    "RunConfig",
    "TaskConfig",
    "TrainConfig",
    "canonical_json",
    "cell_id",
    "defaults",
    "encoding_name",
    "load",
    "override",
    "parse",
    "parse_choices",
    "parse_override",
    "run_id",
    "to_dict",
]
