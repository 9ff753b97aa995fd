"""Every task once more, slowly: plain Python over lists and ints, with a parser for expressions and big integers.

`answer(name, task, x)` gives the answer to the input tokens x and how many of its tokens count. It shares nothing with
the tasks but their token numbers, and asserts that x is an input that the definition allows.
"""

import itertools
import math
from collections import Counter


def number(bits, base=2):
    """The value of digits, highest first."""
    value = 0
    for bit in bits:
        value = value * base + bit
    return value


def numeral(value, base=2):
    """The digits of a value, highest first, without leading zeros."""
    out = [value % base]
    while value >= base:
        value //= base
        out.append(value % base)
    return out[::-1]


def split_at(x, token):
    assert x.count(token) == 1
    return x[: x.index(token)], x[x.index(token) + 1 :]


def flat(tokens):
    """Value of `digit op digit ...`: + - * are 5 6 7, and * binds tighter."""
    assert all(d < 5 for d in tokens[::2])
    assert all(5 <= o <= 7 for o in tokens[1::2])
    terms, sign = [], 1
    product = tokens[0]
    for operator, digit in zip(tokens[1::2], tokens[2::2], strict=True):
        if operator == 7:
            product *= digit
        else:
            terms.append(sign * product)
            sign, product = (1 if operator == 5 else -1), digit
    return sum([*terms, sign * product]) % 5


