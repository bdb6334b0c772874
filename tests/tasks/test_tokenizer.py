import numpy as np
import pytest

from creditjax.tasks.tokenizer import ASCII, CharTokenizer, pad_left


def test_round_trip():
    tokenizer = CharTokenizer()
    assert tokenizer.vocab_size == 3 + 96
    ids = tokenizer.encode(ASCII)
    assert ids == list(range(3, tokenizer.vocab_size))
    assert tokenizer.decode(ids) == ASCII


def test_special_ids():
    tokenizer = CharTokenizer("ab")
    assert (tokenizer.pad, tokenizer.end, tokenizer.unknown) == (0, 1, 2)
    assert tokenizer.encode("b?a") == [4, 2, 3]
    assert tokenizer.decode([0, 4, 2, 0, 3, 1, 4]) == "b\ufffda"  # nothing counts after the end
    assert tokenizer.decode([99, -1]) == "\ufffd\ufffd"
    assert tokenizer.pieces(np.array([0, 1, 2, 3])) == ["<pad>", "<end>", "\ufffd", "a"]
    assert CharTokenizer("\n").pieces([3]) == ["\u21b5"]


def test_alphabet_faults_are_named():
    with pytest.raises(ValueError, match=r"\['a'\] repeated"):
        CharTokenizer("aba")
    with pytest.raises(ValueError, match="no characters"):
        CharTokenizer("")


def test_left_padding():
    tokens, mask = pad_left([[5, 6], [], [7, 8, 9]], 3, pad=0)
    assert tokens.tolist() == [[0, 5, 6], [0, 0, 0], [7, 8, 9]]
    assert mask.tolist() == [[False, True, True], [False] * 3, [True] * 3]
    with pytest.raises(ValueError, match="row 0 has 4 tokens, longer than 3"):
        pad_left([[1, 2, 3, 4]], 3, pad=0)
