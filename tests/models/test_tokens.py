"""Text to tokens and back; and a tokenizer.json that is missing, damaged, too large, or needs a library that is not there."""

import json
import sys

import pytest

from attnjax.models.errors import DamagedFile, MissingPackage, UnsafePath
from attnjax.models.tokens import SIZE, load_tokenizer

UNKNOWN, PAD = "[?]", "[PAD]"
WORDS = {"[S]": 0, UNKNOWN: 1, "the": 2, "dog": 3, "barks": 4, PAD: 5}


@pytest.fixture
def tokenizer(tmp_path):
    """A folder with a tokenizer of six words, that would cut after two and pad to eight."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token=UNKNOWN))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[S]", PAD])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[S] $A", special_tokens=[("[S]", 0)])
    made.enable_truncation(2)
    made.enable_padding(pad_id=5, pad_token=PAD, length=8)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_text_and_tokens(tokenizer):
    found = load_tokenizer(tokenizer)
    assert found.size == 6
    assert found.encode("the dog barks the dog") == [0, 2, 3, 4, 2, 3], "neither cut nor padded"
    assert found.encode("the cat", specials=False) == [2, 1]
    assert found.decode([0, 2, 3, 4]) == "the dog barks"
    assert found.decode([0, 2], specials=True) == "[S] the"
    assert found.encode("", specials=False) == []
    assert found.decode([]) == ""
    with pytest.raises(ValueError, match="a token must be at least 0, got -1"):
        found.decode([2, -1])


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"{", b"\xff\xfe", b'{"version": "1.0"}', b"[" * 100_000, b'{"model": {"type": "BPE"}}']
)
def test_a_tokenizer_that_is_none(tmp_path, data):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(DamagedFile, match=r"tokenizer\.json is no tokenizer: "):
        load_tokenizer(tmp_path)


def test_too_large_missing_or_elsewhere(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(
        DamagedFile, match=r"has no tokenizer\.json.*AutoTokenizer.*save_pretrained\(FOLDER\) writes one"
    ):
        load_tokenizer(tmp_path)
    with (tmp_path / "tokenizer.json").open("wb") as sparse:
        sparse.truncate(SIZE + 1)
    with pytest.raises(DamagedFile, match="has 67,108,865 bytes, more than the 67,108,864 that such a file may have"):
        load_tokenizer(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(UnsafePath, match="is a link out of the folder"):
        load_tokenizer(tmp_path / "model")


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text(json.dumps({}))
    with pytest.raises(MissingPackage, match=r"needs the library tokenizers: pip install 'attnjax\[models\]'"):
        load_tokenizer(tmp_path)
