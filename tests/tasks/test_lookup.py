"""The look-up task against a second implementation in plain Python and against enumeration of all graphs."""

import functools
import itertools
import math
import subprocess
import sys

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.tasks import TextTask, lookup, make
from creditjax.tasks import lookup_oracles as oracles
from creditjax.trajectory import SIGNALS, segment_mask

INT_MAX = 2**31 - 1
P, G = 24, 16
NOISY = {"gold_noise": 0.4, "signals": ["state_key"]}

SMALL = make("lookup", num_entities=5, num_relations=3, hops=2, min_hops=1, max_turns=6, reach=3, num_agents=3)
SKILLED = make(
    "lookup",
    num_entities=6,
    num_relations=4,
    hops=3,
    max_turns=7,
    reach=4,
    num_skills=3,
    step_cost=0.05,
    format_reward=0.2,
    edge_probability=0.5,
)


def messy(task, state, key):
    """Every kind of turn often enough: expert moves, queries, repetitions, reads, answers, garbage."""
    vocabulary, draws = task.vocabulary, jax.random.uniform(key, (5,))

    def token(draw, first, count):
        return first + jnp.floor(draw * count).astype(jnp.int32)

    entity = token(draws[0], vocabulary.entity, task.num_entities)
    relation = token(draws[1], vocabulary.relation, task.num_relations)
    skill = token(draws[2], vocabulary.skill, max(task.num_skills, 1))
    first = jnp.maximum(state.fact[0], 0) % (task.num_entities * task.num_relations)
    expert = task.expert(state, key)
    moves = [
        expert,
        expert,
        expert,
        jnp.stack([entity, relation]),
        jnp.stack([entity, vocabulary.relation + state.world.relations[0]]),
        jnp.stack([vocabulary.entity + first // task.num_relations, vocabulary.relation + first % task.num_relations]),
        jnp.stack([jnp.int32(lookup.READ), skill]),
        jnp.stack([entity, entity]),
        jnp.where(state.turn > 1, jnp.stack([jnp.int32(lookup.ANSWER), entity]), jnp.stack([relation, entity])),
    ]
    return jnp.stack(moves)[token(draws[3], 0, len(moves))]


@functools.cache
def rollouts(task):
    """Messy rollouts and, by prompt, the worlds."""
    prompts = task.prompts("train", 0, P)
    keys = jax.random.split(jax.random.key(7), (P, G))
    batch = jax.jit(lambda p, k: task.play(p, functools.partial(messy, task), k))(prompts, keys)
    worlds = jax.jit(jax.vmap(task.environment.draw))(prompts.data)
    return prompts, jax.device_get(batch), jax.device_get(worlds)


def world_at(worlds, p):
    return jax.tree.map(lambda x: x[p], worlds)


def reference(task, world, tokens):
    """One episode in plain Python, from its tokens `[T]`: what every turn did, and what was known before it."""
    vocabulary, hops = task.vocabulary, int(world.hops)
    path, relations = [int(e) for e in world.path], [int(r) for r in world.relations[:hops]]
    gold = list(zip(path[:hops], relations, strict=True))
    facts, turns, over = set(), [], False
    for k in range(task.max_turns):
        head, tail, seen = (int(t) for t in tokens[task.prompt_length + 3 * k :][:3])
        if over:
            assert (head, tail, seen) == (lookup.PAD,) * 3
            continue
        entity, relation = head - vocabulary.entity, tail - vocabulary.relation
        known = {f[:2] for f in facts if f[0] != "skill"}
        length = next((i for i, cell in enumerate(gold) if cell not in known), hops)
        turn = dict(kind="malformed", score=-1.0, fact=None, call=None, before=frozenset(facts), reply=lookup.NONE)
        if 0 <= entity < task.num_entities and 0 <= relation < task.num_relations:
            value = int(world.table[entity, relation])
            turn.update(kind="query", call=(entity, relation), fact=(entity, relation, value))
            turn.update(score=-1.0 if value < 0 else 0.0)
            turn.update(reply=lookup.NONE if value < 0 else vocabulary.entity + value)
            turn.update(score=1.0 if length < hops and (entity, relation) == gold[length] else turn["score"])
        elif head == lookup.READ and 0 <= tail - vocabulary.skill < task.num_skills:
            skill, hop = tail - vocabulary.skill, min(length, hops - 1)
            helpful = skill == relations[0] % task.num_skills
            told = path[hop + 1] if helpful else (path[hop + 1] + int(world.detour)) % task.num_entities
            turn.update(kind="read", helpful=helpful, reply=vocabulary.entity + told)
            turn.update(fact=(*gold[hop], told) if helpful else ("skill", skill, told))
            turn.update(score=(1.0 if length < hops else 0.0) if helpful else -1.0)
        elif head == lookup.ANSWER and 0 <= tail - vocabulary.entity < task.num_entities:
            right = tail - vocabulary.entity == path[-1]
            turn.update(kind="answer", right=right, score=1.0 if right else -1.0, reply=lookup.PAD)
            over = True
        assert seen == turn["reply"], (k, seen, turn)
        if turn["fact"]:
            facts.add(turn["fact"])
        turns.append(turn)
        over = over or k == task.max_turns - 1
    return turns, gold


def episodes(task):
    _, batch, worlds = rollouts(task)
    for p, g in itertools.product(range(P), range(G)):
        yield p, g, batch, world_at(worlds, p), *reference(task, world_at(worlds, p), batch.tokens[p, g])


@pytest.mark.parametrize("task", [SMALL, SKILLED], ids=["small", "skilled"])
def test_turns_rewards_and_calls_agree_with_a_plain_python_episode(task):
    seen = set()
    for p, g, batch, _, turns, gold in episodes(task):
        s = {name: value[p, g] for name, value in batch.signals.items()}
        n, hops = len(turns), len(gold)
        seen |= {t["kind"] for t in turns} | {t["score"] for t in turns}
        np.testing.assert_array_equal(segment_mask(batch)[p, g], np.arange(task.max_turns) < n)
        np.testing.assert_array_equal(s["process_reward"][:n], [t["score"] for t in turns])
        assert not s["process_reward"][n:].any()
        hit = [[t["fact"] is not None and t["fact"][:2] == cell for cell in gold] for t in turns]
        np.testing.assert_array_equal(s["evidence_hit"][:n, :hops], hit)
        assert not s["evidence_hit"][n:].any() and not s["evidence_hit"][:, hops:].any()

        right = turns[-1].get("right", False)
        formal = turns[-1]["kind"] == "answer" and all(t["kind"] != "malformed" for t in turns)
        steps = sum(t["kind"] != "answer" for t in turns)
        parts = [right, task.format_reward * formal, -task.step_cost * steps]
        np.testing.assert_allclose(s["reward_components"], parts, atol=1e-6)
        np.testing.assert_allclose(batch.outcome[p, g], sum(parts), atol=1e-6)
        np.testing.assert_allclose(batch.reward[p, g].sum(), sum(parts), atol=1e-6)
        assert s["accuracy"] == s["answer_score"] == right

        np.testing.assert_array_equal(s["reference_mask"], np.arange(task.hops) < hops)
        calls = [t["call"] for t in turns] + [None] * (task.max_turns - n)
        np.testing.assert_array_equal(s["call_turn"], [-1 if c is None else k for k, c in enumerate(calls)])
        similarity = np.zeros((task.max_turns, task.hops))
        for (k, call), (e, cell) in itertools.product(enumerate(calls), enumerate(gold)):
            if call is not None and call[1] == cell[1]:
                similarity[k, e] = (1 + 1 + (call[0] == cell[0])) / (2 + 1)
        np.testing.assert_allclose(s["call_similarity"], similarity, atol=1e-6)
    kinds = {"query", "answer", "malformed"} | ({"read"} if task.num_skills else set())
    assert seen == kinds | {-1.0, 0.0, 1.0}, "the messy policy has to reach every branch"


@pytest.mark.parametrize("task", [SMALL, SKILLED], ids=["small", "skilled"])
def test_state_key_is_equal_exactly_where_the_knowledge_is(task):
    by_key, by_state = {}, {}
    for p, g, batch, _, turns, _ in episodes(task):
        keys = batch.signals["state_key"][p, g]
        assert (keys[len(turns) :] == -1).all() and (keys[: len(turns)] >= 0).all()
        question = tuple(batch.tokens[p, g, : task.prompt_length])
        for key, turn in zip(keys, turns, strict=False):
            by_key.setdefault(int(key), set()).add((question, turn["before"]))
            by_state.setdefault((question, turn["before"]), []).append((int(key), p, g))
    assert all(len(states) == 1 for states in by_key.values())
    assert all(len({key for key, *_ in visits}) == 1 for visits in by_state.values())
    across = [state for state, visits in by_state.items() if state[1] and len({(p, g) for _, p, g in visits}) > 1]
    assert len(across) > 20, "states beyond the first have to repeat across rollouts"


def test_state_key_ignores_order_and_what_comes_after():
    """Case C38: the key is of what came before; two orders of the same facts meet again."""
    task, world, play = scripted()
    vocabulary = task.vocabulary

    def query(cell):
        return [vocabulary.entity + cell[0], vocabulary.relation + cell[1]]

    first, off = (int(world.path[0]), int(world.relations[0])), (int(world.path[0]), int(world.relations[1]))
    garbage, answer = [lookup.PAD, INT_MAX], [lookup.ANSWER, vocabulary.entity]
    key = [
        play([query(first), query(off), garbage, query(first), answer]).signals["state_key"],
        play([query(off), query(first), answer]).signals["state_key"],
        play([query(off), answer]).signals["state_key"],
    ]
    assert key[0][0] == key[1][0] == key[2][0] and key[1][1] == key[2][1] != key[0][1]
    assert key[0][2] == key[0][3] == key[0][4] == key[1][2]
    assert key[1][2] != key[1][1] and key[2][2] == -1


def scripted(**options):
    """A task, its first world, and a driver from a list of actions to one unbatched rollout."""
    task = make("lookup", max_turns=5, **options)
    prompts = task.prompts("train", 0, 1)
    world = jax.device_get(jax.jit(task.environment.draw)(prompts.data[0]))
    run = jax.jit(
        lambda moves: task.play(
            prompts, lambda state, key: moves[state.turn], jax.random.split(jax.random.key(0), (1, 1))
        )
    )

    def play(actions):
        moves = np.zeros((5, 2), np.int32)
        moves[: len(actions)] = actions
        return jax.tree.map(lambda x: np.asarray(x)[0, 0], run(moves))

    return task, world, play


@pytest.mark.parametrize(
    ("entities", "hops", "reach", "d"), [(3, 2, 2, 0.4), (3, 2, 3, 0.7), (2, 3, 2, 0.6), (4, 1, 2, 1.0)]
)
def test_reader_is_the_posterior_over_all_graphs(entities, hops, reach, d):
    """Enumerates every table, keeps those that have the walk and agree with the evidence, and counts answers."""
    relations = max(hops, 2)
    task = make("lookup", num_entities=entities, num_relations=relations, hops=hops, reach=reach, edge_probability=d)
    cells = entities * relations
    options = [[-1, *((x + 1 + b) % entities for b in range(reach))] for x in range(entities) for _ in range(relations)]
    tables = np.array(list(itertools.product(*options)))
    log_prior = np.where(tables < 0, math.log(max(1 - d, 1e-300)), math.log(d / reach)).sum(axis=1)
    posterior = jax.jit(jax.vmap(oracles.answer_posterior, (None, 0, None)), static_argnums=2)
    rng = np.random.default_rng(0)
    draw = jax.jit(task.environment.draw)
    for index in range(4):
        world = jax.device_get(draw(task.prompts("train", index, 1).data[0]))
        end = np.full(len(tables), world.path[0])
        for relation in world.relations:
            end = np.where(end >= 0, tables[np.arange(len(tables)), end * relations + relation], -1)
        known = rng.random((64, entities, relations)) < rng.random((64, 1, 1))
        known[0] = False
        got = posterior(world, known, task.environment.prior)
        for row, evidence in zip(got, known.reshape(64, cells), strict=True):
            agrees = (tables == world.table.reshape(-1))[:, evidence].all(axis=1) & (end >= 0)
            weight = np.where(agrees, np.exp(log_prior), 0.0)
            wanted = np.array([weight[end == a].sum() for a in range(entities)]) / weight.sum()
            np.testing.assert_allclose(row, wanted, atol=2e-6)


def test_reader_is_calibrated_against_the_generator():
    """E[p(truth)] = E[Σ_a p(a)²] holds only if graphs are drawn by the law that the reader assumes."""
    task = make("lookup", num_entities=6, num_relations=3, hops=3, reach=4, edge_probability=0.5)
    worlds = jax.jit(jax.vmap(task.environment.draw))(task.prompts("train", 0, 4000).data)
    known = np.random.default_rng(1).random((4000, 6, 3)) < 0.4
    posterior = jax.vmap(oracles.answer_posterior, (0, 0, None))(worlds, known, task.environment.prior)
    truth = posterior[jnp.arange(4000), worlds.path[:, -1]]
    gap = np.asarray(truth - jnp.sum(posterior**2, axis=-1))
    assert abs(gap.mean()) < 4 * gap.std() / math.sqrt(4000)
    assert float(truth.min()) > 0 and np.asarray(truth).std() > 0.1


def test_graphs_have_the_law_that_is_documented():
    task = make("lookup", num_entities=5, num_relations=4, hops=3, min_hops=1, reach=2, edge_probability=0.6)
    n = 4000
    w = jax.device_get(jax.jit(jax.vmap(task.environment.draw))(task.prompts("train", 0, n).data))
    assert np.bincount(w.hops, minlength=4)[1:].min() > n / 3 - 4 * math.sqrt(n * 2 / 9)
    asked = np.arange(3) < w.hops[:, None]
    rows = np.arange(n)
    for hop in range(3):
        landed = w.table[rows, w.path[:, hop], w.relations[:, hop]]
        np.testing.assert_array_equal(w.path[:, hop + 1], np.where(asked[:, hop], landed, w.path[:, hop]))
    on_path = np.zeros(w.table.shape, bool)
    for hop in range(3):
        on_path[rows, w.path[:, hop], w.relations[:, hop]] |= asked[:, hop]
    assert (on_path.sum(axis=(1, 2)) == w.hops).all()
    off = w.table[~on_path]
    assert abs((off >= 0).mean() - 0.6) < 4 * math.sqrt(0.24 / off.size)
    step = (w.table - np.arange(5)[:, None]) % 5
    assert set(np.unique(step[w.table >= 0])) == {1, 2}


@pytest.mark.parametrize("task", [SMALL, SKILLED], ids=["small", "skilled"])
def test_potential_and_coalitions_are_the_reader_on_their_evidence(task):
    posterior = jax.jit(jax.vmap(oracles.answer_posterior, (None, 0, None)), static_argnums=2)
    n_agents = task.num_agents
    for p, g, batch, world, turns, _ in itertools.islice(episodes(task), 0, P * G, 7):
        coalitions = [[k % n_agents in s for k in range(len(turns))] for s in subsets(n_agents)]
        prefixes = [[k < b for k in range(len(turns))] for b in range(task.max_turns + 1)]
        known = np.zeros((len(coalitions) + len(prefixes), task.num_entities, task.num_relations), bool)
        for row, counts in zip(known, coalitions + prefixes, strict=True):
            for turn, counted in zip(turns, counts, strict=True):
                if counted and turn["fact"] is not None and turn["fact"][0] != "skill":
                    row[turn["fact"][:2]] = True
        truth = np.asarray(posterior(world, known, task.environment.prior))[:, world.path[-1]]
        value, potential = batch.signals["coalition_value"][p, g], batch.signals["potential"][p, g]
        np.testing.assert_allclose(value, truth[: 2**n_agents], atol=1e-6)
        np.testing.assert_allclose(potential, truth[2**n_agents :], atol=1e-6)
        np.testing.assert_allclose(batch.signals["answer_logprob"][p, g, :, 0], np.log(potential), atol=1e-5)
        assert value[0] == potential[0] and value[-1] == potential[-1]
        # Efficiency: Shapley values by the definition over orders add up to v(all) - v(empty).
        shares = np.zeros(n_agents)
        for order in itertools.permutations(range(n_agents)):
            for i, agent in enumerate(order):
                before = sum(1 << a for a in order[:i])
                shares[agent] += (value[before | 1 << agent] - value[before]) / math.factorial(n_agents)
        np.testing.assert_allclose(shares.sum(), potential[-1] - potential[0], atol=1e-6)


def subsets(n):
    return [{a for a in range(n) if index >> a & 1} for index in range(2**n)]


def test_knowing_the_chain_raises_the_potential_to_one():
    potential = make("lookup").gold("train", 0, 256).signals["potential"][:, 0]
    assert (potential[:, 2:] == 1).all()
    assert potential[:, 0].mean() + 0.05 < potential[:, 1].mean() < 0.5


def test_layout_masks_and_flags():
    task = SKILLED
    prompts, batch, _ = rollouts(task)
    length, per_turn = task.prompt_length, 3
    assert batch.length == length + per_turn * task.max_turns
    np.testing.assert_array_equal(batch.tokens[:, :, :length], np.repeat(prompts.tokens[:, None], G, 1))
    np.testing.assert_array_equal(batch.signals["token_mask"][:, :, :length], np.repeat(prompts.mask[:, None], G, 1))
    place = (np.arange(batch.length) - length) % per_turn
    turn = (np.arange(batch.length) - length) // per_turn
    assert not batch.action_mask[..., (place == 2) | (turn < 0)].any()
    assert (batch.tokens[~batch.signals["token_mask"]] == lookup.PAD).all()
    np.testing.assert_array_equal(batch.segment, np.where(batch.signals["token_mask"] & (turn >= 0), turn, -1))
    np.testing.assert_array_equal(
        batch.signals["agent"], np.where(batch.action_mask, batch.segment % task.num_agents, -1)
    )
    last = np.max(np.where(batch.action_mask, np.arange(batch.length), -1), axis=-1)
    np.testing.assert_array_equal(batch.terminated, np.arange(batch.length) == last[..., None])
    assert not batch.truncated.any()
    assert not batch.reward[~batch.action_mask].any()


def test_skill_reads_cover_their_tokens():
    for p, g, batch, _, turns, _ in episodes(SKILLED):
        s = {name: value[p, g] for name, value in batch.signals.items()}
        reads = [t["kind"] == "read" for t in turns] + [False] * (SKILLED.max_turns - len(turns))
        np.testing.assert_array_equal(s["read_mask"], reads)
        np.testing.assert_array_equal(s["read_is_oracle"][: len(turns)], [t.get("helpful", False) for t in turns])
        call = np.full(batch.length, -1)
        identity = np.zeros(batch.length, bool)
        for k in np.flatnonzero(reads):
            at = SKILLED.prompt_length + 3 * k
            call[at : at + 2], identity[at + 1] = k, True
        np.testing.assert_array_equal(s["read_call"], call)
        np.testing.assert_array_equal(s["read_identity"], identity)
    _, unskilled, _ = rollouts(SMALL)
    assert not unskilled.signals["read_mask"].any() and (unskilled.signals["read_call"] == -1).all()


def test_hostile_tokens_are_malformed_and_harmless():
    task = SKILLED
    prompts = task.prompts("train", 0, 1)
    start = jax.jit(task.environment.reset)(prompts.data[0])
    step = jax.jit(task.environment.step)
    nasty = [
        -1,
        -(2**31),
        INT_MAX,
        0,
        task.vocab_size,
        task.vocab_size + 5,
        lookup.READ,
        lookup.ANSWER,
        lookup.ASK,
        lookup.NONE,
    ]
    edges = [task.vocabulary.entity - 1, task.vocabulary.relation, task.vocabulary.skill]
    for head, tail in itertools.product(nasty + edges, nasty):
        state, result = step(start, jnp.array([head, tail]), jnp.ones(2, bool))
        assert state.kind[0] == oracles.MALFORMED and state.fact[0] == state.observed[0] == state.answer == -1
        assert result.tokens[0] == lookup.NONE and result.mask[0] and not result.terminated
    query = jnp.array([task.vocabulary.entity, task.vocabulary.relation])
    half, _ = step(start, query, jnp.array([True, False]))
    assert half.kind[0] == oracles.MALFORMED, "half a query is no query"
    assert step(start, query, jnp.ones(2, bool))[0].kind[0] == oracles.QUERY
    untouched, result = step(start, query, jnp.zeros(2, bool))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), untouched, start)))
    assert not result.mask[0] and result.reward == 0 and result.tokens[0] == lookup.PAD


