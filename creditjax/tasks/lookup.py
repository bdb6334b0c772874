"""A multi-turn agent task in pure JAX: multi-hop look-up over a random knowledge graph.

The prompt asks a question: "from entity e_0 follow r_1, then r_2, …". The graph that answers it is different in every
episode and unknown to the policy, which has to query it, one edge a turn, and to answer within `max_turns`:

    prompt          e4 r2 r0 ?
    action          e4 r2           query: where does r2 lead from e4?
    observation     e7
    action          e4 r1           a distractor: this edge is not on the path
    observation     none            … and a dead end
    action          e7 r0
    observation     e1
    action          ANS e1          outcome 1

A turn is two tokens. Whatever is neither a query, nor an answer, nor a skill read is *malformed*: a legal action that
is answered "none". An answer ends the episode, and so does the last turn: the budget is a rule of the game, hence
`terminated`, not `truncated`. The oracles (`creditjax.tasks.lookup_oracles`) give what turn-level methods want to know,
exactly.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import numbers
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest
from creditjax.tasks import lookup_oracles as oracles
from creditjax.tasks.base import SPLITS, Prompts, TurnFormat, TurnResult, prompt_indices
from creditjax.trajectory import SignalSpec, Trajectory, declare_signal

Array = jax.Array

PAD, NONE, ASK, ANSWER, READ = range(5)
_SPECIAL = ("·", "none", "?", "ANS", "READ")
_ACTION_LENGTH = 2
_OBSERVATION_LENGTH = 1


_EVIDENCE_HIT = "segment k revealed the e-th piece of gold evidence"
declare_signal("evidence_hit", SignalSpec(("P", "G", "K", "E"), "bool", _EVIDENCE_HIT, "creditjax.tasks.lookup"))


class Vocabulary(NamedTuple):
    """Token ids: five special tokens, then entities, relations and skills."""

    num_entities: int
    num_relations: int
    num_skills: int

    @property
    def entity(self) -> int:
        """Token of the first entity; the others follow."""
        return len(_SPECIAL)

    @property
    def relation(self) -> int:
        """Token of the first relation."""
        return self.entity + self.num_entities

    @property
    def skill(self) -> int:
        """Token of the first skill."""
        return self.relation + self.num_relations

    @property
    def size(self) -> int:
        """Number of token ids."""
        return self.skill + self.num_skills

    def names(self) -> list[str]:
        """A printable name of every token."""
        kinds = (("e", self.num_entities), ("r", self.num_relations), ("s", self.num_skills))
        return [*_SPECIAL, *(f"{letter}{i}" for letter, count in kinds for i in range(count))]


class World(NamedTuple):
    """One question and the graph that answers it.

    Attributes:
      hops: i32 ``[]``, the number h of hops of this question.
      relations: i32 ``[H]``, distinct; only the first `hops` are asked for.
      path: i32 ``[H+1]``, the entities e_0 … e_h, e_h repeated to the end: ``path[-1]`` is the answer.
      table: i32 ``[E, R]``, the entity that relation r leads to from entity e, -1 for none.
      detour: i32 ``[]`` in 1..E-1: a misleading skill names the next entity of the path shifted by it.
    """

    hops: Array
    relations: Array
    path: Array
    table: Array
    detour: Array


class LookupState(NamedTuple):
    """An episode: the world and the record of its turns, all that the oracles need.

    Attributes:
      world: the question and the graph.
      turn: i32 ``[]``, turns taken.
      terminated: bool ``[]``.
      kind: i32 ``[K]``, what turn k was: NOT_TAKEN, MALFORMED, QUERY, READ or ANSWER of `lookup_oracles`.
      fact: i32 ``[K]``, what turn k revealed: the cell ``entity * R + relation`` of the table (by query or helpful
        skill), ``E * R + skill`` for the claim of a misleading skill, -1 for nothing.
      observed: i32 ``[K]``, the entity that turn k was answered, -1 for none.
      answer: i32 ``[]``, the entity that the policy answered, -1 for no answer.
    """

    world: World
    turn: Array
    terminated: Array
    kind: Array
    fact: Array
    observed: Array
    answer: Array


@dataclasses.dataclass(frozen=True)
class LookupEnvironment:
    """Rules of one episode (`TurnEnvironment`); the arguments are those of :class:`LookupTask`."""

    num_entities: int
    num_relations: int
    hops: int
    min_hops: int
    max_turns: int
    edge_probability: float
    reach: int
    num_skills: int
    step_cost: float
    format_reward: float

    @property
    def vocabulary(self) -> Vocabulary:
        """The token ids."""
        return Vocabulary(self.num_entities, self.num_relations, self.num_skills)

    @property
    def prior(self) -> oracles.GraphPrior:
        """What is known about graphs before the first query."""
        return oracles.GraphPrior(self.edge_probability, self.reach)

    def draw(self, data: Array) -> World:
        """The world that belongs to one prompt's data, the raw words u32 ``[2]`` of a PRNG key.

        The law is that of `lookup_oracles`: independent cells, conditioned on the existence of the path. That needs no
        rejection: the path's relations are distinct, so its cells are too, and every walk exists with the same
        probability; filling the gaps on the walk is the conditional law.
        """
        num_entities, num_relations = shape = (self.num_entities, self.num_relations)
        # One block of uniforms for everything: half a dozen generator calls would compile for several seconds.
        uniforms = jax.random.uniform(_key(data), (3 + num_relations + 2 * num_entities * num_relations,))
        hops, start, detour = uniforms[:3]
        relations, edges, steps = jnp.split(uniforms[3:], [num_relations, num_relations + num_entities * num_relations])

        def integer(uniform, low, high):  # uniform on low..high-1, up to a bias of (high - low) / 2^23
            return low + jnp.floor(uniform * (high - low)).astype(jnp.int32)

        hops = integer(hops, self.min_hops, self.hops + 1)
        relations = jnp.argsort(relations)[: self.hops].astype(jnp.int32)
        step = integer(steps, 1, self.reach + 1).reshape(shape)
        targets = (jnp.arange(num_entities)[:, None] + step) % num_entities
        exists = (edges < self.edge_probability).reshape(shape)
        path = [integer(start, 0, num_entities)]
        for hop in range(self.hops):
            on_path = hop < hops
            exists = exists.at[path[hop], relations[hop]].max(on_path)
            path.append(jnp.where(on_path, targets[path[hop], relations[hop]], path[hop]))
        detour = integer(detour, 1, num_entities)
        return World(hops, relations, jnp.stack(path), jnp.where(exists, targets, -1), detour)

    def reset(self, data: Array) -> LookupState:
        """A fresh episode."""
        nothing = jnp.full(self.max_turns, -1, jnp.int32)
        return LookupState(
            world=self.draw(data),
            turn=jnp.int32(0),
            terminated=jnp.bool_(False),
            kind=jnp.full(self.max_turns, oracles.NOT_TAKEN, jnp.int32),
            fact=nothing,
            observed=nothing,
            answer=jnp.int32(-1),
        )

    def step(self, state: LookupState, action: Array, mask: Array) -> tuple[LookupState, TurnResult]:
        """Answers one turn. Without a real token, or after the end, nothing changes and nothing is paid."""
        world, vocabulary = state.world, self.vocabulary
        active = jnp.any(mask) & ~state.terminated
        kind, argument = self._parse(action, mask)

        cell_value = world.table.reshape(-1)[jnp.where(kind == oracles.QUERY, argument, 0)]
        hint_fact, hint_value = self._hint(state, argument)
        fact = jnp.select([kind == oracles.QUERY, kind == oracles.READ], [argument, hint_fact], -1)
        observed = jnp.select([kind == oracles.QUERY, kind == oracles.READ], [cell_value, hint_value], -1)
        answers = active & (kind == oracles.ANSWER)
        ends = answers | (active & (state.turn + 1 >= self.max_turns))

        at = jnp.where(active, state.turn, self.max_turns)  # out of range: dropped
        state = LookupState(
            world=world,
            turn=state.turn + active,
            terminated=state.terminated | ends,
            kind=state.kind.at[at].set(kind, mode="drop"),
            fact=state.fact.at[at].set(fact, mode="drop"),
            observed=state.observed.at[at].set(observed, mode="drop"),
            answer=jnp.where(answers, argument, state.answer),
        )
        paid = oracles.is_correct(state) + self.format_reward * oracles.is_well_formed(state)
        reward = jnp.where(ends, paid, 0.0) - self.step_cost * (active & ~answers)
        speaks = active & ~answers
        token = jnp.where(speaks, jnp.where(observed >= 0, vocabulary.entity + observed, NONE), PAD)
        return state, TurnResult(token[None], speaks[None], reward.astype(jnp.float32), state.terminated)

    def components(self, state: LookupState) -> Array:
        """The rewards that add up to the outcome, f32 ``[3]``: right answer, format, (negative) cost of the turns."""
        steps = jnp.sum((state.kind != oracles.NOT_TAKEN) & (state.kind != oracles.ANSWER))
        parts = [oracles.is_correct(state), self.format_reward * oracles.is_well_formed(state), -self.step_cost * steps]
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])

    def _parse(self, action: Array, mask: Array) -> tuple[Array, Array]:
        """Kind of a turn and its argument: the cell of a query, the skill of a read, the entity of an answer."""
        vocabulary = self.vocabulary
        head, tail = action[0], action[1]

        def index(token, first, count):
            return token - first, (token >= first) & (token < first + count)

        source, head_is_entity = index(head, vocabulary.entity, self.num_entities)
        relation, tail_is_relation = index(tail, vocabulary.relation, self.num_relations)
        entity, tail_is_entity = index(tail, vocabulary.entity, self.num_entities)
        skill, tail_is_skill = index(tail, vocabulary.skill, self.num_skills)
        whole = jnp.all(mask)
        conditions = [
            whole & head_is_entity & tail_is_relation,
            whole & (head == READ) & tail_is_skill,
            whole & (head == ANSWER) & tail_is_entity,
        ]
        kind = jnp.select(conditions, [oracles.QUERY, oracles.READ, oracles.ANSWER], oracles.MALFORMED)
        return kind, jnp.select(conditions, [source * self.num_relations + relation, skill, entity], 0)

    def _hint(self, state: LookupState, skill: Array) -> tuple[Array, Array]:
        """Fact and entity that reading a skill reveals."""
        world = state.world
        if not self.num_skills:
            return jnp.int32(-1), jnp.int32(-1)
        known = oracles.known_cells(state, jnp.ones(self.max_turns, bool))
        # With the chain complete the helpful skill repeats its last hint.
        hop = jnp.minimum(oracles.chain_length(world, known), world.hops - 1)
        target = world.path[hop + 1]
        cell = world.path[hop] * self.num_relations + world.relations[hop]
        helpful = skill == world.relations[0] % self.num_skills
        misleading = self.num_entities * self.num_relations + skill
        return (
            jnp.where(helpful, cell, misleading),
            jnp.where(helpful, target, (target + world.detour) % self.num_entities),
        )


class _Episode(NamedTuple):
    """What a signal may be made of: the final state of one episode, and its positions ``[T]``."""

    task: "LookupTask"
    state: LookupState
    acted: Array
    segment: Array

    @property
    def in_read(self) -> Array:
        """The position belongs to the action of a turn that read a skill, bool ``[T]``."""
        return self.acted & (self.state.kind[self.segment] == oracles.READ)


_ORACLES: dict[str, Callable[[_Episode], Array]] = {
    "process_reward": lambda e: oracles.process_reward(e.state),
    "potential": lambda e: oracles.potential(e.state, e.task.environment.prior),
    "answer_logprob": lambda e: jnp.log(oracles.potential(e.state, e.task.environment.prior))[:, None],
    "evidence_hit": lambda e: oracles.evidence_hit(e.state),
    "state_key": lambda e: oracles.state_key(e.state),
    "agent": lambda e: jnp.where(e.acted, e.segment % e.task.num_agents, -1),
    "coalition_value": lambda e: oracles.coalition_value(e.state, e.task.num_agents, e.task.environment.prior),
    "call_similarity": lambda e: oracles.call_similarity(e.state),
    "call_turn": lambda e: oracles.call_turn(e.state),
    "reference_mask": lambda e: oracles.reference_mask(e.state),
    "read_call": lambda e: jnp.where(e.in_read, e.segment, -1),
    "read_identity": lambda e: e.in_read & e.task.second_action_token,
    "read_is_oracle": lambda e: oracles.read_is_oracle(e.state),
    "read_mask": lambda e: oracles.read_mask(e.state),
    "reward_components": lambda e: e.task.environment.components(e.state),
    "accuracy": lambda e: oracles.is_correct(e.state).astype(jnp.float32),
    "answer_score": lambda e: oracles.is_correct(e.state).astype(jnp.float32),
}


@dataclasses.dataclass(frozen=True)
class LookupTask:
    """Multi-hop look-up over a random knowledge graph (`TextTask`). See the module for a transcript.

    The outcome is 1 for the right answer and 0 otherwise, plus `format_reward` if every turn was well formed and the
    last one answered, minus `step_cost` for every turn but the answer. The rewards that the environment pays by turn
    add up to it.

    With `num_skills` > 0 a turn may read a skill, ``READ s``. The helpful one (number ``r_1 mod num_skills``, so the
    question tells which) answers with the next entity of the path; every other one with a wrong entity. The oracles'
    reader counts a helpful hint as the edge that it reveals and ignores a misleading one. Without skills the read
    signals are present and empty.

    Attributes:
      num_entities: E, at least 2.
      num_relations: R, at least `hops`: a question never repeats a relation.
      hops: H, the most hops of a question.
      min_hops: the fewest; None for `hops`. The number is uniform between the two.
      max_turns: K, at least ``hops + 1``; None for ``hops + 2``.
      edge_probability: d in (0, 1], the share of (entity, relation) pairs off the path that lead somewhere.
      reach: B, from 1 to E: an edge leads to one of the next B entities, cyclically. With B = E the first hops tell
        nothing about the answer; the smaller B, the more each of them does, and the better a guess.
      num_agents: N, at most 10: turn k is agent ``k mod N``'s.
      num_skills: the number of skills, 0 for none.
      step_cost: paid for each turn but the answer, at least 0.
      format_reward: received for a well-formed episode.
      gold_noise: probability that the expert of `gold` asks a query off the path instead of its next move.
      eval_size: number of held-out prompts.
      seed: fixes all questions and graphs.
      signals: names of the signals that `annotate` adds; None for all of `offered_signals`.

    Raises:
      ValueError, TypeError: an option out of range or of the wrong type, naming it, what was found and what was wanted.
    """

    num_entities: int = 12
    num_relations: int = 4
    hops: int = 2
    min_hops: int | None = None
    max_turns: int | None = None
    edge_probability: float = 0.7
    reach: int = 4
    num_agents: int = 2
    num_skills: int = 0
    step_cost: float = 0.0
    format_reward: float = 0.0
    gold_noise: float = 0.0
    eval_size: int = 512
    seed: int = 0
    signals: Sequence[str] | None = None

    def __post_init__(self):
        if self.signals is not None:
            object.__setattr__(self, "signals", tuple(self.signals))  # hashable, whatever sequence came
        _check("hops", self.hops, int, 1)
        _check("num_entities", self.num_entities, int, 2)
        _check("num_relations", self.num_relations, int, self.hops, note=f"hops={self.hops} distinct relations")
        _check("min_hops", self.environment.min_hops, int, 1, self.hops)
        _check("max_turns", self.environment.max_turns, int, self.hops + 1, note=f"{self.hops} queries and an answer")
        _check("edge_probability", self.edge_probability, float, 1e-3, 1.0)
        _check("reach", self.reach, int, 1, self.num_entities)
        _check("num_agents", self.num_agents, int, 1, 10)
        _check("num_skills", self.num_skills, int, 0)
        _check("step_cost", self.step_cost, float, 0.0)
        _check("format_reward", self.format_reward, float)
        _check("gold_noise", self.gold_noise, float, 0.0, 1.0)
        _check("eval_size", self.eval_size, int, 1)
        _check("seed", self.seed, int, 0, 2**32 - 1)
        for name in self.signal_names:
            if name not in _ORACLES:
                raise ValueError(f"signals: the look-up task has no {name!r}; {nearest(name, _ORACLES)}")

    @staticmethod
    def offered_signals() -> tuple[str, ...]:
        """Names of all the signals that the task can add."""
        return tuple(_ORACLES)

    @property
    def signal_names(self) -> tuple[str, ...]:
        """Names of the signals that `annotate` adds."""
        return self.offered_signals() if self.signals is None else tuple(self.signals)

    @functools.cached_property
    def environment(self) -> LookupEnvironment:
        """The rules of an episode."""
        return LookupEnvironment(
            num_entities=self.num_entities,
            num_relations=self.num_relations,
            hops=self.hops,
            min_hops=self.hops if self.min_hops is None else self.min_hops,
            max_turns=self.hops + 2 if self.max_turns is None else self.max_turns,
            edge_probability=self.edge_probability,
            reach=self.reach,
            num_skills=self.num_skills,
            step_cost=self.step_cost,
            format_reward=self.format_reward,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The token ids."""
        return self.environment.vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.vocabulary.size

    @property
    def prompt_length(self) -> int:
        """L: the start, the relations and the question mark."""
        return self.hops + 2

    @property
    def turns(self) -> TurnFormat:
        """K turns of two action tokens and one observation token, without a stop token."""
        return TurnFormat(self.environment.max_turns, _ACTION_LENGTH, _OBSERVATION_LENGTH, stop_token=-1, pad_token=PAD)

    @property
    def second_action_token(self) -> np.ndarray:
        """Positions ``[T]`` of the second token of each action, which names the skill in a read."""
        turn = np.arange(_ACTION_LENGTH + _OBSERVATION_LENGTH) == _ACTION_LENGTH - 1
        return np.concatenate([np.zeros(self.prompt_length, bool), np.tile(turn, self.environment.max_turns)])

    def prompts(self, split: str, start: int, count: int) -> Prompts:
        """Questions `start` to `start + count`; `data` holds the PRNG key u32 ``[P, 2]`` that a world is drawn from.

        Raises:
          ValueError: an unknown split, a negative range, or one beyond `eval_size` of "eval".
        """
        indices = prompt_indices(split, start, count, self.eval_size)
        return Prompts(*jax.device_get(_prompts(self, SPLITS.index(split), indices)))

    def annotate(self, batch: Trajectory, prompts: Prompts, states: LookupState) -> Trajectory:
        """Adds the outcome and the signals named in `signals`, from the final states ``[P, G]``."""
        del prompts  # the states hold the worlds

        def episode(state, acted, segment):
            view = _Episode(self, state, acted, segment)
            return jnp.sum(self.environment.components(state)), {
                name: _ORACLES[name](view) for name in self.signal_names
            }

        for _ in batch.batch_shape:
            episode = jax.vmap(episode)
        outcome, signals = episode(states, batch.action_mask, batch.segment)
        return batch.replace(outcome=outcome, signals={**batch.signals, **signals})

    def verify(self, batch: Trajectory, prompts: Prompts) -> Trajectory:
        """The identity: the verifier is pure JAX and has run in `annotate`."""
        del prompts
        return batch

    def gold(self, split: str, start: int, count: int) -> Trajectory:
        """Demonstrations ``[P, 1, T]`` of a scripted expert, a pure function of the arguments.

        Each turn the expert asks for the next edge of the path, or answers once the chain is complete. With probability
        `gold_noise` it asks for a uniformly drawn other cell instead, except in the last turn, where it always answers
        with the last entity that it knows of the chain. So a noisy demonstration may be wrong (its `outcome` says so),
        and a policy cloned from such fails about as often.
        """
        return jax.device_get(_gold(self, self.prompts(split, start, count)))

    def play(self, prompts: Prompts, act: Callable[[LookupState, Array], Array], keys: Array) -> Trajectory:
        """Rolls out a scripted policy, in the layout and with the annotations of a sampled rollout. Pure, not jitted.

        Args:
          prompts: P prompts.
          act: from the state of one episode (privileged: it holds the graph) and a PRNG key to the tokens of a turn.
          keys: PRNG keys ``[P, G]``.

        Returns:
          Trajectory ``[P, G, T]``, without `logprob`. Reward and termination of a turn lie on its last action position.
        """

        def episode(data, key):
            def turn(state, turn_key):
                action = act(state, turn_key).astype(jnp.int32)
                mask = jnp.broadcast_to(~state.terminated, (_ACTION_LENGTH,))
                after, result = self.environment.step(state, action, mask)
                tokens = jnp.concatenate([jnp.where(mask, action, PAD), result.tokens])
                real = jnp.concatenate([mask, result.mask])
                return after, (tokens, real, result.reward, result.terminated & ~state.terminated)

            return jax.lax.scan(turn, self.environment.reset(data), jax.random.split(key, self.environment.max_turns))

        group = jax.vmap(episode, in_axes=(None, 0))
        states, (tokens, mask, reward, terminated) = jax.vmap(group)(jnp.asarray(prompts.data), keys)
        batch_shape, per_turn = keys.shape[:2], _ACTION_LENGTH + _OBSERVATION_LENGTH

        def lay_out(prompt, turns):
            prompt = jnp.broadcast_to(jnp.asarray(prompt)[:, None], (*batch_shape, self.prompt_length))
            return jnp.concatenate([prompt.astype(turns.dtype), turns.reshape(*batch_shape, -1)], axis=-1)

        in_action = np.arange(per_turn) < _ACTION_LENGTH
        last = np.arange(per_turn) == _ACTION_LENGTH - 1
        segment = jnp.where(mask, jnp.arange(self.environment.max_turns)[:, None], -1)
        nothing = jnp.zeros_like(prompts.tokens)
        batch = Trajectory(
            tokens=lay_out(prompts.tokens, tokens),
            action_mask=lay_out(nothing, mask & in_action),
            outcome=jnp.full(batch_shape, jnp.nan),
            reward=lay_out(nothing, reward[..., None] * last),
            terminated=lay_out(nothing, terminated[..., None] & last),
            truncated=lay_out(nothing, jnp.zeros_like(mask)),
            segment=lay_out(nothing - 1, segment),
            signals={"token_mask": lay_out(prompts.mask, mask)},
            num_segments=self.environment.max_turns,
        )
        return self.annotate(batch, prompts, states)

    def expert(self, state: LookupState, key: Array) -> Array:
        """The move of the scripted expert of :meth:`gold`, tokens i32 ``[2]``."""
        world, vocabulary = state.world, self.vocabulary
        length = oracles.chain_length(world, oracles.known_cells(state, jnp.ones(self.environment.max_turns, bool)))
        hop = jnp.minimum(length, world.hops - 1)
        complete, last = length >= world.hops, state.turn + 1 >= self.environment.max_turns
        distract, cell = jax.random.uniform(key, (2,))
        noisy = distract < self.gold_noise

        num_cells = self.num_entities * self.num_relations
        needed = world.path[hop] * self.num_relations + world.relations[hop]
        distraction = (needed + 1 + jnp.floor(cell * (num_cells - 1)).astype(jnp.int32)) % num_cells
        source, relation = jnp.divmod(jnp.where(noisy, distraction, needed), self.num_relations)
        query = jnp.stack([vocabulary.entity + source, vocabulary.relation + relation])
        answer = jnp.stack([jnp.int32(ANSWER), vocabulary.entity + world.path[length]])
        return jnp.where(last | (complete & ~noisy), answer, query)

    def decode(self, tokens: Any) -> list[str]:
        """A printable string a token: "e3", "r1", "s0", "none", "?", "ANS", "READ", "·" for padding, else "<97>"."""
        names = self.vocabulary.names()
        return [names[t] if 0 <= t < len(names) else f"<{t}>" for t in np.asarray(tokens).reshape(-1).tolist()]


