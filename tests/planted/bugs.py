"""The bugs: chosen from the sources, before looking at which tests there are; a file of attnjax each."""

from typing import NamedTuple


class Bug(NamedTuple):
    """In `file` of attnjax, `right` is replaced by `wrong`; `breaks` says what then no longer holds.

    `tests`: the paths below `tests/` whose quick tests are run, in this order, until one of them fails.
    """

    file: str
    right: str
    wrong: str
    breaks: str
    tests: tuple[str, ...]


BUGS = (
    Bug(
        "attention/masks.py",
        "near = k >= lowest",
        "near = k > lowest",
        "a window is one key too narrow",
        ("attention/test_masks.py", "attention"),
    ),
    Bug(
        "attention/dense.py",
        "weights * (change - mean[..., None])",
        "weights * (change + mean[..., None])",
        "a sign in the derivative of the softmax",
        ("attention/test_dense_derivatives.py", "attention"),
    ),
    Bug(
        "attention/blockwise/backward.py",
        "(dout * out).sum(-1) - dlse",
        "(dout * out).sum(-1)",
        "the gradient of the log-sum-exp is dropped by tiles",
        ("attention/test_combine.py", "attention"),
    ),
    Bug(
        "attention/combine.py",
        "jnp.where(empty, -infinity, top + jnp.log(total))",
        "jnp.where(empty, -infinity, top - jnp.log(total))",
        "a sign in the log-sum-exp of combined blocks",
        ("attention/test_combine.py", "attention"),
    ),
    Bug(
        "attention/cache_update.py",
        "around = last - (last - slot) % (capacity - first)",
        "around = count - (count - slot) % (capacity - first)",
        "slots of a ring have the index of one token later",
        ("attention/test_cache.py", "attention"),
    ),
    Bug(
        "positions/alibi.py",
        "return None if self.symmetric else -jnp.asarray(",
        "return None if self.symmetric else jnp.asarray(",
        "the slope that kernels are given has the wrong sign",
        ("positions/test_alibi.py", "attention/test_fused.py", "positions"),
    ),
    Bug(
        "positions/rotary.py",
        "merge(-sin, sin, layout)",
        "merge(sin, -sin, layout)",
        "pairs are rotated backwards",
        ("positions/test_rope.py", "positions"),
    ),
    Bug(
        "positions/t5.py",
        "side + half * (n < 0)",
        "side + half * (n > 0)",
        "past and future share their buckets the wrong way round",
        ("positions/test_t5.py", "positions"),
    ),
    Bug(
        "positions/cope.py",
        "jnp.tril(jnp.ones((count, count), x.dtype), -1)",
        "jnp.tril(jnp.ones((count, count), x.dtype))",
        "gates of a block of columns are counted twice in long rows",
        ("positions/test_cope.py", "positions"),
    ),
    Bug(
        "positions/fire.py",
        "longest = jnp.maximum(",
        "longest = jnp.minimum(",
        "distances are divided by the wrong one of position and threshold",
        ("positions/test_fire.py", "positions"),
    ),
    Bug(
        "modules/decoding.py",
        "state.length + state.step - 1",
        "state.length + state.step",
        "generated tokens stand one position too late",
        ("modules/test_generate.py", "modules"),
    ),
    Bug(
        "modules/logit_filters.py",
        "return logits / jnp.asarray(temperature",
        "return logits * jnp.asarray(temperature",
        "logits are multiplied by the temperature",
        ("modules/test_generate.py", "modules"),
    ),
    Bug(
        "train/step.py",
        "jax.random.fold_in(jax.random.key(member.seed), state.step)",
        "jax.random.key(member.seed)",
        "every step drops the same activations",
        ("train/test_seeds.py", "train"),
    ),
    Bug(
        "train/data.py",
        "jax.random.fold_in(jax.random.key(seed), step)",
        "jax.random.fold_in(jax.random.key(0), step)",
        "the data seed is lost",
        ("train/test_seeds.py", "train"),
    ),
    Bug(
        "train/optimizer.py",
        "max(train.warmup - 1, 1)",
        "max(train.warmup, 1)",
        "the warm-up does not reach the peak",
        ("train/test_optimizer.py", "train"),
    ),
    Bug(
        "train/evaluate.py",
        "draw = jax.random.fold_in(key, start)",
        "draw = key",
        "every batch of an evaluation is the first one again",
        ("train/test_seeds.py", "train"),
    ),
    Bug(
        "train/leaves.py",
        "if wrong:",
        "if wrong and not parts:",
        "damaged bytes of a checkpoint are swallowed",
        ("train/test_leaves.py", "train"),
    ),
    Bug(
        "config/overrides.py",
        "values[path[-1]] = value",
        "values.setdefault(path[-1], value)",
        "an override of what a config sets is ignored",
        ("test_cli_overrides.py", "test_config_files.py", "test_config.py"),
    ),
    Bug(
        "sweep/lease.py",
        "if not watch.is_free(directory / latest, content, owner):",
        "if latest is None:",
        "a run that another process holds is claimed",
        ("sweep/test_lease.py", "sweep"),
    ),
    Bug(
        "sweep/execute.py",
        "if lease.owner.attempt > execution.attempts:",
        "if lease.owner.attempt >= execution.attempts:",
        "a run is given up one attempt too early",
        ("sweep/test_execute.py", "sweep"),
    ),
    Bug(
        "report/scores.py",
        'if outcome(run) != "unfinished")',
        'if outcome(run) == "done")',
        "failed runs are dropped from the report",
        ("report/test_summarise.py", "report"),
    ),
    Bug(
        "report/statistics.py",
        "(x[:, None] > y) + 0.5 * (x[:, None] == y)",
        "(x[:, None] > y) + 1.0 * (x[:, None] == y)",
        "a draw counts as a win",
        ("report/test_statistics.py", "report"),
    ),
    Bug(
        "records/lines.py",
        "if found and int(found[1], 16) != zlib.crc32(line[:-WIDTH]):",
        "if found and not found[1]:",
        "the checksum of a record is not compared",
        ("records", "report/test_records.py"),
    ),
    Bug(
        "tasks/addition.py",
        'turned(total, count) if self.order == "plain" else total',
        'turned(total, count) if self.order != "reversed" else total',
        "an option of addition has the digits of its answer in the wrong order",
        ("tasks/test_labels.py", "tasks"),
    ),
    Bug(
        "analysis/weights.py",
        "jnp.min(head_divergence(a, b), axis=(1, 2))",
        "jnp.min(head_divergence(a, b), axis=(0, 1))",
        "the least divergence is taken over the wrong axes",
        ("analysis/test_weights.py", "analysis"),
    ),
    Bug(
        "models/weight_map.py",
        'zip("qkv", names[:3], (N, K, K), strict=True)',
        'zip("kqv", names[:3], (N, K, K), strict=True)',
        "queries and keys of published weights change places",
        ("models/test_weight_map.py", "models"),
    ),
    Bug(
        "models/matching.py",
        "if any(problems.values()):",
        'if problems["missing"] or problems["wrong shape"]:',
        "tensors that are left over or quantised are accepted",
        ("models/test_tied_weights.py", "models"),
    ),
    Bug(
        "cli/errors.py",
        "return str(error) or type(error).__name__",
        "return None",
        "a mistake of the user ends in a traceback",
        ("test_cli.py",),
    ),
    Bug(
        "attention/ring.py",
        "here = inputs._replace(keys=_arrived(sequence, inputs.keys, keys, r))",
        "here = inputs",
        "backward, every round has the keys and values of the device itself",
        ("attention/test_ring_failures.py", "attention"),
    ),
    Bug(
        "attention/ring.py",
        "return following, states,",
        "states = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), states)\n        return following, states,",
        "the output is rounded to 16 bits from round to round",
        ("attention/test_ring_failures.py", "attention"),
    ),
    Bug(
        "attention/ring.py",
        "split(inputs, tiling)",
        "split(inputs._replace(span=inputs.span._replace(left=None)), tiling)",
        "a window is ignored where the sequence is spread over devices",
        ("attention/test_ring_failures.py", "attention"),
    ),
    Bug(
        "train/mesh.py",
        "-leaf.shape[-1] % parts)]",
        "0)]",
        "tokens that are left over by the devices are cut off",
        ("attention/test_ring_failures.py", "train"),
    ),
)
