"""Data cards: every number in them, on tasks small enough to count by hand."""

import pytest

from attnjax.tasks import Copy, EvenPairs, Text, UniqueCopy, card


def rows(text):
    """The cells of every table line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_card_says_what_the_task_is():
    text = card(EvenPairs(), (1, 4), [(5, 12)], samples=200)
    table = rows(text)
    assert text.startswith("# EvenPairs\n\nWhether the number of pairs 01 and 10 is odd")
    assert ["input", "2", "`0` `1`"] in table
    assert ["4", "16", "2", "0.5", "0.5"] in table
    assert ["12", "4096", "2", "0.5", "0.5"] in table
    train, same, test = (row for row in table if row[0].startswith(("train", "test")))
    assert train[:2] + train[5:] == ["train", "1-4", "-"]
    # 200 draws from the 30 strings of lengths 1 to 4 leave out hardly any, and no string has two lengths.
    assert 25 <= int(train[4]) <= 30
    assert int(same[5]) >= 190
    assert test[5] == "0"
    assert test[2].startswith("5-12, mean ")
    assert test[3] == "1-1, mean 1.0"


def test_large_spaces_are_powers_of_ten_and_ranges_are_cut_to_what_the_task_has():
    # Python itself refuses to print numbers of more than 4,300 digits.
    assert ["2500", "about 1e5000", "about 1e5000", "0.01", "0"] in rows(card(Copy(), (2500, 2500), (), samples=1))
    text = card(UniqueCopy(symbols=9), (1, 40), (), samples=5)
    assert [row[1] for row in rows(text) if row[0] == "train"] == ["1-9"]
    with pytest.raises(ValueError, match=r"UniqueCopy\(symbols=9\) .* 1 \.\. 9, .* \(10, 20\)"):
        card(UniqueCopy(symbols=9), (10, 20), samples=5)
    with pytest.raises(ValueError, match="samples .* got 0"):
        card(EvenPairs(), samples=0)


def test_test_rows_of_a_text_are_drawn_from_its_test_split(tmp_path):
    """The first 90 % of the file are a and b, and its last 5 % are z alone, of which there is one crop of each length."""
    (tmp_path / "text").write_bytes(b"ab" * 4750 + b"z" * 500)
    text = Text(str(tmp_path / "text"))
    told = card(text.for_split("test"), (4, 4), [(6, 900)], samples=50)
    train, same, test = (row for row in rows(told) if row[0].startswith(("train", "test")))
    assert (train[1], train[4]) == ("4-4", "2")
    assert (same[1], same[4], same[5]) == ("4-4", "1", "0"), "50 of 50 were in train when they were drawn from it"
    assert test[1] == "6-499", "cut to the test split, which is shorter"
    for split, size in (("train", 9000), ("test", 500)):
        assert f"* {split}: {size} bytes, sha256 `{text.for_split(split).sha256}`" in told