def _key(data: Array) -> Array:
    # The generator is named, so that no global setting can change the data.
    return jax.random.wrap_key_data(jnp.asarray(data), impl="threefry2x32")


@functools.partial(jax.jit, static_argnums=0)
def _prompts(task: LookupTask, split: Array, indices: Array) -> tuple[Array, Array, Array]:
    stream = jax.random.fold_in(jax.random.key(task.seed, impl="threefry2x32"), split)
    vocabulary, length = task.vocabulary, task.prompt_length

    def prompt(index):
        data = jax.random.key_data(jax.random.fold_in(stream, index))
        world = task.environment.draw(data)
        # Left-padded: start, the `hops` relations that are asked for, question mark.
        place = jnp.arange(length) - (task.hops - world.hops)
        relation = vocabulary.relation + world.relations[jnp.clip(place - 1, 0, task.hops - 1)]
        tokens = jnp.select(
            [place < 0, place == 0, place <= world.hops], [PAD, vocabulary.entity + world.path[0], relation], ASK
        )
        return tokens.astype(jnp.int32), place >= 0, data

    return jax.vmap(prompt)(indices)


@functools.partial(jax.jit, static_argnums=0)
def _gold(task: LookupTask, prompts: Prompts) -> Trajectory:
    # Another key than the world's, which is drawn from the data itself.
    keys = jax.vmap(lambda data: jax.random.fold_in(_key(data), 0))(prompts.data)
    return task.play(prompts, task.expert, keys[:, None])


def _check(name: str, value: Any, kind: type, low: float = -np.inf, high: float = np.inf, note: str = "") -> None:
    wanted = numbers.Integral if kind is int else numbers.Real
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise TypeError(f"{name}: {value!r}, wanted {'an integer' if kind is int else 'a number'}")
    if not low <= float(value) <= high:  # refuses NaN too
        bounds = f"at least {low}" if high == np.inf else f"between {low} and {high}"
        raise ValueError(f"{name}: {value}, wanted {bounds}{f' ({note})' if note else ''}")
