"""Groups of files that say nearly the same, so that all of a group can be kept on one side of a split.

    near(a, b)  =  |lines of a and of b|  >=  share * max(|lines of a|, |lines of b|)

over the different lines of 20 bytes or more, without the white space around them. Files that are near, or are linked by a
chain of files each near the next, are one group (union-find). That both must share half of their lines keeps short files with
one line of a licence from linking everything: in Python 3.11's standard library the groups of more than one file are 16, the
largest of 42 tables of characters in `encodings`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import combinations

LONG = 20
"""Bytes of a line that counts."""
SHARE = 0.5
MOST_FILES_OF_LINE = 500
"""Files beyond which a line is a formality, such as a licence, and is not counted: all pairs of them would be listed."""


def long_lines(content: bytes) -> frozenset[bytes]:
    """Return the different lines of 20 bytes or more, without the white space around them."""
    return frozenset(line for part in content.split(b"\n") if len(line := part.strip()) >= LONG)


def groups(lines: Mapping[str, frozenset[bytes]], share: float = SHARE) -> dict[str, str]:
    """Return the name that stands for the group of each file: the first of its names in order.

    Example:
      >>> licence, table = b"# This is the licence", [b"row %d of a long table" % i for i in range(9)]
      >>> files = {"a": [licence], "b": [licence, *table], "c": [licence, *table[1:]]}
      >>> groups({name: frozenset(content) for name, content in files.items()})
      {'a': 'a', 'b': 'b', 'c': 'b'}
    """
    holders: dict[bytes, list[str]] = defaultdict(list)
    for name in sorted(lines):
        for line in lines[name]:
            holders[line].append(name)
    few = [names for names in holders.values() if 1 < len(names) <= MOST_FILES_OF_LINE]
    shared = Counter(pair for names in few for pair in combinations(names, 2))
    first = {name: name for name in lines}

    def root(name: str) -> str:
        while first[name] != name:
            first[name] = name = first[first[name]]
        return name

    for (a, b), count in shared.items():
        if count >= share * max(len(lines[a]), len(lines[b])):
            ends = root(a), root(b)
            first[max(ends)] = min(ends)
    return {name: root(name) for name in lines}
