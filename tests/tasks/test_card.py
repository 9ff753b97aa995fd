"""Data cards of tasks with very many answers, and with few lengths."""

from attnjax.tasks import Copy, UniqueCopy, card


def rows(text):
    """The cells of every table line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_large_numbers_are_powers_of_ten_and_lengths_are_cut_to_those_of_the_task():
    # Python itself refuses to print numbers of more than 4,300 digits.
    assert ["2500", "about 1e5000", "0.01", "0"] in rows(card(Copy(), (2500,)))
    assert [row[0] for row in rows(card(UniqueCopy(symbols=9))) if row[0].isdigit()] == ["1", "9"]
