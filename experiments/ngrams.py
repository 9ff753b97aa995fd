"""N-gram models of bytes of any order, as a bar for language models: what a text tells without long context.

    P_k(c | h) = (C(h c) + T(h) P_{k-1}(c | h')) / (C(h) + T(h)),        P_0(c) = 1 / 256

as in `attnjax.tasks.ngrams` (Witten and Bell 1991, method C), which stops at 3 bytes.
"""

from collections.abc import Callable

import numpy as np

from attnjax.typing import Float, Int

BITS, BYTES = 8, 256
NAMES = ("unigram", "bigram", "trigram")


def names(order: int) -> tuple[str, ...]:
    """Returns the names of the models up to an order.

    Example:
      >>> names(4)
      ('unigram', 'bigram', 'trigram', '4-gram')
    """
    return (*NAMES, *(f"{k}-gram" for k in range(4, order + 1)))[:order]


def losses(
    training: Int[np.ndarray, " n"], order: int
) -> Callable[[Int[np.ndarray, "B T+1"]], dict[str, Float[np.ndarray, "B T"]]]:
    """Returns the function of rows of bytes to the loss in nats of each byte but the first, by name.

    A byte with fewer than k - 1 bytes before it in its row has the loss of the next shorter model.

    Example:
      >>> of = losses(np.frombuffer(b"abababac", np.uint8), 3)
      >>> {name: [round(float(np.exp(-x)), 3) for x in row[0]] for name, row in of(np.array([[98, 97, 98]])).items()}
      {'unigram': [0.365, 0.274], 'bigram': [0.841, 0.591], 'trigram': [0.841, 0.637]}
    """
    text = np.asarray(training, np.int64)
    counted = [np.unique(_codes(text, k), return_counts=True) for k in range(1, order + 1)]

    def of(rows: Int[np.ndarray, "B T+1"]) -> dict[str, Float[np.ndarray, "B T"]]:
        rows = np.asarray(rows, np.int64)
        p, found = np.full((len(rows), rows.shape[1] - 1), 1 / BYTES), {}
        for k, name in enumerate(names(order), 1):
            codes, times = counted[k - 1]
            contexts, first, kinds = np.unique(codes >> BITS, return_index=True, return_counts=True)
            full = _codes(rows, k)[:, int(k == 1) :]
            seen = _look_up(contexts, np.add.reduceat(times, first), full >> BITS)
            different = _look_up(contexts, kinds, full >> BITS)
            shorter = p[:, max(k - 2, 0) :]
            longer = (_look_up(codes, times, full) + different * shorter) / np.maximum(seen + different, 1)
            p = p.copy()
            p[:, max(k - 2, 0) :] = np.where(seen > 0, longer, shorter)
            found[name] = -np.log(p)
        return found

    return of


def _codes(text: Int[np.ndarray, "*B n"], k: int) -> Int[np.ndarray, "*B n-k+1"]:
    """Returns each sequence of k bytes as one number, the first byte in the highest bits."""
    n = text.shape[-1] - k + 1
    return sum((text[..., i : i + n] << BITS * (k - 1 - i) for i in range(k)), np.zeros((), np.int64))


def _look_up(keys: Int[np.ndarray, " N"], values: Int[np.ndarray, " N"], wanted: Int[np.ndarray, "B T"]):
    """Returns the values of keys, which ascend; 0 for those that are not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
