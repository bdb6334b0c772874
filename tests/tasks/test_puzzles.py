"""Oracles of three puzzles, against brute force."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.tasks import puzzles

BOARD = """
....
..#.
.G..
"""


@pytest.fixture(scope="module")
def search():
    return puzzles.sokoban(BOARD)


def test_search_distances_satisfy_their_equation(search):
    solved = np.array([box == (2, 1) for _, box in search.states])
    assert (search.distance[solved] == 0).all() and solved.any()
    best = np.where(search.distance == puzzles.UNSOLVABLE, 10**6, search.distance)[search.next].min(axis=1)
    far = ~solved
    known = np.where(search.distance == puzzles.UNSOLVABLE, 10**6 + 1, search.distance)
    np.testing.assert_array_equal(known[far], np.minimum(best + 1, 10**6 + 1)[far])
    # A box in a corner that is not the goal never leaves it.
    corner = [i for i, (_, box) in enumerate(search.states) if box == (0, 0)]
    assert (search.distance[corner] == puzzles.UNSOLVABLE).all()


def test_following_rewards_solves_the_puzzle_in_as_many_moves_as_it_is_far(search):
    reward = jax.jit(jax.vmap(lambda s, a: puzzles.search_reward(search, s, a)))
    count, actions = search.next.shape
    grid = np.indices((count, actions)).reshape(2, -1)
    r, after = (np.asarray(x).reshape(count, actions) for x in reward(*grid))
    np.testing.assert_array_equal(after, search.next)
    solvable = search.distance != puzzles.UNSOLVABLE
    lost = solvable[:, None] & ~solvable[search.next]
    np.testing.assert_array_equal(r == -1, lost)
    assert lost.any()
    for start in np.flatnonzero(solvable)[::7]:
        state, moves = start, 0
        while search.distance[state]:
            good = np.flatnonzero(r[state] == 1)
            state, moves = search.next[state, good[moves % len(good)]], moves + 1
        assert moves == search.distance[start]


def test_what_could_not_be_parsed_changes_nothing(search):
    r, after = puzzles.search_reward(search, jnp.int32(3), jnp.int32(puzzles.INVALID))
    assert float(r) == 0 and int(after) == 3


SOLUTION = np.array([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])


def test_sudoku_grades():
    board = SOLUTION.copy()
    board[0, 0] = board[0, 1] = board[1, 0] = board[3, 3] = -1
    grade = jax.jit(lambda b, cell, digit: puzzles.sudoku_reward(b, SOLUTION, cell, digit))
    assert float(grade(board, 15, 0)[0]) == 1.0  # forced
    assert float(grade(board, 15, 1)[0]) == 0.0
    assert float(grade(board, 5, 3)[0]) == 0.0  # filled
    for cell, digit in ((-1, 0), (16, 0)):
        r, after = grade(board, cell, digit)
        assert float(r) == 0 and (np.asarray(after) == board).all()
    r, after = grade(board, 15, 0)
    assert int(after[3, 3]) == 0 and (np.asarray(after)[:3] == board[:3]).all()
    # Nothing is written yet: every cell has four candidates, so each is one with the fewest.
    bare = np.full((4, 4), -1)
    assert float(grade(bare, 0, 0)[0]) == pytest.approx(0.8)
    bare[0, 3] = 3
    assert float(grade(bare, 0, 0)[0]) == pytest.approx(0.8)  # three candidates
    assert float(grade(bare, 9, 0)[0]) == pytest.approx(0.5)  # four


def test_sudoku_candidates_agree_with_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(5):
        board = np.where(rng.random((4, 4)) < 0.5, SOLUTION, -1)
        got = np.asarray(puzzles.sudoku_candidates(jnp.asarray(board)))
        for i, j, digit in itertools.product(range(4), repeat=3):
            box = board[i // 2 * 2 : i // 2 * 2 + 2, j // 2 * 2 : j // 2 * 2 + 2]
            free = digit not in board[i] and digit not in board[:, j] and digit not in box
            assert got[i, j, digit] == (free and board[i, j] < 0)
    with pytest.raises(ValueError, match=r"board: shape \[3, 3\]"):
        puzzles.sudoku_candidates(jnp.zeros((3, 3), int))


@pytest.mark.parametrize(("rows", "columns", "mines"), [(2, 3, 2), (3, 3, 2)])
def test_the_posterior_is_the_frequency_over_consistent_boards(rows, columns, mines):
    field = puzzles.minefield(rows, columns, mines)
    posterior = jax.jit(lambda shown: puzzles.mine_posterior(field, shown))
    cells, rng = rows * columns, np.random.default_rng(1)

    def count(layout, cell):
        i, j = divmod(cell, columns)
        near = [(a, b) for a in (i - 1, i, i + 1) for b in (j - 1, j, j + 1) if (a, b) != (i, j)]
        return sum(layout[a * columns + b] for a, b in near if 0 <= a < rows and 0 <= b < columns)

    for _ in range(10):
        truth = [False] * cells
        for cell in rng.choice(cells, mines, replace=False):
            truth[cell] = True
        shown = [count(truth, c) if not truth[c] and rng.random() < 0.4 else -1 for c in range(cells)]
        boards = []
        for chosen in itertools.combinations(range(cells), mines):
            layout = [c in chosen for c in range(cells)]
            if all(n < 0 or (not layout[c] and count(layout, c) == n) for c, n in enumerate(shown)):
                boards.append(layout)
        p = np.asarray(posterior(jnp.asarray(shown)))
        np.testing.assert_allclose(p, np.mean(boards, axis=0), atol=1e-6)
        assert p.sum() == pytest.approx(mines, abs=1e-5)
        hidden = [c for c in range(cells) if shown[c] < 0]
        for cell in (-1, *range(cells)):
            r = [float(puzzles.mine_reward(field, jnp.asarray(shown), jnp.int32(cell), flag)) for flag in (False, True)]
            least = min(p[c] for c in hidden)
            assert r == ([float(p[cell] == least), float(p[cell] == 1)] if cell in hidden else [0.0, 0.0])


def test_boards_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="board"):
        puzzles.sokoban("..\n.")
    with pytest.raises(ValueError, match="mines: 10"):
        puzzles.minefield(3, 3, 10)
    with pytest.raises(ValueError, match="layouts"):
        puzzles.minefield(6, 6, 12)
    with pytest.raises(ValueError, match="rows, columns: 0 x 2"):
        puzzles.minefield(0, 2, 0)
    assert puzzles.minefield(2, 2, 0).layouts.tolist() == [[False] * 4]
