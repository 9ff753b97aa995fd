"""Data cards: every number in them, on tasks small enough to count by hand."""

from attnjax.tasks import Copy, EvenPairs, UniqueCopy, card


def rows(text):
    """The cells of every table line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_card_says_what_the_task_is():
    text = card(EvenPairs(), (4, 12))
    table = rows(text)
    assert text.startswith("# EvenPairs\n\nWhether the number of pairs 01 and 10 is odd")
    assert ["input", "2", "`0` `1`"] in table
    assert ["4", "2", "0.5", "0.5"] in table
    assert ["12", "2", "0.5", "0.5"] in table


def test_large_numbers_are_powers_of_ten_and_lengths_are_cut_to_those_of_the_task():
    # Python itself refuses to print numbers of more than 4,300 digits.
    assert ["2500", "about 1e5000", "0.01", "0"] in rows(card(Copy(), (2500,)))
    assert [row[0] for row in rows(card(UniqueCopy(symbols=9))) if row[0].isdigit()] == ["1", "9"]