@pytest.mark.parametrize("ending", ["answer", "budget"])
def test_a_step_after_the_end_changes_nothing(ending):
    task = SKILLED
    step = jax.jit(task.environment.step)
    everything = jnp.ones(2, bool)
    state = jax.jit(task.environment.reset)(task.prompts("eval", 3, 1).data[0])
    answer = jnp.array([lookup.ANSWER, task.vocabulary.entity + state.world.path[-1]])
    query = jnp.array([task.vocabulary.entity, task.vocabulary.relation])
    for k in range(task.max_turns):
        state, result = step(state, answer if ending == "answer" else query, everything)
        if ending == "answer":
            break
        assert bool(result.terminated) == (k == task.max_turns - 1)
    assert state.terminated
    np.testing.assert_allclose(result.reward, 1.2 if ending == "answer" else -0.05, atol=1e-6)
    for action, mask in itertools.product([answer, query, jnp.array([0, INT_MAX])], [everything, ~everything]):
        after, result = step(state, action, mask)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), after, state)))
        assert result.reward == 0 and not result.mask[0] and result.tokens[0] == lookup.PAD and result.terminated


def test_prompts_are_a_pure_function_of_split_and_index():
    task = make("lookup", hops=4, min_hops=2, eval_size=40)
    whole, part = task.prompts("train", 0, 32), task.prompts("train", 20, 12)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
        np.testing.assert_array_equal(a[20:], b)
    again = make("lookup", hops=4, min_hops=2, eval_size=40).prompts("train", 0, 32)
    np.testing.assert_array_equal(whole.data, again.data)
    sets = [whole, task.prompts("eval", 0, 40), make("lookup", hops=4, min_hops=2, seed=1).prompts("train", 0, 32)]
    rows = [row.tobytes() for prompts in sets for row in prompts.data]
    assert len(set(rows)) == len(rows), "splits and seeds never share an episode"
    worlds = jax.jit(jax.vmap(task.environment.draw))(np.concatenate([whole.data, sets[1].data]))
    assert len({table.tobytes() for table in np.asarray(worlds.table)}) == 72
    hops = np.asarray(worlds.hops)[:32]
    assert set(hops) == {2, 3, 4}
    for tokens, mask, h, path, relations in zip(
        whole.tokens, whole.mask, hops, worlds.path, worlds.relations, strict=False
    ):
        wanted = [f"e{path[0]}", *(f"r{r}" for r in relations[:h]), "?"]
        assert task.decode(tokens[mask]) == wanted and mask[-len(wanted) :].all() and not tokens[~mask].any()
    far = task.prompts("train", 2**32 - 1, 1)
    assert far.data.shape == (1, 2)
    for split, start, count in [("test", 0, 1), ("eval", 30, 11), ("train", -1, 2), ("train", 2**32 - 1, 2)]:
        with pytest.raises(ValueError, match=f"{split}"):
            task.prompts(split, start, count)


