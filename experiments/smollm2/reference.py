"""Writes transformers.json: the loss of each token of a text by transformers, which reads the same GGUF file.

    python experiments/smollm2/reference.py FILE.gguf LICENSE experiments/smollm2/transformers.json

It runs alone, in an environment with torch, transformers 5.24, accelerate and gguf.
"""

import hashlib
import json
import pathlib
import sys

import torch
import transformers

LENGTH = 256


def main(file: str, text: str, out: str) -> None:
    """Read the file in float32, and write the tokens and their losses in nats."""
    path = pathlib.Path(file)
    given = {"gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **given)
    tokens = tokenizer.encode(pathlib.Path(text).read_text(encoding="utf-8"))[:LENGTH]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    losses = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(tokens[1:]), reduction="none")
    made = {
        "transformers": transformers.__version__,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "tokens": tokens,
        "losses": [round(float(one), 6) for one in losses],
    }
    pathlib.Path(out).write_text(json.dumps(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
