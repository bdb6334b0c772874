"""One table of signals and what makes them from a model: the training step and its check before compilation read it.

    policy outputs      value, next_value, logprob_ref, logprob_current, entropy, …      one pass of each model
    other prompts       logprob_negative, logprob_rubric, …                              one pass a kind
    teacher's spans     teacher_span_logprob, teacher_span_better, teacher_span_worse    one pass each
    reward model        logprob_prm, or process_reward, step_score, prover_value         one pass
    attention           attention_distance, future_influence, attention_flow             two passes
    answer probe        answer_logprob, potential, correctness, confidence               (K + 1) C rows for each
    thinking cut        budget, summary_reward                                           B C rows for each
    hidden states       hidden, prefix_score, prompt_score                               one pass
    loops               loop_logprob, exit_pdf                                           one pass
    attribution         judge_grad_dot_emb, judge_verdict, attributions                  backward passes
    phrases             planning_mask                                                    none
    judgements          verdict                                                          none

A producer is a pure function ``(models, batch, names) -> arrays by name``, called inside the jitted update on a piece
``[P, G, T]`` of the batch. A new one is a row here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from creditjax.models.base import Params, Policy, Sampling
from creditjax.process.prm import StepRewardModel, step_signals
from creditjax.signals.answer import answer_signals
from creditjax.signals.attention import ATTENDED, attention_signals
from creditjax.signals.attribution import attributions, judge_gradients
from creditjax.signals.budgets import budgets_of, summary_rewards
from creditjax.signals.hidden import hidden_states, prefix_scores
from creditjax.signals.implicit import implicit_prm_probe
from creditjax.signals.loops import LOOPED, loop_signals
from creditjax.signals.planning import ngram_mask
from creditjax.signals.policy import PROBED, policy_probe, token_kl
from creditjax.signals.prompted import PROMPTED, prompt_fault, prompted_logprob
from creditjax.signals.spans import span_logprob
from creditjax.signals.steps import prompt_length
from creditjax.signals.verdicts import read_judgement
from creditjax.trajectory import Trajectory

Array = jax.Array


class Models(NamedTuple):
    """What a producer may read beside the batch.

    Attributes:
      policy: the model.
      params: its current parameters.
      reference: parameters of the reference policy, or None.
      reward_model: parameters of the process-reward model, or None.
      sampling: how the batch was sampled; static.
      task: where the batch comes from; static.
      step_model: what the reward model is if it scores steps, None if it is implicit; static.
    """

    policy: Policy
    params: Params
    reference: Params | None = None
    reward_model: Params | None = None
    sampling: Sampling = Sampling()
    task: Any = None
    step_model: StepRewardModel | None = None

    def make(self, name: str) -> "Producer | None":
        """Who makes a signal of that name, None if nobody does."""
        return SCORED[name] if self.step_model is not None and name in SCORED else PRODUCERS.get(name)


class Producer(NamedTuple):
    """A row of the table.

    Attributes:
      make: the function; called once for all the names that share it.
      reads: signals that the batch has to carry.
      uses: signals that it reads when they are there.
      value_head: whether the policy has to have one.
      reference: whether it evaluates the reference policy, which a run then has to keep.
      fault: why task and policy cannot do with it, None if they can; called as ``fault(task, policy, name)``.
    """

    make: Callable[[Models, Trajectory, tuple[str, ...]], dict[str, Array]]
    reads: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    value_head: bool = False
    reference: bool = False
    fault: Callable[[Any, Any, str], str | None] = lambda task, policy, name: None


def _policy_outputs(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    probed = policy_probe(models.policy, models.params, batch, names, models.reference, models.sampling)
    return {name: probed.signals[name] for name in names}


def _divergence(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    kl = token_kl(models.policy, models.params, models.reference, batch, models.sampling)
    return dict.fromkeys(names, kl)


def _implicit(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    if models.reward_model is None:
        raise ValueError("signal logprob_prm: found no reward_model, wanted its parameters")
    return {name: implicit_prm_probe(models.policy, models.reward_model, batch).signals[name] for name in names}


def _scored(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    found = step_signals(models.step_model, models.reward_model, batch)
    return {name: found[name] for name in names}


def _prompted(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    def score(name: str) -> Array:
        params = models.params
        if PRODUCERS[name].reference:
            if models.reference is None:
                raise ValueError(f"signal {name}: found no reference, wanted the reference policy's parameters")
            params = models.reference
        return prompted_logprob(models.policy, params, batch, models.task, name, models.sampling)

    return {name: score(name) for name in names}


def _spans(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    """The reference policy as the teacher of CTPD, with the student's tokens and segments.

    Where it stands for one trained on the preferences, and for one trained on their opposite, it is instructed so, as
    TIS-DPO (arXiv:2410.04350) does with prompts.
    """

    def score(name: str) -> Array:
        source = TEACHERS[name]
        logprob = PRODUCERS[source].make(models, batch, (source,))[source]
        return span_logprob(logprob, batch.segment, batch.action_mask, batch.num_segments)

    return {name: score(name) for name in names}


def _attention(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    return attention_signals(models.policy, models.params, batch, names)


def _answer(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    found = answer_signals(models.policy, models.params, batch)
    return {name: found[name] for name in names}


def _cut_thinking(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    budgets = jnp.asarray(budgets_of(models.task))
    found = {"budget": jnp.broadcast_to(budgets, (batch.batch_shape[0], len(budgets)))}
    if "summary_reward" in names:
        found["summary_reward"] = summary_rewards(models.policy, models.params, batch, budgets, models.sampling)
    return {name: found[name] for name in names}


def _loops(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    return loop_signals(models.policy, models.params, batch, names, models.sampling)


def _judged(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    support, approval = judge_gradients(models.policy, models.params, batch, models.task.verdicts)
    found = {"judge_grad_dot_emb": support, "judge_verdict": approval}
    return {name: found[name] for name in names}


def _prefixes(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    found = prefix_scores(models.policy, models.params, batch)
    return {name: found[name] for name in names}


def _of_model(function: Callable[[Any, Params, Trajectory], Array]) -> Callable:
    """A producer whose only signal is ``function(policy, params, batch)``."""
    return lambda models, batch, names: {name: function(models.policy, models.params, batch) for name in names}


def _planning(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    mask = ngram_mask(batch.tokens, batch.action_mask, models.task.strategic_grams)
    return dict.fromkeys(names, mask)


def _verdict(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    right, wrong = models.task.label_tokens
    steps = jnp.full(batch.batch_shape, models.task.num_steps)
    read = read_judgement(
        batch.tokens, batch.action_mask, steps, right=right, wrong=wrong, num_steps=models.task.num_steps
    )
    return dict.fromkeys(names, read.verdict)


def _prompt_length(models: Models, batch: Trajectory, names: tuple[str, ...]) -> dict[str, Array]:
    return dict.fromkeys(names, prompt_length(batch))


def _wants(owner: str, attribute: str) -> Callable[[Any, Any, str], str | None]:
    """A fault unless the task or the policy has the attribute."""

    def fault(task: Any, policy: Any, name: str) -> str | None:
        asked = task if owner == "task" else policy
        if hasattr(asked, attribute):
            return None
        return f"signal {name}: {owner} {type(asked).__name__} has no {attribute}"

    return fault


TEACHERS = {
    "teacher_span_logprob": "logprob_ref",
    "teacher_span_better": "logprob_better",
    "teacher_span_worse": "logprob_worse",
}
"""What the tokens of a span are scored by."""

_ANSWER = Producer(_answer, reads=("answer_tokens", "answer_scored"))
_BUDGET = Producer(_cut_thinking, fault=_wants("task", "turns"))
_ATTENTION = Producer(_attention, uses=("answer_mask",), fault=_wants("policy", "fold_attention"))
_PREFIXES = Producer(_prefixes, value_head=True, fault=_wants("policy", "prefix_values"))
_JUDGE = Producer(_judged, fault=_wants("task", "verdicts"))

PRODUCERS: dict[str, Producer] = {
    **{
        name: Producer(_policy_outputs, reference=name == "logprob_ref", value_head=name in ("value", "next_value"))
        for name in PROBED
    },
    "token_kl": Producer(_divergence, reference=True),
    "logprob_prm": Producer(_implicit),
    # T-REG (arXiv:2412.02685) contrasts two prompts of the frozen reference, the others the policy with itself.
    **{
        name: Producer(
            _prompted,
            reference=kind in ("better", "worse"),
            fault=lambda task, policy, name: prompt_fault(task, name),
        )
        for name, kind in PROMPTED.items()
    },
    **{
        name: Producer(
            _spans,
            reference=True,
            fault=lambda task, policy, name: prompt_fault(task, TEACHERS[name]) if TEACHERS[name] in PROMPTED else None,
        )
        for name in TEACHERS
    },
    **dict.fromkeys(ATTENDED, _ATTENTION),
    **dict.fromkeys(("answer_logprob", "potential", "correctness", "confidence"), _ANSWER),
    **dict.fromkeys(LOOPED, Producer(_loops, fault=_wants("policy", "fold_attention"))),
    "budget": _BUDGET,
    "summary_reward": _BUDGET._replace(reads=("answer_tokens", "answer_scored", "thinking_mask")),
    "hidden": Producer(_of_model(hidden_states), fault=_wants("policy", "contexts")),
    **dict.fromkeys(("prefix_score", "prompt_score"), _PREFIXES),
    "judge_grad_dot_emb": _JUDGE,
    "judge_verdict": _JUDGE,
    "attributions": Producer(_of_model(attributions), value_head=True, fault=_wants("policy", "value_embedded")),
    "planning_mask": Producer(_planning, fault=_wants("task", "strategic_grams")),
    "verdict": Producer(_verdict, fault=_wants("task", "label_tokens")),
    "prompt_length": Producer(_prompt_length, reads=("token_mask",)),
}
"""Every signal that a model makes, by name."""

SCORED: dict[str, Producer] = dict.fromkeys(("process_reward", "step_score", "prover_value"), Producer(_scored))
"""What a model of steps makes where a run trains one; elsewhere they are a task's."""