def test_nothing_is_traced_twice():
    task = make("lookup", num_entities=7, signals=("agent",))
    lookup._prompts.clear_cache()
    lookup._gold.clear_cache()
    traces = 0

    def counted(state, key):
        nonlocal traces
        traces += 1
        return jnp.array([task.vocabulary.entity, task.vocabulary.relation])

    run = jax.jit(lambda prompts, keys: task.play(prompts, counted, keys))
    for start in (0, 8):
        run(task.prompts("train", start, 8), jax.random.split(jax.random.key(start), (8, 2)))
        task.gold("eval", start, 8)
        make("lookup", num_entities=7, signals=("agent",)).prompts("eval", start, 8)
    assert traces == 1 and run._cache_size() == 1
    assert lookup._prompts._cache_size() == 1 and lookup._gold._cache_size() == 1


def test_vmapped_steps_equal_single_ones():
    task = SMALL
    _, batch, _ = rollouts(task)
    prompts = task.prompts("train", 0, P)
    actions = batch.tokens[:, 0, task.prompt_length :].reshape(P, task.max_turns, 3)[..., :2]
    reset = jax.jit(task.environment.reset)
    states = jax.vmap(reset)(prompts.data)
    singles = [reset(data) for data in prompts.data[:3]]
    many, one = jax.jit(jax.vmap(task.environment.step)), jax.jit(task.environment.step)
    for k in range(task.max_turns):
        states, result = many(states, actions[:, k], np.ones((P, 2), bool))
        for p in range(3):
            singles[p], alone = one(singles[p], actions[p, k], np.ones(2, bool))
            same = jax.tree.map(lambda a, b, p=p: bool((a[p] == b).all()), (states, result), (singles[p], alone))
            assert all(jax.tree.leaves(same))


