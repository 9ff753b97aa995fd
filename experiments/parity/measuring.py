"""One case: a model of transformers saved, read by us, compared, continued, saved by us, and read by transformers again."""

import contextlib
import datetime
import importlib.metadata
import json
import pathlib
import platform
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from attnjax.models import Loaded, load, save
from attnjax.models.param_paths import parameters
from attnjax.modules import Decoder, EncoderDecoder, generate
from experiments.parity import original
from experiments.parity.cases import CASES, Case, model
from experiments.parity.comparing import Difference, cached, compare, differences, ours
from experiments.parity.inputs import by_length, draw
from experiments.parity.peer import libraries

DTYPES = ("float64", "float32")
STEPS = 24
LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "torch", "transformers", "safetensors")
ORIGINAL = "Transformer (2017)"


def names() -> list[str]:
    """All cases, in the order of the table."""
    return [ORIGINAL, *(case.name for case in CASES)]


def about() -> dict[str, Any]:
    """Date and versions."""
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": day, "python": platform.python_version(), **versions}


def measure(name: str) -> dict[str, Any]:
    """The record of a case: names, relative differences by type, what was generated, and the way there and back."""
    with tempfile.TemporaryDirectory() as folder, quick():
        place = pathlib.Path(folder)
        if name == ORIGINAL:
            return {"case": name, "class": "torch.nn.Transformer layers", **_original(place)}
        case = next(one for one in CASES if one.name == name)
        return {"case": name, "class": f"{case.family}{case.head}", **_published(case, place)}


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Compile with few optimisations: these programs run once, and compiling takes longer than all else together."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
        jax.clear_caches()


def _original(place: pathlib.Path) -> dict[str, Any]:
    folder, found = original.folder(place / "ours"), {}
    torch, _ = libraries()
    for dtype in DTYPES:
        with jax.enable_x64(dtype == "float64"):
            loaded = load(folder, dtype=dtype)
            inputs = draw(loaded, 40, 0)
            mine, through = ours(loaded, inputs), cached(loaded, inputs)
        peer = original.numbers(torch, loaded, inputs, dtype)
        found[dtype] = summary(differences(loaded, inputs, mine, through, peer))
    return {"tokens": 40, "config": dict(original.CONFIG), **found, "round_trip": _returns(load(folder), place)}


def _published(case: Case, place: pathlib.Path) -> dict[str, Any]:
    torch, transformers = libraries()
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    theirs, folder = model(torch, transformers, case), place / "theirs"
    theirs.save_pretrained(folder)
    _as_published(case, folder)
    found = {dtype: summary(compare(folder, tokens=case.tokens, dtype=dtype)) for dtype in DTYPES}
    loaded = load(folder)
    trip = {"round_trip": _returns(loaded, place), "transformers_reads_it": _read_again(torch, loaded, theirs, place)}
    made = _generated(torch, loaded, theirs)
    return {"tokens": case.tokens, "config": dict(case.fields), **found, **trip, "generated": made}


def _as_published(case: Case, folder: pathlib.Path) -> None:
    """The files of T5 v1.1 say that their two matrices are not tied, and nothing of the scale of logits."""
    if case.fields.get("feed_forward_proj"):
        path = folder / "config.json"
        table = json.loads(path.read_text()) | {"tie_word_embeddings": False}
        table.pop("scale_decoder_outputs", None)
        path.write_text(json.dumps(table))


def summary(found: list[Difference]) -> dict[str, float | None]:
    """The relative differences, of gradients the largest."""
    by_name = {one.name: one.relative for one in found}
    gradients = [value for name, value in by_name.items() if name.startswith("gradient of ")]
    first = {"output": by_name["output"], "caches": by_name.get("output through caches"), "loss": by_name["loss"]}
    return {**first, "gradients": max(gradients), "tensors": len(gradients)}


def _returns(loaded: Loaded, place: pathlib.Path) -> bool:
    """Whether load -> save, in several files -> load gives every parameter bit for bit."""
    again = load(save(loaded, place / "again", shard_bytes=20_000))
    before, after = parameters(loaded.model), parameters(again.model)
    same = lambda a, b: a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return before.keys() == after.keys() and all(same(before[path], after[path]) for path in before)


def _read_again(torch: Any, loaded: Loaded, theirs: Any, place: pathlib.Path) -> bool:
    """Whether transformers reads what we saved as the model that it was: equal output to the last bit."""
    again = type(theirs).from_pretrained(str(place / "again"), attn_implementation="eager").eval()
    inputs = draw(loaded, 12, 1)
    given = {"input_ids": torch.from_numpy(inputs.tokens.astype(np.int64))}
    given |= {} if inputs.source is None else {"decoder_input_ids": given["input_ids"].flip(1)}
    with torch.no_grad():
        found = [one(**given) for one in (theirs, again)]
    outputs = [one.logits if hasattr(one, "logits") else one.last_hidden_state for one in found]
    return torch.equal(*outputs)


def _generated(torch: Any, loaded: Loaded, theirs: Any) -> dict[str, int] | None:
    """How many greedy tokens are those of transformers, whose cache is used unless frequencies depend on the length."""
    model = loaded.model
    if not isinstance(model, Decoder | EncoderDecoder):
        return None
    prompt = draw(loaded, 6, 2).tokens[:1]
    options: dict[str, Any] = {"max_new_tokens": STEPS, "do_sample": False, "use_cache": not by_length(loaded.spec)}
    theirs.generation_config.eos_token_id = None
    ids = torch.from_numpy(prompt.astype(np.int64))
    found = theirs.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)[0].tolist()[-STEPS:]
    if isinstance(model, EncoderDecoder):
        mine = generate(model, np.zeros((1, 1), np.int32), STEPS, source=prompt)
    else:
        mine = generate(model, prompt, STEPS)
    equal = sum(a == b for a, b in zip(np.asarray(mine)[0].tolist(), found, strict=True))
    return {"equal": equal, "tokens": STEPS, "different": len(set(found))}
