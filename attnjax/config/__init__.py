"""The settings of a run: frozen dataclasses, parsed once from a `ConfigDict`, a dict or JSON. Never imports JAX."""

from attnjax.config.files import ConfigFile as ConfigFile, load as load
from attnjax.config.kinds import Options as Options
from attnjax.config.names import ENCODING_NAMES as ENCODING_NAMES, TASK_NAMES as TASK_NAMES
from attnjax.config.overrides import (
    override as override,
    parse_choices as parse_choices,
    parse_override as parse_override,
)
from attnjax.config.parse import (
    canonical_json as canonical_json,
    cell_id as cell_id,
    defaults as defaults,
    encoding_name as encoding_name,
    parse as parse,
    run_id as run_id,
    to_dict as to_dict,
)
from attnjax.config.schema import (
    SCHEMA as SCHEMA,
    EncodingConfig as EncodingConfig,
    EvaluateConfig as EvaluateConfig,
    ModelConfig as ModelConfig,
    OptimizerConfig as OptimizerConfig,
    PositionConfig as PositionConfig,
    RunConfig as RunConfig,
    TaskConfig as TaskConfig,
    TrainConfig as TrainConfig,
)