class Parser:
    """Reads `d`, `-d`, `(d)`, `(-d)` and `(e op e)`, written as characters."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def take(self):
        self.at += 1
        return self.text[self.at - 1]

    def whole(self):
        value = self.expression()
        assert self.at == len(self.text)
        return value % 5

    def expression(self):
        first = self.take()
        if first == "-":
            return -int(self.take())
        if first.isdigit():
            return int(first)
        assert first == "("
        begin = self.at
        left = self.expression()
        operator = self.take()
        if operator == ")":
            assert self.at - begin - 1 <= 2, "only (d) and (-d) have brackets round one operand"
            return left
        right = self.expression()
        assert self.take() == ")"
        return {"+": left + right, "-": left - right, "*": left * right}[operator]


def spelled(tokens, names):
    return "".join("01234"[t] if t < 5 else names[t - 5] for t in tokens)


def whole(x):
    return x, len(x)


def even_pairs(task, x):
    return whole([sum(a != b for a, b in itertools.pairwise(x)) % 2])


def modular_arithmetic(task, x):
    return whole([flat(x)])


def parity_check(task, x):
    return whole([x.count(1) % 2])


def cycle_navigation(task, x):
    return whole([(x.count(2) - x.count(0)) % 5])


def stack_manipulation(task, x):
    stack, actions = [t for t in x if t < 2], [t for t in x if t >= 2]
    assert x == stack + actions
    assert stack
    assert actions or len(x) == 1
    for action in actions:
        if action > 2:
            stack.append(action - 3)
        elif stack:
            stack.pop()
    return stack[::-1] + [2] + [0] * (len(x) - len(stack)), len(stack) + 1


def reverse_string(task, x):
    return whole(x[::-1])


def modular_arithmetic_brackets(task, x):
    return whole([Parser(spelled(x, "+-*()")).whole()])


def solve_equation(task, x):
    if len(x) < 3:
        assert not any(x)
        return whole([0])
    text = spelled(x, "+-()x=")
    left, right = text[:-2], int(text[-1])
    assert text[-2] == "="
    assert left.count("x") == 1
    solutions = [d for d in range(5) if Parser(left.replace("x", str(d))).whole() == right]
    assert len(solutions) == 1
    return whole(solutions)


def duplicate_string(task, x):
    return whole(x + x)


def missing_duplicate_string(task, x):
    if len(x) == 1:
        assert x == [1]
        return whole([1])
    half = len(x) // 2
    assert x[2 * half :] == [3] * (len(x) % 2)
    first, second = x[:half], x[half : 2 * half]
    assert sorted(set(first + second))[-1] == 2
    assert (first + second).count(2) == 1
    at = (first + second).index(2) % half
    filled = [a if b == 2 else b for a, b in zip(first, second, strict=True)]
    assert filled == [b if a == 2 else a for a, b in zip(first, second, strict=True)]
    return whole([filled[at]])


def odds_first(task, x):
    return whole([t for i, t in enumerate(x) if i % 2] + [t for i, t in enumerate(x) if i % 2 == 0])


def binary(x):
    """Both operands of `n 2 m`, lowest bit first."""
    n, m = split_at(x, 2)
    assert any(n)
    assert any(m)
    return number(n[::-1]), number(m[::-1])


def closed(bits, size):
    return bits + [2] + [0] * (size - len(bits) - 1), len(bits) + 1


def binary_addition(task, x):
    total = number(x[::-1]) if len(x) < 3 else sum(binary(x))
    return closed(numeral(total)[::-1], len(x) + 1)


def binary_multiplication(task, x):
    if len(x) < 3:
        return closed([0] * (len(x) - 1), len(x))
    return closed(numeral(math.prod(binary(x)))[::-1], len(x))


def compute_sqrt(task, x):
    assert any(x)
    root, size = numeral(math.isqrt(number(x))), (len(x) + 1) // 2
    return whole([0] * (size - len(root)) + root)


def bucket_sort(task, x):
    return whole(sorted(x))


def most_common(x):
    ranked = Counter(x).most_common(2)
    assert len(ranked) == 1 or ranked[0][1] > ranked[1][1]
    return ranked[0][0]


def binary_majority(task, x):
    return whole([most_common(x)])


def majority(task, x):
    return whole([most_common(x)])


def interleaved_majority(task, x):
    assert len(x) % task.period == 0
    return whole([most_common(x[i :: task.period]) for i in range(task.period)])


def parity(task, x):
    return whole([3 if sum(x) % 2 else 2])


def sort(task, x):
    assert len(set(x)) == len(x)
    return whole(sorted(x))


def unique_copy(task, x):
    assert len(set(x)) == len(x)
    return whole(x)


def repeated_copy(task, x):
    return whole(x)


def big_endian_addition(task, x):
    n, m = split_at(x, 2)
    assert all(bits[0] == 1 or len(bits) == 1 for bits in (n, m))
    return whole(numeral(number(n) + number(m)))


def copy(task, x):
    if task.variant == "rdc":
        source, target, *rest = x
        assert source != target
        assert set(rest) == {source}
        return whole([target] * len(rest))
    if task.variant.startswith("rsc"):
        assert len(set(x)) == 1
        return whole(x * 2 if task.variant == "rsc2x" else x)
    return whole([*x, task.symbols, *x] if task.variant == "cmc2x" else x)


def reverse(task, x):
    back = list(reversed(x))
    if task.variant == "mc":
        return whole(back)
    return whole([*back, task.symbols, *(x if task.variant == "mcrv" else back)])


def addition(task, x):
    n, m = split_at(x, 10)
    if task.order == "reversed":
        n, m = n[::-1], m[::-1]
    assert all(digits[0] > 0 or len(digits) == 1 for digits in (n, m))
    if task.operands == "equal":
        assert len(n) == len(m)
    total = numeral(number(n, 10) + number(m, 10), 10)
    return whole(total if task.order == "plain" else total[::-1])


def associative_recall(task, x):
    *pairs, query = x
    keys, values = pairs[::2], pairs[1::2]
    assert len(set(keys)) == len(keys)
    assert all(k < task.keys <= v < task.keys + task.values for k, v in zip(keys, values, strict=True))
    return whole([dict(zip(keys, values, strict=True))[query]])


def induction(task, x):
    """Here the counted targets are the last ones."""
    n = (len(x) + 1) // 2
    s = x[:n]
    assert task.repeats or len(set(s)) == n
    assert x[n:] == s[:-1]
    return (s + s)[1:], n - 1


def mqar(task, x):
    """For filler of zeros: a key after the pairs is a query."""
    n = 2 * task.pairs
    values = dict(zip(x[:n:2], x[1:n:2], strict=True))
    assert len(values) == len(set(values.values())) == task.pairs
    assert all(0 < k < task.vocab // 2 <= v < task.vocab for k, v in values.items())
    assert sorted(token for token in x[n::2] if token) == sorted(values)
    assert not any(x[n + 1 :: 2])
    return [0] * n + [values.get(token, 0) for token in x[n:]], task.pairs


def flip_flop(task, x):
    """Tokens w r i 0 1 are 0 1 2 3 4."""
    memory, out, reads = None, [], 0
    assert x[0] == 0
    assert x[-1] == 1
    for instruction, bit in itertools.zip_longest(x[::2], x[1::2]):
        assert 0 <= instruction <= 2
        if instruction == 1:
            assert bit in (memory, None)
            bit, reads = memory, reads + 1
        assert bit in (3, 4)
        memory = bit if instruction == 0 else memory
        out += [instruction, bit]
    return out[1:], reads


def word_problem(task, x):
    """By following five things through one permutation after another."""
    even = lambda p: sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0
    group = [p for p in itertools.permutations(range(5)) if task.group == "S5" or even(p)]
    state, out = tuple(range(5)), []
    for token in x:
        state = tuple(state[group[token][i]] for i in range(5))
        out.append(group.index(state))
    return whole(out)


def posgen(task, x):
    """The first tokens are given, and all others follow."""
    known, out = task.near + task.far, list(x[: task.near + task.far])
    for made in range(len(x) + 1 - known):
        begin = {"recurrent": made, "cot": 0, "semi_recurrent": made // 2}[task.rule]
        out.append((sum(out[-task.near :]) + sum(out[begin : begin + task.far])) % task.modulus)
    assert out[:-1] == x
    return out[1:], len(x) + 1 - known


def answer(name, task, x):
    """The answer to x and how many of its tokens count."""
    return globals()[name](task, x)
