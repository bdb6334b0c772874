"""Exact oracles of the look-up task: pure functions of one episode's final state, to be vmapped.

Everything here follows from two things. The *evidence* of a set of turns is the set of cells ``(entity, relation)`` of
the graph's table that these turns revealed, by a query or by the helpful skill. The *reader* is the Bayes posterior of
the answer given evidence, for someone who knows how graphs are drawn and nothing else:

    table[x, r] ~ uniform over N(x) = {x + 1, ..., x + B} mod E with probability d, none with probability 1 - d,
    independently, conditioned on the walk  e_0 -r_1-> e_1 -r_2-> ... -r_h-> e_h  existing (all r_i differ).

A walk uses a relation once, so it never meets a cell twice, and the posterior is the forward pass of a Markov chain:

    w_0(x) = 1[x = e_0],    w_i(y) ∝ Σ_x w_{i-1}(x) M_i(x, y),
    M_i(x, y) = 1[table[x, r_i] = y] where the cell (x, r_i) is evidence,  1[y ∈ N(x)] d / B  where it is not.

w_h is exact. Each hop of the chain that becomes known narrows it, the last one to certainty; a dead end or a distractor
moves it by as much as it should (an entity that leads nowhere cannot lie on the walk, which makes the others likelier).
The right answer never has probability 0, and for any way of asking the posterior is a martingale.

Shapes: K turns, H the most hops, E entities, R relations, N agents. `turns` is a bool ``[K]``: whose evidence counts.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import numerics

if TYPE_CHECKING:
    from creditjax.tasks.lookup import LookupState, World

Array = jax.Array

# What the policy did in a turn.
NOT_TAKEN, MALFORMED, QUERY, READ, ANSWER = range(5)


class GraphPrior(NamedTuple):
    """How graphs are drawn: d, the probability of an edge, and B, how many entities it may lead to."""

    edge_probability: float
    reach: int


def reachable(num_entities: int, reach: int) -> np.ndarray:
    """Entity y is one that an edge from x may lead to, bool ``[E, E]``: the `reach` entities after x, cyclically."""
    entity = np.arange(num_entities)
    return (entity - entity[:, None] - 1) % num_entities < reach


def known_cells(state: "LookupState", turns: Array) -> Array:
    """The evidence of some turns, bool ``[E, R]``."""
    shape = state.world.table.shape
    revealed = state.fact[:, None] == jnp.arange(shape[0] * shape[1])
    return jnp.any(revealed & turns[:, None], axis=0).reshape(shape)


def chain_length(world: "World", known: Array) -> Array:
    """How many hops of the path are known without a gap, i32 from 0 to the number of hops."""
    hop = jnp.arange(world.relations.shape[0])
    linked = known[world.path[:-1], world.relations] & (hop < world.hops)
    return jnp.sum(jnp.cumprod(linked.astype(jnp.int32)))


def answer_posterior(world: "World", known: Array, prior: GraphPrior) -> Array:
    """The reader's probability of every entity being the answer, f32 ``[E]`` (formula: see the module)."""
    num_entities = world.table.shape[0]
    entities = jnp.arange(num_entities)
    unseen_step = reachable(num_entities, prior.reach) * np.float32(prior.edge_probability / prior.reach)
    weight = (entities == world.path[0]).astype(jnp.float32)
    for hop in range(world.relations.shape[0]):
        relation = world.relations[hop]
        target, seen = world.table[:, relation], known[:, relation]
        step = jnp.where(seen[:, None], target[:, None] == entities, unseen_step)
        moved = weight @ step
        # The true walk always has positive weight. Normalised at every hop, so that no size of graph can underflow.
        weight = jnp.where(hop < world.hops, numerics.safe_divide(moved, jnp.sum(moved)), weight)
    return weight


def answer_probability(state: "LookupState", turns: Array, prior: GraphPrior) -> Array:
    """The reader's probability of the right answer given the evidence of some turns, f32 ``[]`` in (0, 1]."""
    posterior = answer_posterior(state.world, known_cells(state, turns), prior)
    return posterior[state.world.path[-1]]


def potential(state: "LookupState", prior: GraphPrior) -> Array:
    """:func:`answer_probability` at every turn boundary, f32 ``[K+1]``; boundary k knows the turns before k."""
    return jax.vmap(lambda turns: answer_probability(state, turns, prior))(_before(state))


def coalition_value(state: "LookupState", num_agents: int, prior: GraphPrior) -> Array:
    """:func:`answer_probability` for the evidence of every coalition, f32 ``[2^N]``.

    Turn k belongs to agent ``k mod N``; coalition S (bit n set: agent n takes part) knows what its own turns revealed,
    as they were taken: a counterfactual on the evidence, not on what the agents would have asked without the others.
    """
    owner = np.arange(state.kind.shape[0]) % num_agents
    member = (np.arange(2**num_agents)[:, None] >> owner) & 1 == 1
    return jax.vmap(lambda turns: answer_probability(state, turns, prior))(jnp.asarray(member))


