"""Continues texts with a published model in a folder, on the command line.

python -m attnjax.models models/gpt2 "The meaning of life is" --tokens 40
python -m attnjax.models models/gpt2 "The cat" "Once upon a time" --temperature 0.8 --top-k 40 --seed 1
python -m attnjax.models models/gpt2 "Once upon a time" --stop "The end"
python -m attnjax.models models/gpt2 - < prompts.txt
python -m attnjax.models models/gpt2 "464 3616" --ids
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from attnjax.models import Drawing, complete_batch, complete_texts, load, load_tokenizer
from attnjax.modules import Decoder


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the texts, or with --ids the tokens. Returns 2 for a mistake, with a sentence, and 130 for Ctrl-C."""
    try:
        _run(_parser().parse_intermixed_args(arguments))
    except (ValueError, OSError) as error:
        print(f"attnjax.models: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m attnjax.models",
        description=summary,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", help="config.json, safetensors and tokenizer.json")
    parser.add_argument("prompt", nargs="+", metavar="PROMPT", help="a text to continue; - is each line of the input")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="the largest number to add; default: 32")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0, the likeliest token")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="then from the likeliest with probability P together")
    parser.add_argument("--min-p", type=float, metavar="M", help="then from those M times as likely as the likeliest")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="prompt i draws with S + i; default: 0")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it; may be repeated")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: that of the files")
    parser.add_argument("--ids", action="store_true", help="prompts and answers are token ids; needs no tokenizer")
    return parser


def _run(chosen: argparse.Namespace) -> None:
    prompts = sys.stdin.read().splitlines() if chosen.prompt == ["-"] else chosen.prompt
    # Before the weights, which take longer: whatever is wrong with the tokenizer is said at once.
    tokenizer = None if chosen.ids else load_tokenizer(chosen.folder)
    loaded = load(chosen.folder, dtype=chosen.dtype)
    drawing: Any = {name: getattr(chosen, name) for name in Drawing.__annotations__}
    begin = time.perf_counter()
    if tokenizer is None:
        for tokens in complete_batch(loaded, [_ids(text) for text in prompts], chosen.tokens, **drawing):
            print(*tokens)
    else:
        texts = complete_texts(loaded, tokenizer, prompts, chosen.tokens, stop_strings=chosen.stop, **drawing)
        if isinstance(loaded.model, Decoder):
            texts = map(str.__add__, prompts, texts)
        print(*map(printable, texts), sep="\n---\n")
    print(f"{time.perf_counter() - begin:.2f} s, with compilation", file=sys.stderr)


def _ids(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]


def printable(text: str) -> str:
    """Returns text without control characters, which a terminal would obey."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


if __name__ == "__main__":
    sys.exit(main())
