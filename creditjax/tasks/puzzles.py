"""Three puzzles whose moves an exact oracle grades: by search, by constraint, by posterior (VPR, arXiv:2605.10325).

    search       a box to be pushed onto its goal (Sokoban): right moves lie on a shortest solution
    constraint   Latin squares with boxes (Sudoku): right digits agree with the unique solution, forced ones count most
    posterior    hidden mines (Minesweeper): right moves are safe, or as safe as any

Tables are made once on the host in NumPy, for boards that are small enough; what grades a move is pure JAX of one
state, to be vmapped. An action of -1 could not be parsed; like a blocked one it scores 0 and changes nothing.
"""

import itertools
import math
from typing import NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

Array = jax.Array

INVALID = -1
UNSOLVABLE = np.iinfo(np.int32).max
# Up, down, left, right.
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


# ------------------------------------------------------------------------------------------------------------- search


class Search(NamedTuple):
    """A puzzle laid out: where each action leads, and how far every state is from a solved one.

    Attributes:
      next: i32 ``[S, A]``; an action that is blocked leads back.
      distance: i32 ``[S]``, fewest actions to a solved state, `UNSOLVABLE` where none is.
      states: what each state is.
    """

    next: np.ndarray
    distance: np.ndarray
    states: tuple


def distances(next_state: np.ndarray, solved: np.ndarray) -> np.ndarray:
    """Fewest actions from every state to a solved one, i32 ``[S]``, by breadth-first search backwards.

    Args:
      next_state: i32 ``[S, A]``.
      solved: bool ``[S]``.
    """
    found = np.where(solved, 0, UNSOLVABLE).astype(np.int32)
    step = 0
    while (fresh := (found == UNSOLVABLE) & (found[next_state] == step).any(axis=1)).any():
        step += 1
        found[fresh] = step
    return found


def sokoban(board: str) -> Search:
    """One box on a board of rows of ``#`` (wall), ``.`` (floor) and ``G`` (its goal): all places of player and box.

    >>> search = sokoban("..G")
    >>> search.distance[search.states.index(((0, 0), (0, 1)))].item()
    1

    Raises:
      ValueError: rows of unequal length, another character, or not exactly one goal.
    """
    rows = board.split()
    if len({len(row) for row in rows}) != 1 or not set("".join(rows)) <= set("#.G") or board.count("G") != 1:
        raise ValueError(f"board: {board!r}, wanted equal rows of '#', '.' and one 'G'")
    floor = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell != "#"}
    goal = next((i, j) for i, j in floor if rows[i][j] == "G")
    states = tuple((player, box) for player in sorted(floor) for box in sorted(floor) if player != box)
    index = {state: i for i, state in enumerate(states)}

    def moved(player, box, step):
        ahead, beyond = (tuple(a + n * b for a, b in zip(player, step, strict=True)) for n in (1, 2))
        blocked = ahead not in floor or (ahead == box and beyond not in floor)
        return (player, box) if blocked else (ahead, beyond if ahead == box else box)

    table = np.array([[index[moved(*state, step)] for step in _MOVES] for state in states], np.int32)
    return Search(table, distances(table, np.array([box == goal for _, box in states])), states)


def search_reward(search: Search, state: Array, action: Array) -> tuple[Array, Array]:
    """1 for an action that comes a step nearer to a solved state, -1 for one that makes the puzzle unsolvable, else 0;
    and the state after it.

    From a state at distance D, D rewarded actions solve the puzzle.
    """
    valid = (action >= 0) & (action < search.next.shape[1])
    after = jnp.where(valid, jnp.asarray(search.next)[state, jnp.maximum(action, 0)], state)
    here, there = jnp.asarray(search.distance)[state], jnp.asarray(search.distance)[after]
    solvable = here != UNSOLVABLE
    lost = solvable & (there == UNSOLVABLE)
    return jnp.where(solvable & (there == here - 1), 1.0, jnp.where(lost, -1.0, 0.0)), after


# --------------------------------------------------------------------------------------------------------- constraint


def sudoku_candidates(board: Array) -> Array:
    """Digits that no row, column or box forbids at each empty cell, bool ``[n, n, n]``; none at filled ones.

    Args:
      board: i32 ``[n, n]``, digits 0 to n - 1, -1 for empty; n is a square number.
    """
    n = board.shape[0]
    root = round(n**0.5)
    if board.shape != (n, n) or root * root != n:
        raise ValueError(f"board: shape {list(board.shape)}, wanted [n, n] with n a square number")
    used = board[..., None] == jnp.arange(n)
    box = used.reshape(root, root, root, root, n).any(axis=(1, 3))
    box = jnp.repeat(jnp.repeat(box, root, axis=0), root, axis=1)
    taken = used.any(axis=0, keepdims=True) | used.any(axis=1, keepdims=True) | box
    return ~taken & (board < 0)[..., None]


