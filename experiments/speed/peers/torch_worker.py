"""PyTorch's contenders, in a process and an environment of their own; `torch_process` is the other end of the line.

    PYTHON -I torch_worker.py        PYTHON: of an environment with torch, NumPy, and x-transformers or transformers

Requests come as lines of JSON on standard input, each is answered by one line on standard output:

    {"op": "hello"}                                  -> versions, threads, vector instructions
    {"op": "prepare", "case": {...}, "arrays": path} -> facts of the case; reads its arrays, builds it, runs it once
    {"op": "run"}                                    -> {"seconds": of one run}
    {"op": "result", "path": path}                   -> {}; writes what the last run returned
    {"op": "quit"}                                   -> {}, and ends

or by {"error": text}. Arrays travel in NPZ files without objects. Cases:

    {"kind": "sdpa", "backward": b}         scaled_dot_product_attention with is_causal, the native kernel
    {"kind": "sdpa_bias", "backward": b}    the same with a float mask made from `bias` [N, T], a number per distance
    {"kind": "flex", "backward": b}         flex_attention, compiled; with `bias` as a score_mod where it is given, or with
                                            `positions` [B, N, T], whose difference it subtracts (no gradients on a CPU)
    {"kind": "training", ...}               steps of an x-transformers decoder; see `Training`
    {"kind": "generation", ...}             greedy tokens of a LLaMA of transformers; see `Generation`

Attention may have "device" ("cpu" or "cuda"), "dtype" and "constant", inputs without a gradient, beside these. It reads
q, k, v and, for gradients of sum(out * w), w: [B, T, N, H]. They are put into PyTorch's own layout, contiguous
[B, N, T, H], before the time starts, and results are turned back after it has ended: the peer pays for no transposition.
Nothing of attnjax or JAX is imported.
"""

import importlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np

Arrays = dict[str, np.ndarray]
SETTLE = 0.005
"""Seconds after a run before it is answered: threads of OpenMP have stopped waiting for more work by then."""


class Attention:
    """Causal attention of one kind; `__call__` returns the output, or output and gradients."""

    def __init__(self, case: dict[str, Any], arrays: Arrays):
        torch = self.torch = importlib.import_module("torch")
        self.backward, self.device = case["backward"], torch.device(case.get("device", "cpu"))
        dtype = getattr(torch, case.get("dtype", "float32"))
        own = lambda x: torch.from_numpy(x.swapaxes(1, 2).copy()).to(self.device, dtype)
        self.inputs = {name: own(arrays[name]) for name in "qkv"}
        self.cotangent = own(arrays["w"]) if self.backward else None
        for name in ("bias", "positions"):
            if name in arrays:
                self.inputs[name] = torch.from_numpy(arrays[name].copy()).to(self.device)
        self.learned = [name for name in self.inputs if self.backward and name not in case.get("constant", ())]
        for name in self.learned:
            self.inputs[name].requires_grad_()
        self.attend = {"sdpa": self._sdpa, "sdpa_bias": self._sdpa_bias, "flex": self._flex}[case["kind"]]()

    def __call__(self) -> list[Any]:
        value = self._value()
        if self.device.type == "cuda":  # which works on while Python goes on
            self.torch.cuda.synchronize()
        return value

    def _value(self) -> list[Any]:
        if not self.backward:
            with self.torch.no_grad():
                return [self.attend(**self.inputs)]
        out = self.attend(**self.inputs)
        return [out, *self.torch.autograd.grad(out, [self.inputs[name] for name in self.learned], self.cotangent)]

    def result(self, value: list[Any]) -> Arrays:
        """out, and dq, dk, dv [B, T, N, H], dbias [N, T], dpositions [B, N, T], in float32."""
        here = [x.detach().float().cpu().numpy() for x in value]
        names = ["out", *(f"d{name}" for name in self.learned)]
        return {name: x.swapaxes(1, 2) if x.ndim == 4 else x for name, x in zip(names, here, strict=False)}

    def facts(self) -> dict[str, Any]:
        """Nothing that a reader would not know."""
        return {}

    def _sdpa(self) -> Callable[..., Any]:
        return lambda q, k, v: self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def _sdpa_bias(self) -> Callable[..., Any]:
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return lambda q, k, v, bias: attention(q, k, v, attn_mask=self._mask(bias))

    def _mask(self, bias: Any) -> Any:
        """mask[h, i, j] = bias[h, i - j], and -inf for j > i: windows of one vector, which are rows from the last to
        the first. Of four ways to write it (indexing, embedding, padding and reshaping), this has the fastest gradient.
        """
        T = bias.shape[-1]
        hidden = bias.new_full((bias.shape[0], T - 1), -math.inf)
        return self.torch.cat([bias.flip(-1), hidden], -1).unfold(-1, T, 1).flip(1)[None]

    def _flex(self) -> Callable[..., Any]:
        flex = importlib.import_module("torch.nn.attention.flex_attention")
        compiled, T = self.torch.compile(flex.flex_attention, dynamic=False), self.inputs["q"].shape[2]
        block = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device=self.device.type)
        bias, pos = self.inputs.get("bias"), self.inputs.get("positions")
        score = None if bias is None else lambda s, b, h, i, j: s + bias[h, self.torch.clamp(i - j, min=0)]
        score = score if pos is None else lambda s, b, h, i, j: s - (pos[b, h, i] - pos[b, h, j])
        return lambda q, k, v, **_: compiled(q, k, v, score_mod=score, block_mask=block)


