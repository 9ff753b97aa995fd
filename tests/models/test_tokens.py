"""Text to tokens and back; special tokens as AutoTokenizer of transformers adds them; files that are missing or damaged."""

import json
import sys

import pytest

from attnjax.models import ModelError
from attnjax.models.tokens import SIZE, load_tokenizer

UNKNOWN = "[?]"
WORDS = {"[S]": 0, UNKNOWN: 1, "the": 2, "dog": 3, "barks": 4, "[PAD]": 5, "[E]": 6}
tokenizers = pytest.importorskip("tokenizers")


def written(path, template: str | None = None, **config):
    """A tokenizer of seven words, that would cut after two tokens and pad to eight."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token=UNKNOWN))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[S]", "[PAD]", "[E]"])
    if template is not None:
        special = [("[S]", 0), ("[E]", 6)]
        made.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=special)
    made.enable_truncation(2)
    made.enable_padding(pad_id=5, length=8)
    made.save(str(path / "tokenizer.json"))
    if config:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(path)


def test_text_and_tokens(tmp_path):
    found = written(tmp_path, "[S] $A")
    assert found.encode("the dog barks the dog") == [0, 2, 3, 4, 2, 3], "neither cut nor padded"
    assert found.encode("the cat") == [0, 2, 1]
    assert found.decode([0, 2, 3, 4]) == "the dog barks"
    assert found.encode("") == [0]
    assert found.decode([]) == ""


@pytest.mark.parametrize(
    ("template", "text", "whole", "continued"),
    [
        (None, "the dog", [2, 3], [2, 3]),
        ("[S] $A", "the dog", [0, 2, 3], [0, 2, 3]),
        ("[S] $A", "[S] the dog", [0, 2, 3], [0, 2, 3]),
        ("$A [E]", "the dog", [2, 3, 6], [2, 3]),
        ("$A [E]", "the dog [E]", [2, 3, 6], [2, 3, 6]),
        ("[S] $A [E]", "[S] the dog [E]", [0, 2, 3, 6], [0, 2, 3, 6]),
        ("[S] $A [E]", "", [0, 6], [0]),
    ],
)
def test_special_tokens_stand_once_and_none_behind_a_text_that_goes_on(tmp_path, template, text, whole, continued):
    found = written(tmp_path, template)
    assert found.encode(text) == whole
    assert found.encode(text, continued=True) == continued


@pytest.mark.parametrize(
    ("template", "config", "expected"),
    [
        (None, {"add_bos_token": True}, [0, 2, 3]),
        (None, {"add_bos_token": True, "add_eos_token": True}, [0, 2, 3, 6]),
        (None, {"add_bos_token": False}, [2, 3]),
        (None, {}, [2, 3]),
        ("[S] $A", {"add_bos_token": True, "add_eos_token": False}, [0, 2, 3]),
        ("[S] $A [E]", {"add_bos_token": False}, [2, 3, 6]),
        ("[S] $A [E]", {"add_eos_token": False}, [0, 2, 3]),
    ],
)
def test_tokenizer_config_says_which_are_added(tmp_path, template, config, expected):
    """`update_post_processor` of transformers makes the template "[S] $A [E]" from these keys."""
    bos = {"bos_token": {"content": "[S]", "special": True}, "eos_token": "[E]"}
    assert written(tmp_path, template, **bos, **config).encode("the dog") == expected


def test_a_token_to_be_added_that_is_none(tmp_path):
    with pytest.raises(ModelError, match="add_bos_token, and its bos_token None"):
        written(tmp_path, add_bos_token=True)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "[S]"}))
    assert load_tokenizer(tmp_path).encode("the") == [0, 2]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"{", b"\xff\xfe", b'{"version": "1.0"}', b"[" * 100_000, b'{"model": {"type": "BPE"}}']
)
def test_a_tokenizer_that_is_none(tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ModelError, match=r"tokenizer\.json is no tokenizer: "):
        load_tokenizer(tmp_path)


def test_too_large_missing_or_elsewhere(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"has no tokenizer\.json.*AutoTokenizer.*save_pretrained\(FOLDER\)"):
        load_tokenizer(tmp_path)
    with (tmp_path / "tokenizer.json").open("wb") as sparse:
        sparse.truncate(SIZE + 1)
    with pytest.raises(ValueError, match=f"larger than {SIZE} bytes"):
        load_tokenizer(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(ModelError, match="is a link out of the folder"):
        load_tokenizer(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModelError, match=r"pip install 'attnjax\[models\]'"):
        load_tokenizer(tmp_path)