def test_gold_is_right_and_noise_makes_it_weak():
    task = make("lookup")
    gold = task.gold("train", 0, 256)
    assert gold.batch_shape == (256, 1) and (gold.outcome == 1).all()
    np.testing.assert_array_equal(gold.signals["process_reward"][:, 0], [[1, 1, 1, 0]] * 256)
    noisy = make("lookup", **NOISY)
    whole, shifted = (noisy.gold("train", start, 256) for start in (0, 56))
    np.testing.assert_array_equal(whole.tokens[56:], shifted.tokens[:200])
    assert 0.4 < whole.outcome.mean() < 0.85
    assert (whole.action_mask.sum(-1) > gold.action_mask.sum(-1)).mean() > 0.3


def test_decode_names_every_token():
    task = make("lookup", num_entities=3, num_relations=2, num_skills=1, reach=3)
    wanted = ["·", "none", "?", "ANS", "READ", "e0", "e1", "e2", "r0", "r1", "s0"]
    assert task.vocab_size == len(wanted)
    assert task.decode(np.arange(11).reshape(1, 11)) == wanted
    assert task.decode([-1, 11]) == ["<-1>", "<11>"]


def test_only_the_signals_that_were_named():
    task = make("lookup", **NOISY)
    batch = task.gold("train", 0, 256)
    assert set(batch.signals) == {"state_key", "token_mask"}
    assert isinstance(task, TextTask) and task.verify(batch, None) is batch
    assert set(lookup.LookupTask.offered_signals()) <= set(SIGNALS)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"hop": 2}, ValueError, "did you mean hops"),
        ({"hops": 0}, ValueError, "hops: 0, wanted at least 1"),
        ({"hops": 2.0}, TypeError, "hops: 2.0, wanted an integer"),
        ({"hops": 5}, ValueError, "num_relations: 4, wanted at least 5"),
        ({"max_turns": 2}, ValueError, "max_turns: 2, wanted at least 3"),
        ({"min_hops": 3}, ValueError, "min_hops: 3, wanted between 1 and 2"),
        ({"edge_probability": 0.0}, ValueError, "edge_probability"),
        ({"edge_probability": math.nan}, ValueError, "edge_probability"),
        ({"reach": 13}, ValueError, "reach: 13, wanted between 1 and 12"),
        ({"num_agents": 11}, ValueError, "num_agents"),
        ({"step_cost": "0.1"}, TypeError, "step_cost: '0.1', wanted a number"),
        ({"signals": ["state_keys"]}, ValueError, "did you mean state_key"),
    ],
)
def test_bad_options_are_named(options, error, says):
    with pytest.raises(error, match=says.replace(".", r"\.")):
        make("lookup", **options)


def test_unknown_tasks_fail_before_anything_is_imported():
    script = (
        "import sys, creditjax.tasks as t\n"
        "try: t.make('lokup')\n"
        "except ValueError as e: print(e)\n"
        "print(sorted(m for m in sys.modules if m.startswith('creditjax.tasks.')))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["task 'lokup' is unknown; did you mean lookup?", "['creditjax.tasks.base']"]