class Training:
    """An update of AdamW on each of some batches that were made beforehand: their making costs this side nothing.

    The case: layers, model (D), heads, hidden (F), vocab, compile, learning_rate, b1, b2, epsilon. Arrays: tokens
    and targets [steps, B, T]; a target below 0 does not count. The decoder is as our default one where x-transformers
    has a name for it: rotary, LayerNorm before each sublayer, GELU, tied embedding, no bias in attention; scaled
    dot-product attention is fused, and so is AdamW.
    """

    def __init__(self, case: dict[str, Any], arrays: Arrays):
        torch = self.torch = importlib.import_module("torch")
        if case["compile"] and not shutil.which("g++") and not shutil.which("clang++") and not os.environ.get("CXX"):
            raise ValueError("torch.compile needs a C++ compiler, and there is no g++ or clang++")
        torch.manual_seed(0)
        self.batches = list(zip(*(torch.from_numpy(arrays[x]).long() for x in ("tokens", "targets")), strict=True))
        self.model = self._decoder(case, length=arrays["tokens"].shape[2])
        loss = lambda x, y: torch.nn.functional.cross_entropy(
            self.model(x).flatten(0, 1), y.flatten(), ignore_index=-100
        )
        self.loss = torch.compile(loss, dynamic=False) if case["compile"] else loss
        betas = (case["b1"], case["b2"])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), case["learning_rate"], betas, case["epsilon"], weight_decay=0.0, fused=True
        )

    def _decoder(self, case: dict[str, Any], length: int) -> Any:
        xt = importlib.import_module("x_transformers")
        head = case["model"] // case["heads"]
        layers = xt.Decoder(
            dim=case["model"],
            depth=case["layers"],
            heads=case["heads"],
            attn_dim_head=head,
            attn_flash=True,
            ff_mult=case["hidden"] / case["model"],
            rotary_pos_emb=True,
            rotary_emb_dim=head,
            verbose=False,
        )
        return xt.TransformerWrapper(
            num_tokens=case["vocab"], max_seq_len=length, attn_layers=layers, tie_embedding=True
        )

    def __call__(self) -> list[float]:
        losses = []
        for tokens, targets in self.batches:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(tokens, targets)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        return [float(loss) for loss in losses]

    def result(self, value: list[float]) -> Arrays:
        """The loss of each step of the last run."""
        return {"loss": np.array(value)}

    def facts(self) -> dict[str, Any]:
        """How many numbers the model learns."""
        return {"parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad)}


class Generation:
    """Greedy tokens by `generate` of transformers, as users call it: a cache, fused attention, no gradient.

    The case: config (of a LLaMA, as in config.json), steps. Arrays: prompt [B, T], and every weight by its name. No token
    ends a text.
    """

    def __init__(self, case: dict[str, Any], arrays: Arrays):
        torch = self.torch = importlib.import_module("torch")
        transformers = importlib.import_module("transformers")
        config = transformers.LlamaConfig(**case["config"])
        self.model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
        self.prompt = torch.from_numpy(arrays.pop("prompt")).long()
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
        self.model.generation_config.eos_token_id = None
        self.options = {"max_new_tokens": case["steps"], "do_sample": False, "pad_token_id": 0}

    def __call__(self) -> Any:
        mask = self.torch.ones_like(self.prompt)
        return self.model.generate(self.prompt, attention_mask=mask, **self.options)

    def result(self, value: Any) -> Arrays:
        """The new tokens [B, steps], and the logits that each was the largest of [B, steps, V]."""
        first = self.prompt.shape[1]
        with self.torch.no_grad():
            logits = self.model(value[:, :-1]).logits[:, first - 1 :]
        return {"tokens": value[:, first:].numpy(), "logits": logits.numpy()}

    def facts(self) -> dict[str, Any]:
        """How many numbers the model has, and what its attention is."""
        count = sum(p.numel() for p in self.model.parameters())
        return {"parameters": count, "attention": self.model.config._attn_implementation}


KINDS = (("training", Training), ("generation", Generation))
"""What is not attention."""


class Worker:
    """Answers requests; holds the case that was prepared last, and what it returned."""

    def __init__(self) -> None:
        self.case: Any = None
        self.value: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request. Raises where it cannot be done."""
        match request["op"]:
            case "hello":
                return hello()
            case "prepare":
                self.case = self.value = None
                # Beyond some programs of one function, TorchDynamo compiles no more and runs the rest as it stands.
                importlib.import_module("torch").compiler.reset()
                with np.load(request["arrays"], allow_pickle=False) as file:
                    arrays = {name: file[name] for name in file.files}
                self.case = dict(KINDS).get(request["case"]["kind"], Attention)(request["case"], arrays)
                self.value = self.case()
                return self.case.facts()
            case "run":
                self.value = None
                start = time.perf_counter()
                self.value = self.case()
                seconds = time.perf_counter() - start
                time.sleep(SETTLE)
                return {"seconds": seconds}
            case "result":
                np.savez(request["path"], **self.case.result(self.value))
                return {}
            case "quit":
                return {}
        raise ValueError(f"unknown op {request['op']!r}")


def hello() -> dict[str, Any]:
    """What a reader must know of this side; sets the number of threads to that of the cores this process may use."""
    torch = importlib.import_module("torch")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(cores)
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "x-transformers", "numpy")},
        **({} if version("transformers") is None else {"transformers": version("transformers")}),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def version(distribution: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Answer until told to quit, or until nobody asks any more."""
    answers = _take_stdout()
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = worker.answer(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:4000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if request["op"] == "quit":
            break


def _take_stdout() -> IO[str]:
    """Standard output for answers alone; whatever a library prints goes where errors go."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
