"""A model that is planted, not trained: `Reader(window)` reads the six tasks of RULER off the last bytes of a text."""

import re
from collections import Counter

import numpy as np

WHOLE = 10**6
"""A window that holds everything."""


def needle(question, text):
    """The value of the key that is asked for."""
    key = re.findall(r"magic \w+ for (\S+) mentioned in the provided text is", question)[-1]
    return re.findall(rf"for {re.escape(key)} is: (\S+)\.", text)[:1]


def chain(question, text):
    """The variables that have the value, directly or through others."""
    value = re.findall(r"assigned the value (\d+), they are:", question)[-1]
    found = re.findall(rf"VAR ([A-Z]+) = {value}", text)[:1]
    while found and (more := re.findall(rf"VAR ([A-Z]+) = VAR {found[-1]}\b", text)):
        found.append(more[0])
    return found


LISTED, CODED = "that appear most often.\n", "coded words. "
"""Where the last list of `cwe` and the text of `fwe` begin."""


def common(question, text):
    """The ten words that stand most often in what is seen of the numbered list."""
    del question
    words = re.findall(r"\d+\. ([a-z-]+)", text.rpartition("\nQuestion:")[0].rpartition(LISTED)[2])
    return [word for word, _ in Counter(words).most_common(10)]


def frequent(question, text):
    """The three most frequent coded words of what is seen of the text."""
    del question
    words = re.findall(r"\b[a-z]{6}\b", text.rpartition("\nQuestion:")[0].rpartition(CODED)[2])
    return [word for word, _ in Counter(words).most_common(3)]


def all_of(begin, find):
    """`find` where the beginning is seen, and no answer otherwise: the whole cannot be told from a part for certain."""
    return lambda question, text: find(question, text) if begin in text else []


ENDS = {
    "mentioned in the provided text is": needle,
    "they are: ": chain,
    "in the list are:": all_of(LISTED, common),
    "appeared words are:": all_of(CODED, frequent),
}
"""The end of the prefix of an answer, and what finds it."""


class Reader:
    """A model of bytes that answers from the last `window` bytes, and says "?" where they hold no answer: a `Subject`."""

    name, bytewise, trained_on, note, before = "planted", True, None, "", ()

    def __init__(self, window):
        self.window = window

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode()

    def count(self, text):
        return len(text.encode())

    def split(self, text):
        """The text up to the answer, which begins after the last prefix, and how the answer is found."""
        place, end = max((text.rfind(end) + len(end), end) for end in ENDS if end in text)
        return text[:place], ENDS[end]

    def answers(self, text):
        prompt, find = self.split(text)
        return find(prompt, prompt[-self.window :])

    def endings(self, prompt, told, size):
        """Of bytes of a right answer 0.1 nats each, of all others 3."""
        out = []
        for one in told:
            text = bytes([*prompt, *one]).decode()
            right = text[len(self.split(text)[0]) :].strip() in self.answers(text)
            out.append(np.full(len(one), 0.1 if right else 3.0))
        return out

    def complete(self, prompts, size, steps):
        assert all(len(prompt) <= size for prompt in prompts)
        told = [f" {' '.join(self.answers(bytes(prompt).decode())) or '?'}".encode() for prompt in prompts]
        return np.array([np.frombuffer(one[:steps].ljust(steps), np.uint8) for one in told])
