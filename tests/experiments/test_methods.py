"""Every card of the package has an implementation, and the listing says where."""

import importlib
import json

from absl import flags
from absl.testing import flagsaver
import pytest

import creditjax
from creditjax.recipes import cards, list_recipes
from experiments import methods


@pytest.fixture(autouse=True)
def _parsed():
    flags.FLAGS.mark_as_parsed()


def test_every_card_is_a_recipe_or_names_what_implements_it():
    listed = methods.rows()
    assert not [row["id"] for row in listed if row["status"] == "missing"]
    assert {row["id"] for row in listed} >= set(list_recipes())
    assert all(card.family for card in cards().values())


@pytest.mark.parametrize("card", [c for c in cards().values() if c.symbol], ids=lambda card: card.id)
def test_symbols_are_there_and_say_what_they_are(card):
    module, _, name = card.symbol.rpartition(".")
    within = importlib.import_module(module)
    found = getattr(within, name) if hasattr(within, name) else importlib.import_module(card.symbol)
    assert found.__doc__ and len(found.__doc__) > 20
    assert card.id not in list_recipes(), "a recipe needs no symbol"


def test_the_listing_can_be_narrowed(capsys):
    with flagsaver.flagsaver(family=["tree"], json=True):
        methods.main(["methods"])
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in listed] == sorted(c.id for c in cards().values() if c.family == "tree")
    with flagsaver.flagsaver(needs="state_key"):
        methods.main(["methods"])
    assert "gigpo" in capsys.readouterr().out


def test_an_unknown_family_is_named():
    with flagsaver.flagsaver(family=["token_lvl"]), pytest.raises(SystemExit, match="token_level"):
        methods.main(["methods"])


def test_a_card_without_an_implementation_fails(monkeypatch, capsys):
    extra = creditjax.recipes.Card("nobody", "Nobody", "", "", "token", "", "token_level")
    monkeypatch.setattr(methods, "cards", lambda: {**cards(), "nobody": extra})
    with flagsaver.flagsaver(family=["token_level"]), pytest.raises(SystemExit):
        methods.main(["methods"])
    assert "without an implementation: nobody" in capsys.readouterr().out
