"""Which method for which situation: the survey's questions, answered with recipes that are registered here.

Source: arXiv:2604.09459, figure 4 and table 8 (card `ca_decision_tree`). The four questions are the survey's; the order
within a family is chosen.
"""

from collections.abc import Sequence
from typing import NamedTuple

from creditjax.recipes import Recipe, list_recipes, recipe
from creditjax.trajectory import FIELDS, signal_spec

SHORT = 2000

# What every run of the library has: fields of the rollouts, and what the policy itself, the sampler and the loop add.
_ALWAYS = frozenset(FIELDS) - {"segment"} | {
    "token_mask",
    "accuracy",
    "entropy",
    "self_certainty",
    "chosen_logit",
    "sum_pi_squared",
    "logprob_current",
    "logprob_ref",
    "greedy_outcome",
    "running_baseline",
}
_JUDGED = {
    "answer_logprob",
    "belief",
    "call_similarity",
    "candidate_reward",
    "commitment_correct",
    "correctness",
    "judge_error",
    "judge_grad_dot_emb",
    "logprob_prm",
    "potential",
    "prefix_score",
    "process_reward",
    "prover_value",
    "read_is_oracle",
    "step_label",
    "thought_label",
    "step_score",
    "subproblem_reward",
}

_WHOLE = {
    "accuracy",
    "action_mask",
    "greedy_outcome",
    "outcome",
    "reward",
    "reward_components",
    "running_baseline",
    "terminated",
    "token_mask",
    "trajectory",
    "truncated",
    "votes",
}

# The best known of each family, strongest fit first.
_ORDER = (
    *("rloo", "grpo", "dr_grpo"),
    *("matchtir", "skillgate", "a2tgpo", "pure", "tips", "prime", "tempo", "ppo", "gae", "vtrace", "gigpo"),
)


class Recommendation(NamedTuple):
    """A recipe, the answers that led to it, and what it costs beyond plain rollouts."""

    recipe: str
    path: tuple[str, ...]
    cost: str


def recommend(
    signals: Sequence[str] = (),
    *,
    branch: bool = False,
    critic: bool = False,
    agents: int = 1,
    tokens: int | None = None,
) -> list[Recommendation]:
    """Registered recipes for a situation, by family; episode-level GRPO is always among them.

    Questions in order: is there feedback on intermediate steps (a signal that judges them); can one branch from
    intermediate states; can one train a critic; otherwise the policy's own statistics and repeated states. Methods that
    divide an outcome among agents come first where there are several and a signal tells them apart (`coalition_value`);
    without one the others are given as for one agent, and their paths say so. Short rollouts of one agent without any
    of these start with the episode-level baselines.

    Within a family the best known come first, then those that cost nothing beyond the rollouts, then the others; each
    of these by name, which is no order of merit. The cost is what a method takes, whether its signals are offered or
    not.

    Args:
      signals: what the task or a model can provide, by the names of `creditjax.SIGNALS`; "segment" if rollouts are cut
        into turns or steps. What a run makes of the policy, its reference and its own loop is taken to be there.
      branch: rollouts can be started again from, or share, intermediate states.
      critic: a value head can be trained.
      agents: how many share the outcome.
      tokens: typical length of a rollout, if known.

    Raises:
      KeyError: a signal that is not in the table.
      TypeError: one name in place of a sequence of names.
      ValueError: no agents, or no tokens.

    >>> recommend(["process_reward", "segment"])[0].recipe
    'pure'
    >>> recommend(tokens=500)[0].recipe
    'rloo'
    """
    if isinstance(signals, str):
        raise TypeError(f"signals: {signals!r}, wanted a sequence of names such as [{signals!r}]")
    for name in signals:
        if name not in FIELDS:
            signal_spec(name)
    if agents != int(agents) or agents < 1:
        raise ValueError(f"agents: {agents}, wanted at least 1")
    if tokens is not None and not tokens >= 1:
        raise ValueError(f"tokens: {tokens}, wanted at least 1")
    critic = critic or "value" in signals
    given = _ALWAYS | set(signals) | ({"value", "next_value"} if critic else set())
    if agents > 1:
        given |= {"agent"}
    judged = sorted(_JUDGED & set(signals))
    families: list[tuple[str, tuple[str, ...]]] = []
    if agents > 1:
        families.append(("team", (f"{agents} agents share one outcome",)))
    if judged:
        families.append(("process", (f"steps are judged ({', '.join(judged)})",)))
    path = ("steps are judged too" if judged else "the outcome is all the feedback",)
    if branch:
        families.append(("branch", (*path, "one can branch from intermediate states")))
    path = (*path, "one can branch" if branch else "no branching")
    if critic:
        families.append(("critic", (*path, "a critic can be trained")))
    path = (*path, "a critic can be trained too" if critic else "no critic")
    rest = [("implicit", (*path, "what the rollouts and the policy show of themselves")), ("episode", path)]
    if tokens is not None and tokens < SHORT and not families:
        rest = [("episode", (*path, f"{tokens} tokens: an episode is short")), rest[0]]
    able = [made for made in map(recipe, list_recipes()) if set(made.needs) <= given]
    if agents > 1 and "team" not in map(_family, able):
        alone = f"{agents} agents share one outcome, but no signal tells what each of them adds"
        families, rest = ([(family, (alone, *answers)) for family, answers in some] for some in (families, rest))
    found = []
    for family, answers in (*families, *rest):
        fitting = sorted((made for made in able if _family(made) == family), key=_rank)
        found += [Recommendation(made.name, answers, _cost(made)) for made in fitting]
    return found


