"""Parameters that make no game, and numbers of any kind."""

import math

import numpy as np
import pytest

from creditjax.tasks import bifurcation, chains, hypergrid, pipeline


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bifurcation.single(3, 1, sees="all"), "sees: 'all', wanted one of state, turn, parity, nothing"),
        (lambda: bifurcation.single(3, 1, flip=math.nan), "flip: nan"),
        (lambda: chains.DiscountingChain(()), r"delays: \(\)"),
        (lambda: chains.DiscountingChain((-1, 2), best=0), r"delays: \(-1, 2\)"),
        (lambda: hypergrid.Hypergrid(near=-0.5), "near: -0.5, peak: 2.0, wanted at least 0"),
        (lambda: hypergrid.Hypergrid(floor=math.nan), "floor: nan"),
        (lambda: pipeline.Pipeline((1.0, 2.0)).coalition_value(np.ones((3, 1))), r"tokens: shape \[3, 1\]"),
        (lambda: pipeline.Pipeline((1.0, 2.0)).shapley(np.ones(2)), r"tokens: shape \[2\], wanted \[L, 2\]"),
    ],
)
def test_what_is_no_game_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_whole_weights_split_a_synergy_in_halves():
    game = pipeline.Pipeline((1, 2), {(0, 1): 1})
    np.testing.assert_array_equal(game.shapley([[1, 1], [1, 0]]), [[1.5, 2.5], [1.0, 0.0]])
