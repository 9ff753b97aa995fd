"""A small LLaMA goes on with a text until its cache holds 2,048 tokens: ours in one compiled loop, against transformers.

    from one token     2,047 steps; time of a step, the cache growing
    from a long text   128 steps after 1,920 tokens; time of all, the reading of the text included

Both have the same random weights, those of ours by their published names, in float32. The logits of what the peer said are
compared before anything is timed, and so are the tokens: these may part only where two are equally likely up to rounding.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx

from attnjax.models import MODELS, Loaded
from attnjax.models.param_paths import abstract, parameters
from attnjax.models.saving import tensors_of
from attnjax.modules import generate
from experiments.speed.harness import Settings, agree, random_parameters
from experiments.speed.peers.torch_process import PeerError, TorchPeer, beside_torch, first_words
from experiments.speed.timing import cold, timed

SUITE = "generation"
GOAL = 1.5
TIE = 1e-3
"""Two tokens are equally likely where their logits differ by less than this part of the largest."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model, and (tokens of the prompt, steps) of each case."""

    layers: int = 8
    model: int = 512
    heads: int = 8
    hidden: int = 1376
    vocab: int = 32_000
    cases: tuple[tuple[int, int], ...] = ((1, 2047), (1920, 128))

    def config(self) -> dict[str, Any]:
        """As in config.json."""
        sizes = {"vocab_size": self.vocab, "hidden_size": self.model, "intermediate_size": self.hidden}
        sizes |= {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
        }
        length = max(sum(case) for case in self.cases)
        return {**sizes, "max_position_embeddings": length, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


FULL = Size()
SMOKE = Size(layers=2, model=32, heads=2, hidden=48, vocab=64, cases=((1, 12), (9, 4)))


@beside_torch
def generation(settings: Settings, peer: TorchPeer, known: dict[str, Any]) -> None:
    """One row for each case, against the environment that --torch names."""
    size = SMOKE if settings.smoke else FULL
    with cold(quick=settings.smoke):
        loaded = llama(size)
        for prompt, steps in size.cases:
            against(settings, peer, known, size, loaded, prompt, steps)


def llama(size: Size) -> Loaded:
    """Our model with random weights."""
    architecture = MODELS["llama"]
    spec = architecture.config(size.config())
    return Loaded(random_parameters(abstract(architecture, spec)), spec, architecture)


def against(
    settings: Settings, peer: TorchPeer, known: dict[str, Any], size: Size, loaded: Loaded, length: int, steps: int
) -> None:
    """The row of one case; a line in its place where the two do not agree."""
    prompt = np.random.default_rng(length).integers(1, size.vocab, (1, length), dtype=np.int32)
    case = f"{steps:,} tokens after {length:,}" + ("" if length == 1 else ", reading included")
    arrays = {**tensors_of(loaded, parameters(loaded.model)), "prompt": prompt}
    try:
        peer.prepare({"kind": SUITE, "config": size.config(), "steps": steps}, arrays)
        told = peer.results()
        mine = np.asarray(generate(loaded.model, prompt, steps))
        error, same = agreement(loaded, prompt, mine, told)
    except (PeerError, ValueError) as problem:
        text = first_words(problem) if isinstance(problem, PeerError) else str(problem)
        settings.refuse(f"{SUITE}: {case}: {text}, not measured")
        return
    taken = settings.race({"ours": timed(generate, loaded.model, prompt, steps), "theirs": peer.run})
    share = steps if length == 1 else 1
    ours, theirs = ([seconds / share for seconds in taken[name]] for name in ("ours", "theirs"))
    sizes = {"L": size.layers, "D": size.model, "N": size.heads, "F": size.hidden, "V": size.vocab}
    sizes |= {"B": 1, "cache": length + steps, "dtype": "float32", "torch": known}
    note = f"{same:,} of {steps:,} tokens are the same; {rate(steps, taken)}"
    fields: dict[str, Any] = {"suite": SUITE, "ours": "generate, one compiled loop", "peer": "transformers, generate"}
    fields |= {"sizes": sizes, "goal": GOAL, "error": error, "note": note}
    settings.row(ours, theirs, case=case + (", per token" if length == 1 else ""), **fields)


def agreement(loaded: Loaded, prompt: np.ndarray, tokens: np.ndarray, told: dict[str, np.ndarray]) -> tuple[float, int]:
    """The largest relative difference of logits after what the peer said, and how many tokens are the same from the first.

    Raises ValueError where the logits differ, or the tokens part although one of the two is clearly likelier.
    """
    theirs, logits = told["tokens"], told["logits"]
    whole = np.concatenate([prompt, theirs[:, :-1]], 1).astype(np.int32)
    graph, state = nnx.split(loaded.model, graph=False)
    run: Any = jax.jit(lambda state: nnx.merge(graph, state)(whole)[:, prompt.shape[1] - 1 :])
    error = agree(SUITE, run(state), logits)
    apart = np.flatnonzero((tokens != theirs)[0])
    if not apart.size:
        return error, tokens.shape[1]
    first = int(apart[0])
    row = logits[0, first]
    gap = abs(float(row[tokens[0, first]] - row[theirs[0, first]])) / float(np.abs(row).max())
    if gap > TIE:
        raise ValueError(f"token {first} is not the peer's, and its logit differs by {gap:.1g} of the largest")
    return error, first


def rate(steps: int, taken: dict[str, list[float]]) -> str:
    """Tokens per second of both, by the median round."""
    ours, theirs = (steps / float(np.median(taken[name])) for name in ("ours", "theirs"))
    return f"{ours:,.0f} tokens/s, the peer {theirs:,.0f}"
