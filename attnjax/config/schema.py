"""Everything that can be chosen about one run: frozen records, checked when they are made, hashable, without arrays.

A *run* is a config with its seeds, a *cell* is a config without them. Every field has a default, so that a config says
only what it changes; `defaults()` shows them all. A mistake is a ValueError with the dotted name of the field. A field
that is younger than stored runs has the metadata "added": at its default it is left out of what a run id hashes.
"""

import dataclasses
from typing import ClassVar, Literal

from attnjax.config.architecture import ADDED, TransformerOptions
from attnjax.config.kinds import (
    AtMostOne,
    Count,
    Index,
    NonNegative,
    Options,
    Positive,
    Rate,
    Seed,
    Size,
    Width,
    check_order,
    settle,
)
from attnjax.config.names import (
    BY_PARAMETER,
    DECAYING,
    ENCODING_NAMES,
    OPTIMIZERS,
    SCHEDULES,
    TASK_NAMES,
    check_name,
    safe_name,
)

SCHEMA = 1
"""Version of what is stored; raised when a field changes its meaning."""


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What is learned, in which form, at which lengths: training draws lengths from length_min .. length_max.

    `name`: of a task in `attnjax.tasks.TASKS`, or `package.module:Class` of another project.
    `length_per`: a length is drawn for each example, or one for a whole batch. `begin` puts a token in front of a
    decoder's sequence. `tail` also trains on the zeros that some answers have behind their terminator.
    """

    name: str = "copy"
    options: Options = Options()
    form: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    length_min: Size = 1
    length_max: Size = 40
    length_per: Literal["example", "batch"] = "example"
    begin: bool = False
    tail: bool = False

    def __post_init__(self) -> None:
        settle(self, "task")
        check_name("task.name", self.name, TASK_NAMES, outside=True)
        check_order("task.length_min", self.length_min, "task.length_max", self.length_max)
        if self.begin and self.form != "decoder":
            raise ValueError(f"task.begin is for task.form='decoder', got task.form={self.form!r}")


@dataclasses.dataclass(frozen=True)
class EncodingConfig:
    """A positional encoding by its name in `attnjax.ENCODINGS`, or `package.module:Class` of another project.

    A scaling of RoPE is the nested option `scaling={"name": "yarn", "factor": 8.0, "original_length": 128}`.
    """

    name: str = "rope"
    options: Options = Options()
    by_name: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, "model.encoding")
        check_name("model.encoding.name", self.name, ENCODING_NAMES, outside=True)


@dataclasses.dataclass(frozen=True)
class ModelConfig(TransformerOptions):
    """The options of a Transformer with encodings by their names; the task gives the vocabulary.

    `head_dim` is stored, and chosen, as `model.head`, which it was called before.
    """

    head_dim: Width | None = dataclasses.field(default=None, kw_only=True, metadata={"key": "head"})
    encoding: EncodingConfig | tuple[EncodingConfig, ...] = dataclasses.field(default=EncodingConfig(), kw_only=True)

    def __post_init__(self) -> None:
        self.check("model")

    @property
    def encodings(self) -> tuple[EncodingConfig, ...]:
        """The encodings that were chosen: one for all layers, or one for each."""
        return self.encoding if isinstance(self.encoding, tuple) else (self.encoding,)

    @property
    def drops(self) -> bool:
        """Whether anything is dropped, so that the model needs a key."""
        return max(self.attention_dropout, self.residual_dropout, self.input_dropout) > 0


@dataclasses.dataclass(frozen=True)
class PositionConfig:
    """Where positions come from: 0, 1, ...; with a random start; a random sorted subset; or within a number (abacus, coupled).

    Random positions lie in 0 .. maximum - 1; with abacus and coupled, numbers begin at 1 .. maximum in training (None: at 1),
    at 1 in tests. `at_test`: 0, 1, ... or the policy of training (these two stay). `sample_per`: a draw is made for each
    example or shared by the batch; `sample_per_layer`: each layer has its own, and the embeddings have that of the first. With
    "arange" nothing is drawn and these do nothing, so that the base of a sweep over policies may have them.
    """

    policy: Literal["arange", "offset", "randomized", "abacus", "coupled"] = "arange"
    maximum: Count | None = None
    at_test: Literal["arange", "same"] = "arange"
    sample_per: Literal["example", "batch"] = "example"
    sample_per_layer: bool = False

    def __post_init__(self) -> None:
        settle(self, "positions")
        if self.policy in ("offset", "randomized") and self.maximum is None:
            raise ValueError(f"positions.maximum must be given for positions.policy={self.policy!r}, got None")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Steps, rates and records. `keep` checkpoints stay; 0 of log_every or checkpoint_every means only at the end.

    A step is one batch. `steps`, `warmup`, and the schedule count batches also with `optimizer.accumulate`: with accumulate=4 a
    warm-up of 400 steps is 100 updates.

    `until`: the mean exact match over the validation lengths at which a run has fitted its task, and ends; it is looked at
    every `evaluate.every` steps, and the schedule stays that of `steps`. 0: every run does all steps. See
    `attnjax.train.loop`.

    `schedule`: what `learning_rate` does after `warmup` steps: "constant", or "cosine" or "linear" down to the fraction
    `final` of it at step `train.steps`, one after the last update; or a function of another project,
    `package.module:function`, see `attnjax.train.optimizer.schedule`. `b1`, `b2` and `epsilon` are those of AdamW, other
    optimizers have options.

    `dtype_policy="bfloat16"`: activations and the products of matrices in bfloat16, each product summed in float32, that of the
    logits returned in float32 too; positions, angles, biases, parameters, sums over devices, optimizer, norms, attention
    scores, softmax and loss in float32.
    """

    steps: Count = 1000
    batch: Size = 32
    learning_rate: Positive = 1e-3
    schedule: str = "cosine"
    warmup: Index = 0
    weight_decay: NonNegative = 0.0
    b1: Rate = 0.9
    b2: Rate = 0.98
    epsilon: Positive = 1e-8
    clip: Positive | None = 1.0
    dtype_policy: Literal["float32", "bfloat16"] = "float32"
    log_every: Index = 100
    checkpoint_every: Index = 500
    keep: Count = 2
    final: AtMostOne = dataclasses.field(default=0.0, metadata=ADDED)
    until: AtMostOne = dataclasses.field(default=0.0, metadata=ADDED)

    def __post_init__(self) -> None:
        settle(self, "train")
        check_name("train.schedule", self.schedule, SCHEDULES, outside=True)
        if self.final and self.schedule == "constant":
            raise ValueError(f"train.final={self.final:g} is for a schedule that falls, got train.schedule='constant'")
        check_order("train.warmup", self.warmup, "train.steps", self.steps)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer by the name of its function in optax, or `package.module:function` of another project.

    `options`: further arguments of the function. `accumulate`: gradients of so many steps are averaged into one update; steps
    and warm-up still count batches.
    The function of another project takes `learning_rate` and `weight_decay`, both of which may be traced arrays, and the
    options, and returns an `optax.GradientTransformation`.
    """

    name: str = "adamw"
    options: Options = Options()
    accumulate: Count = 1
    by_name: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, "optimizer")
        check_name("optimizer.name", self.name, OPTIMIZERS, outside=True)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Lengths to test and to validate on, `count` examples each. Every `every` steps the validation lengths, 0: at the end.

    Lengths are padded to `bucket_sizes`; without any, to some of the lengths themselves, each at least `bucket_growth`
    times the one before; to no more than the text of a split has. `dropout`: at the rates of the model in tests too, the
    same draws for every run. `sliding_stride`: how many bytes at the end of a window of text `loss_sliding` counts.
    """

    lengths: tuple[Size, ...] = (40, 80, 160, 320)
    validation_lengths: tuple[Size, ...] = (40,)
    count: Size = 512
    batch: Size = 64
    bucket_sizes: tuple[Size, ...] = ()
    bucket_growth: Positive = 1.5
    every: Index = 0
    dropout: bool = False
    sliding_stride: Count = 32

    def __post_init__(self) -> None:
        settle(self, "evaluate")
        for name in ("lengths", "validation_lengths", "bucket_sizes"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                raise ValueError(f"evaluate.{name} must ascend, each length once, got {values[:20]}")
        if self.bucket_growth <= 1:
            raise ValueError(f"evaluate.bucket_growth must be above 1, got {self.bucket_growth}")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run. `seed` draws the parameters (and dropout), `data_seed` the examples; `name` is that of the experiment."""

    name: str = "run"
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    positions: PositionConfig = PositionConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    seed: Seed = 0
    data_seed: Seed = 0
    optimizer: OptimizerConfig = dataclasses.field(default=OptimizerConfig(), metadata=ADDED)

    def __post_init__(self) -> None:
        settle(self, "")
        safe_name(self.name, "name")
        reach = self.positions.maximum
        if reach is not None and self.positions.policy not in ("abacus", "coupled") and reach < self.task.length_max:
            raise ValueError(f"positions.maximum={reach} is shorter than task.length_max={self.task.length_max}")
        self._check_optimizer()
        self._check_until()

    def _check_optimizer(self) -> None:
        """Refuse settings of training that the optimizer would ignore."""
        name, train = self.optimizer.name, self.train
        if train.weight_decay and name in OPTIMIZERS and name not in DECAYING:
            raise ValueError(f"train.weight_decay={train.weight_decay:g} is not taken by optimizer.name={name!r}")
        for field in ("b1", "b2", "epsilon") if name != "adamw" else ():
            value = getattr(train, field)
            if value != getattr(TrainConfig, field):
                raise ValueError(
                    f"train.{field}={value:g} is for optimizer.name='adamw'; give {name!r} optimizer.options"
                )
        if self.model.scan_layers and name in BY_PARAMETER:
            raise ValueError(
                f"optimizer.name={name!r} updates each parameter as a whole, and model.scan_layers has one for all layers; "
                "choose another of the two"
            )
        if train.steps % self.optimizer.accumulate:
            raise ValueError(
                f"train.steps={train.steps} is no multiple of optimizer.accumulate={self.optimizer.accumulate}"
            )

    def _check_until(self) -> None:
        """Refuse a stop of fitted runs that nothing would look for, or that lengths beyond the trained ones decide."""
        until, evaluate, task = self.train.until, self.evaluate, self.task
        lengths = evaluate.validation_lengths
        within = bool(lengths) and task.length_min <= min(lengths) and max(lengths) <= task.length_max
        if until and not (evaluate.every and within):
            raise ValueError(
                f"train.until={until:g} needs evaluate.every above 0, got {evaluate.every}, and evaluate.validation_lengths "
                f"within task.length_min={task.length_min} .. task.length_max={task.length_max}, got {list(lengths)[:20]}"
            )