def process_reward(state: "LookupState") -> Array:
    """Progress of every turn, f32 ``[K]`` in {-1, 0, 1}.

    ======================================================  ====
    the turn extends the known chain by at least a hop        +1
    it gives the right answer                                 +1
    it finds another edge, or one that is known already        0
    it was not taken                                           0
    it is answered "none": malformed, or a dead end           -1
    it reads a misleading skill                               -1
    it gives a wrong answer                                   -1
    ======================================================  ====
    """
    length = jax.vmap(lambda turns: chain_length(state.world, known_cells(state, turns)))(_before(state))
    answered = state.kind == ANSWER
    gained = (length[1:] > length[:-1]) | (answered & is_correct(state))
    misled = (state.kind == READ) & ~read_is_oracle(state)
    lost = (
        (state.kind == MALFORMED)
        | ((state.kind == QUERY) & (state.observed < 0))
        | misled
        | (answered & ~is_correct(state))
    )
    return gained.astype(jnp.float32) - lost.astype(jnp.float32)


def evidence_hit(state: "LookupState") -> Array:
    """Turn k revealed the e-th edge of the path, bool ``[K, H]``."""
    return (state.fact[:, None] == _path_cells(state.world)) & reference_mask(state)


def state_key(state: "LookupState") -> Array:
    """Key of what is known when turn k is acted, i32 ``[K]``; -1 for turns that were not taken.

    What is known is the question and the *set* of distinct facts (a cell and its content, or a misleading skill and
    its claim): neither their order, nor repetitions, nor malformed turns, nor the number of turns left. Two rollouts
    with the same knowledge share the key, and a turn that taught nothing repeats it.

    The key is the sum modulo 2^32 of one well-mixed word a fact (a set hash in Zobrist's manner), mixed with the
    question and cut to 31 bits. Among n distinct states of a group the chance of any collision is about n² / 2^32, 2e-5
    for 300 states.
    """
    num_entities = state.world.table.shape[0]
    code = (state.fact * (num_entities + 1) + state.observed + 1).astype(jnp.uint32)
    same = (code[:, None] == code) & (state.fact[:, None] >= 0)
    repeated = jnp.any(same & np.tri(code.shape[0], k=-1, dtype=bool), axis=1)
    words = jnp.where((state.fact >= 0) & ~repeated, _mix(code + jnp.uint32(0x9E3779B9)), jnp.uint32(0))
    question = _mix(state.world.path[0].astype(jnp.uint32))
    for hop in range(state.world.relations.shape[0]):
        relation = jnp.where(hop < state.world.hops, state.world.relations[hop], -1)
        question = _mix(question + relation.astype(jnp.uint32))
    before = jnp.cumsum(words) - words
    key = (_mix(question + before) >> 1).astype(jnp.int32)
    return jnp.where(state.kind != NOT_TAKEN, key, -1)


def is_correct(state: "LookupState") -> Array:
    """The episode ended with the right answer, bool ``[]``."""
    return state.answer == state.world.path[-1]


def is_well_formed(state: "LookupState") -> Array:
    """No turn was malformed and the last one answered, bool ``[]``."""
    return (state.answer >= 0) & ~jnp.any(state.kind == MALFORMED)


def call_similarity(state: "LookupState") -> Array:
    """Similarity of the query of turn q to the e-th edge of the path, f32 ``[K, H]`` (MatchTIR, arXiv 2601.10712).

    The relation is the tool's name and the entity its one parameter, so S = 0 where the relations differ, else
    (1 + J + [equal entities]) / (2 + 1) with J = 1, as both calls have the same parameter names: 2/3 or 1. A malformed
    turn and a skill read are no calls.
    """
    num_relations = state.world.table.shape[1]
    cells = _path_cells(state.world)
    same_relation = state.fact[:, None] % num_relations == cells % num_relations
    same_entity = state.fact[:, None] // num_relations == cells // num_relations
    real = (state.kind == QUERY)[:, None] & reference_mask(state)
    return jnp.where(real & same_relation, (2.0 + same_entity) / 3.0, 0.0)


def call_turn(state: "LookupState") -> Array:
    """Turn of call q, i32 ``[K]``: call q is the query of turn q, -1 where that turn made none."""
    return jnp.where(state.kind == QUERY, jnp.arange(state.kind.shape[0]), -1)


def reference_mask(state: "LookupState") -> Array:
    """The path has an e-th edge, bool ``[H]``."""
    return jnp.arange(state.world.relations.shape[0]) < state.world.hops


def read_mask(state: "LookupState") -> Array:
    """Turn r read a skill, bool ``[K]``: read r is the one of turn r."""
    return state.kind == READ


def read_is_oracle(state: "LookupState") -> Array:
    """Read r chose the helpful skill, bool ``[K]``; False where nothing was read."""
    num_cells = state.world.table.shape[0] * state.world.table.shape[1]
    return (state.kind == READ) & (state.fact < num_cells)


def _before(state: "LookupState") -> Array:
    """Row k of bool ``[K+1, K]``: the turns before boundary k."""
    num_turns = state.kind.shape[0]
    return jnp.asarray(np.tri(num_turns + 1, num_turns, k=-1, dtype=bool))


def _path_cells(world: "World") -> Array:
    """Cell of each edge of the path, i32 ``[H]``."""
    return world.path[:-1] * world.table.shape[1] + world.relations


def _mix(x: Array) -> Array:
    """MurmurHash3's 32-bit finaliser: a bijection of words in which every input bit flips half of the output bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
