"""Writes transformers.json: sentence embeddings by transformers, which reads the same folder.

    python experiments/minilm/reference.py MODEL experiments/minilm/transformers.json

It runs alone, in an environment with torch and transformers 5.24, and needs no file of this folder but facts.py. Embeddings are
made as the page of the model says: the mean of the features of all tokens that are no padding, at length 1.
"""

import hashlib
import json
import pathlib
import sys

import torch
import transformers
from facts import FACTS

LONG = 40
"""Sentences that are joined to one text of more than 510 tokens, cut at 512."""


def main(folder: str, out: str) -> None:
    """Read the folder in float32, and write texts and embeddings."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [text for fact in FACTS[:6] for text in fact] + [" ".join(statement for statement, _ in FACTS[:LONG])]
    given = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    with torch.no_grad():
        features = model(**given).last_hidden_state
    valid = given["attention_mask"][..., None]
    mean = (features * valid).sum(1) / valid.sum(1)
    embeddings = torch.nn.functional.normalize(mean, dim=1)
    made = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "sha256": hashlib.sha256((pathlib.Path(folder) / "model.safetensors").read_bytes()).hexdigest(),
        "texts": texts,
        "tokens": [int(one) for one in given["attention_mask"].sum(1)],
        "embeddings": [[round(float(one), 7) for one in row] for row in embeddings],
    }
    pathlib.Path(out).write_text(json.dumps(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