def _family(made: Recipe) -> str:
    """The branch of the tree that a recipe hangs on, by what it needs and by the tags of its card."""
    shares = made.card.methodology == "game-theoretic" and "value" not in made.needs
    if shares or made.card.granularity == "agent":
        return "team"
    if _JUDGED & set(made.needs):
        return "process"
    if "value" in made.needs:
        return "critic"
    if made.card.methodology == "temporal-difference":
        return "branch"  # differences of values that the tree of rollouts gives
    return "episode" if _broadcasts(made) else "implicit"


def _broadcasts(made: Recipe) -> bool:
    """Whether the estimator knows no more of a rollout than what it was paid and where it ended."""
    return {*made.estimator.needs, *made.estimator.uses} <= _WHOLE


def _rank(made: Recipe) -> tuple[int, bool, str]:
    known = _ORDER.index(made.name) if made.name in _ORDER else len(_ORDER)
    return known, _cost(made) != _NOTHING, made.name


_NOTHING = "nothing beyond the rollouts"
# Signals that come with the rollouts or out of the loop.
_FREE = frozenset({"accuracy", "agent", "progress", "prompt_length", "running_baseline", "token_mask"})
# What has to be paid for, and the signals that it makes.
_COSTS = (
    (("value",), "a critic beside the policy"),
    (("coalition_value",), "the worth of every coalition, 2^N evaluations a rollout"),
    (("process_reward",), "a process-reward model or oracle on every step"),
    (("potential", "answer_logprob"), "a pass of the policy at every turn boundary"),
    (("logprob_prm",), "an implicit reward model, trained along"),
    (("logprob_ref",), "a pass of the reference policy"),
    (("call_similarity",), "reference calls to match with"),
    (("read_is_oracle",), "labels of the helpful skill"),
    (("judge_error", "step_label", "thought_label", "step_score"), "a judge of every step"),
    (("prover_value",), "a prover's chances from every step"),
    (("belief", "correctness", "commitment_correct"), "an answer forced after every step"),
    (("prefix_score",), "a reward model on every prefix"),
    (("candidate_reward",), "an oracle of single actions"),
    (("judge_grad_dot_emb",), "a backward pass through the judge"),
    (("state_key",), "keys of the states"),
    (("greedy_outcome",), "one greedy rollout a prompt"),
    (("logprob_current",), "a pass of the policy that is updated"),
    (
        ("entropy", "self_certainty", "sum_pi_squared", "chosen_logit", "token_kl"),
        "the policy's logits over the vocabulary at every token",
    ),
    (("loop_logprob", "exit_pdf"), "a looped policy, read out after every loop"),
)


def _cost(made: Recipe) -> str:
    read = {*made.needs, *made.objective.statistics}
    costs = [cost for signals, cost in _COSTS if set(signals) & read]
    paid = {name for signals, _ in _COSTS for name in signals} | _FREE | set(FIELDS)
    if others := [name for name in made.needs if name not in paid]:
        costs.append(f"the signal{'s' if len(others) > 1 else ''} {', '.join(others)}")
    if _family(made) == "branch":
        costs.append("groups that share prefixes")
    return ", ".join(costs or [_NOTHING]) + (f"; {made.cost}" if made.cost != "linear" else "")