def sudoku_reward(
    board: Array, solution: Array, cell: Array, digit: Array, r_mrv: float = 0.8, r_legal: float = 0.5
) -> tuple[Array, Array]:
    """How good it is to write `digit` into `cell`, and the board after it.

    ==========================================================================  =========
    the cell's only candidate, and right                                        1
    right, in a cell with the fewest candidates of all                          `r_mrv`
    right, elsewhere                                                            `r_legal`
    wrong, on a filled cell, or no action: the board stays as it is             0
    ==========================================================================  =========

    Args:
      board: as in :func:`sudoku_candidates`.
      solution: i32 ``[n, n]``, the unique one.
      cell: i32 scalar, row-major, or -1.
      digit: i32 scalar.
      r_mrv: see the table ("minimum remaining values").
      r_legal: see the table.
    """
    n = board.shape[0]
    count = jnp.sum(sudoku_candidates(board), axis=-1).reshape(-1)
    empty = (board < 0).reshape(-1)
    fewest = jnp.min(jnp.where(empty, count, n + 1))
    at = jnp.clip(cell, 0, n * n - 1)
    valid = (cell >= 0) & (cell < n * n) & empty[at]
    right = valid & (jnp.asarray(solution).reshape(-1)[at] == digit)
    grade = jnp.where(count[at] == 1, 1.0, jnp.where(count[at] == fewest, r_mrv, r_legal))
    after = board.reshape(-1).at[at].set(jnp.where(right, digit, board.reshape(-1)[at])).reshape(n, n)
    return jnp.where(right, grade, 0.0), after


# ---------------------------------------------------------------------------------------------------------- posterior


class Minefield(NamedTuple):
    """All layouts of a number of mines on a board.

    Attributes:
      layouts: bool ``[L, cells]``.
      counts: i32 ``[L, cells]``, mines in the (up to eight) cells around each.
    """

    layouts: np.ndarray
    counts: np.ndarray


def minefield(rows: int, columns: int, mines: int, most: int = 200_000) -> Minefield:
    """Enumerates the layouts.

    Raises:
      ValueError: a field without cells, more mines than cells, or more than `most` layouts.
    """
    if rows < 1 or columns < 1:
        raise ValueError(f"rows, columns: {rows} x {columns}, wanted at least one of each")
    cells = rows * columns
    if not 0 <= mines <= cells or math.comb(cells, mines) > most:
        raise ValueError(
            f"mines: {mines} on {rows} x {columns} cells, wanted at most {most} layouts of at most {cells}"
        )
    count = math.comb(cells, mines)
    chosen = np.array(list(itertools.combinations(range(cells), mines)), np.int32).reshape(count, mines)
    layouts = np.zeros((len(chosen), cells), bool)
    np.put_along_axis(layouts, chosen, True, axis=1)
    row, column = np.divmod(np.arange(cells), columns)
    near = (abs(row[:, None] - row) <= 1) & (abs(column[:, None] - column) <= 1) & ~np.eye(cells, dtype=bool)
    return Minefield(layouts, layouts.astype(np.int32) @ near.astype(np.int32))


def mine_posterior(field: Minefield, shown: Array) -> Array:
    """Probability of a mine at each cell, f32 ``[cells]``, all layouts that agree with what is shown being equally
    likely.

    The probabilities add up to the number of mines.

    Args:
      field: the layouts.
      shown: i32 ``[cells]``, the count at each revealed cell, -1 at hidden ones.
    """
    revealed = shown >= 0
    agrees = jnp.all(~revealed | (~field.layouts & (field.counts == shown)), axis=1)
    # Whole numbers: sums of them are exact.
    total = jnp.sum(agrees, dtype=jnp.int32)
    here = jnp.sum(agrees[:, None] & field.layouts, axis=0, dtype=jnp.int32)
    return here / jnp.maximum(total, 1)


def mine_reward(field: Minefield, shown: Array, cell: Array, flag: Array) -> Array:
    """1 for revealing a cell that cannot be a mine or, where no hidden cell is safe, one of the least dangerous; 1 for
    flagging a cell that has to be one; else 0.

    Args:
      field: the layouts.
      shown: as in :func:`mine_posterior`.
      cell: i32 scalar, or -1; a revealed cell scores 0.
      flag: bool scalar, flag instead of reveal.
    """
    hidden = shown < 0
    p = mine_posterior(field, shown)
    at = jnp.clip(cell, 0, shown.shape[0] - 1)
    valid = (cell >= 0) & (cell < shown.shape[0]) & hidden[at]
    least = jnp.min(jnp.where(hidden, p, jnp.inf))
    return jnp.where(valid & jnp.where(flag, p[at] == 1.0, p[at] == least), 1.0, 0.0)