def produce(models: Models, batch: Trajectory, names: Iterable[str]) -> Trajectory:
    """The batch with those of the signals `names` that the table knows; gradients are stopped.

    Args:
      models: who is asked.
      batch: rollouts ``[P, G, T]``.
      names: a recipe's whole list may be passed; what the batch has already is not made again.

    Raises:
      ValueError: a signal that the models or the task cannot give, naming it and what is wanted.
    """
    wanted: dict[Callable, list[str]] = {}
    for name in names:
        producer = models.make(name)
        if producer is not None and name not in batch.signals:
            if said := fault(name, batch.signals, models.task, models.policy):
                raise ValueError(said)
            wanted.setdefault(producer.make, []).append(name)
    made: dict[str, Array] = {}
    for make, asked in wanted.items():
        made |= make(models, batch, tuple(asked))
    return batch.with_signals(**jax.lax.stop_gradient(made))


def reads_reference(names: Iterable[str]) -> bool:
    """Whether a run has to keep a reference policy for these signals."""
    return any(name in PRODUCERS and PRODUCERS[name].reference for name in names)


def reads_value(names: Iterable[str]) -> bool:
    """Whether the policy has to have a value head for these signals."""
    return any(name in PRODUCERS and PRODUCERS[name].value_head for name in names)


def inputs(names: Iterable[str]) -> tuple[str, ...]:
    """The signals that producers of `names` read, or would if they are there."""
    read = (read for name in names if name in PRODUCERS for read in (*PRODUCERS[name].reads, *PRODUCERS[name].uses))
    return tuple(dict.fromkeys(read))


def fault(name: str, carried: Mapping[str, Any] | Iterable[str], task: Any, policy: Any) -> str | None:
    """Why a signal of the tables cannot be made from a batch that carries these signals, None if it can."""
    producer = SCORED[name] if name in SCORED else PRODUCERS[name]
    if absent := [read for read in producer.reads if read not in carried]:
        return f"signal {name}: made from {', '.join(absent)}, which task {type(task).__name__} does not offer"
    return producer.fault(task, policy, name)
