"""The table of signals: everything that may ride on a `Trajectory` beside its fields, and what makes it."""

from typing import NamedTuple


class SignalSpec(NamedTuple):
    """One row of the signal table.

    Attributes:
      axes: names of the axes, batch axes included: P prompts, G rollouts, T positions, K segments (K+1 boundaries),
        N agents, 2^N coalitions, C accepted answers, M reward components, Q calls, E reference calls, R skill reads,
        V criteria of a judge, F observation features, H features of a token, L loops, J critiques, B thinking budgets,
        S summaries of one cut, X explainers, Y possible marks, D draws of a generative critic. Signals that share one
        agree in its size.
      dtype: ``float32``, ``int32`` or ``bool``.
      meaning: one line, with the range of validity.
      producer: what in this library makes the signal.
      aliases: names that papers and method cards use for it.
      may_be_missing: NaN means "never evaluated": no credit is assigned there, and ``validate`` accepts it.
    """

    axes: tuple[str, ...]
    dtype: str
    meaning: str
    producer: str
    aliases: tuple[str, ...] = ()
    may_be_missing: bool = False


_PGT = ("P", "G", "T")
_PGK = ("P", "G", "K")
_POLICY = "creditjax.signals.policy_probe"
_PROMPTED = "creditjax.signals.prompted"
_LOOKUP = "creditjax.tasks.lookup"
_STEPWISE = "creditjax.tasks.stepwise"
_TASKS = f"{_LOOKUP} and {_STEPWISE}"

SIGNALS: dict[str, SignalSpec] = {
    "token_mask": SignalSpec(
        _PGT, "bool", "the position holds a token of prompt, policy or environment; False at padding", "the samplers"
    ),
    "observation": SignalSpec(
        ("P", "G", "T", "F"), "float32", "what the policy saw before it acted at t (classical control)", "the samplers"
    ),
    "next_observation": SignalSpec(
        ("P", "G", "T", "F"),
        "float32",
        "what the environment showed after the action at t: of the true next state, never of a reset",
        "the samplers",
    ),
    "value": SignalSpec(_PGT, "float32", "V of the state in which position t was acted", _POLICY, ("values",)),
    "next_value": SignalSpec(
        _PGT,
        "float32",
        "V of the true state after position t, the final observation included where the episode was truncated",
        _POLICY,
        ("next_values", "bootstrap"),
    ),
    "logprob_ref": SignalSpec(_PGT, "float32", "log-probability of the token under the reference policy", _POLICY),
    "logprob_current": SignalSpec(
        _PGT, "float32", "log-probability of the token under the policy being updated, gradient stopped", _POLICY
    ),
    "logprob_prm": SignalSpec(
        _PGT,
        "float32",
        "log-probability of the token under an implicit process-reward model",
        "creditjax.signals.implicit",
    ),
    "entropy": SignalSpec(_PGT, "float32", "entropy of the policy's distribution at t, in nats", _POLICY),
    "self_certainty": SignalSpec(_PGT, "float32", "KL(uniform || policy) at t, in nats", _POLICY),
    "chosen_logit": SignalSpec(_PGT, "float32", "raw logit of the sampled token", _POLICY),
    "sum_pi_squared": SignalSpec(_PGT, "float32", "sum over the vocabulary of the squared probability at t", _POLICY),
    "token_kl": SignalSpec(
        _PGT, "float32", "KL(policy || reference) over the vocabulary at t, in nats", "creditjax.signals.token_kl"
    ),
    "loop_logprob": SignalSpec(
        ("P", "G", "T", "L"),
        "float32",
        "log-probability of the token read out after each loop of a looped policy",
        "creditjax.signals.loops",
        ("loop_logprob_new",),
    ),
    "exit_pdf": SignalSpec(
        ("P", "G", "T", "L"),
        "float32",
        "probability with which a looped policy exits after each loop; adds up to 1",
        "creditjax.signals.loops",
    ),
    "progress": SignalSpec((), "float32", "share of the run's training steps that is behind", "the training loop"),
    "rouge_l": SignalSpec(
        ("P", "G"),
        "float32",
        "ROUGE-L F1 of what the policy wrote against a reference solution, in [0, 1]",
        "creditjax.signals.overlap",
        ("rouge",),
        True,
    ),
    "teacher_span_logprob": SignalSpec(
        _PGK, "float32", "log-probability of each aligned span (a segment) under the teacher", "creditjax.signals.spans"
    ),
    "teacher_span_better": SignalSpec(
        _PGK,
        "float32",
        "the same under a teacher trained on the preferences, or asked for a good answer",
        "creditjax.signals.spans",
        ("teacher_pos",),
    ),
    "teacher_span_worse": SignalSpec(
        _PGK,
        "float32",
        "the same under a teacher trained on the flipped preferences, or asked for a bad answer",
        "creditjax.signals.spans",
        ("teacher_neg",),
    ),
    "step_mask": SignalSpec(
        _PGT, "bool", "the token belongs to the step that was edited; nowhere in other pairs", "creditjax.signals.edits"
    ),
    "edit_mask": SignalSpec(
        _PGT, "bool", "the token of an edited step is not common to both versions", "creditjax.signals.edits"
    ),
    "verdict": SignalSpec(
        ("P", "G"),
        "int32",
        "outcome label that a judge wrote: 1 right, 0 wrong, -1 unparsable",
        "creditjax.signals.verdicts",
        ("pred_outcome",),
    ),
    "solution_label": SignalSpec(
        ("P",),
        "int32",
        "true outcome label of the solution that a judge reads: 1 right, 0 wrong",
        "creditjax.tasks.judging",
    ),
    "logprob_negative": SignalSpec(
        _PGT, "float32", "log-probability of the token under a negative or empty prompt", _PROMPTED
    ),
    "logprob_rubric": SignalSpec(
        _PGT, "float32", "log-probability of the token with the criteria in the prompt", _PROMPTED
    ),
    "logprob_plain": SignalSpec(
        _PGT, "float32", "log-probability of the token under the matched prompt without criteria", _PROMPTED
    ),
    "logprob_better": SignalSpec(
        _PGT, "float32", "log-probability of the token under the reference, asked for a good answer", _PROMPTED
    ),
    "logprob_worse": SignalSpec(
        _PGT, "float32", "log-probability of the token under the reference, asked for a bad answer", _PROMPTED
    ),
    "attention_distance": SignalSpec(
        _PGT,
        "float32",
        "how far back the local heads look from t, in tokens and within a window",
        "creditjax.signals.attention",
        ("waad",),
    ),
    "future_influence": SignalSpec(
        _PGT,
        "float32",
        "how much later tokens of a horizon attend to t in the global heads",
        "creditjax.signals.attention",
        ("fai",),
    ),
    "attention_flow": SignalSpec(
        _PGT,
        "float32",
        "throughput in [0, 1] of a unit of flow from the prompt to the answer along attention",
        "creditjax.signals.attention",
        (),
    ),
    "answer_mask": SignalSpec(_PGT, "bool", "the token belongs to the final answer", _STEPWISE, ()),
    "answer_tokens": SignalSpec(
        ("P", "C", "A"), "int32", "tokens of each accepted answer with its cue, -1 at padding", _STEPWISE, ()
    ),
    "answer_scored": SignalSpec(
        ("P", "C", "A"), "bool", "the answer's token counts in its log-probability; False at the cue", _STEPWISE, ()
    ),
    "hidden": SignalSpec(
        ("P", "G", "T", "H"),
        "float32",
        "the output layer's input from which the token at t was predicted",
        "creditjax.signals.hidden",
        (),
    ),
    "judge_grad_dot_emb": SignalSpec(
        ("P", "G", "T", "V"),
        "float32",
        "<d log p(verdict c) / d e_t, e_t>: how much the token speaks for criterion c",
        "creditjax.signals.attribution",
        (),
    ),
    "judge_verdict": SignalSpec(
        ("P", "G", "V"),
        "float32",
        "probability that the judge approves of criterion c",
        "creditjax.signals.attribution",
        (),
    ),
    "attributions": SignalSpec(
        ("P", "G", "T", "X"),
        "float32",
        "share of the score that explainer x gives the token; sums to 1 over acted tokens",
        "creditjax.signals.attribution",
        (),
    ),
    "process_reward": SignalSpec(
        _PGK,
        "float32",
        "score of each segment by a process-reward model or oracle",
        f"{_TASKS}, or a model of creditjax.process.prm",
        ("step_reward",),
        True,
    ),
    "step_label": SignalSpec(
        _PGK,
        "float32",
        "1 if each step was judged right, 0 if not",
        _STEPWISE,
        (),
        True,
    ),
    "thought_label": SignalSpec(
        _PGK,
        "float32",
        "of a right solution 1 if the step was judged right, of a wrong one 1 if it led to the wrong answer; 0 if not",
        _STEPWISE,
        ("judge_label",),
        True,
    ),
    "step_score": SignalSpec(
        _PGK, "float32", "a reward model's probability that each step is right, in [0, 1]", _STEPWISE, (), True
    ),
    "judge_error": SignalSpec(
        ("P", "G", "K", "J"),
        "float32",
        "1 if critique j judged the step wrong, 0 if right; NaN where it could not be parsed",
        _STEPWISE,
        (),
        True,
    ),
    "step_format": SignalSpec(
        _PGK, "float32", "reward for the form of each step, such as +1 for legal tags and -2 otherwise", _STEPWISE
    ),
    "subproblem_reward": SignalSpec(
        _PGK, "float32", "1 if the answer to subproblem k was verified, else 0; the last one is the problem", _STEPWISE
    ),
    "is_curriculum": SignalSpec(
        ("P", "G"), "bool", "the rollout answers subproblems on the way, not the bare problem alone", _STEPWISE
    ),
    "candidate_reward": SignalSpec(
        ("P", "G"), "float32", "oracle reward of one of the actions drawn in a state", "creditjax.samplers.state_groups"
    ),
    "prompt_length": SignalSpec(("P",), "int32", "number of tokens of the prompt", "creditjax.signals.steps"),
    "potential": SignalSpec(
        ("P", "G", "K+1"),
        "float32",
        "potential at each segment boundary; entry 0 is the bare prompt",
        _TASKS,
        ("answer_probe",),
        True,
    ),
    "answer_logprob": SignalSpec(
        ("P", "G", "K+1", "C"),
        "float32",
        "mean log-probability of each accepted answer given the context up to each boundary",
        _LOOKUP,
        (),
        True,
    ),
    "state_key": SignalSpec(
        _PGK, "int32", "key of the state in which segment k was acted; equal means same state", _TASKS
    ),
    "agent": SignalSpec(_PGT, "int32", "which agent acted at t, -1 for none", _LOOKUP, ("agent_id",)),
    "coalition_value": SignalSpec(
        ("P", "G", "2^N"),
        "float32",
        "value of every coalition of agents; bit n of the index set means agent n takes part",
        _LOOKUP,
        (),
        True,
    ),
    "greedy_outcome": SignalSpec(
        ("P",), "float32", "outcome of one greedy rollout of the prompt", "the greedy sampler"
    ),
    "reward_components": SignalSpec(
        ("P", "G", "M"), "float32", "the separate rewards that add up to the outcome", "the tasks"
    ),
    "accuracy": SignalSpec(("P", "G"), "float32", "correctness before any shaping of the outcome", "the tasks"),
    "answer_score": SignalSpec(
        ("P", "G"), "float32", "score of the final answer in [0, 1]", "the tasks", ("answer_f1",)
    ),
    "call_similarity": SignalSpec(
        ("P", "G", "Q", "E"), "float32", "similarity in [0, 1] of call q to reference call e", _LOOKUP, ("similarity",)
    ),
    "call_turn": SignalSpec(("P", "G", "Q"), "int32", "segment in which call q was made, -1 for no call", _LOOKUP),
    "reference_mask": SignalSpec(("P", "G", "E"), "bool", "reference call e exists", _LOOKUP, ("gmask",)),
    "read_call": SignalSpec(_PGT, "int32", "which skill-read call covers the position, -1 for none", _LOOKUP),
    "read_identity": SignalSpec(_PGT, "bool", "the token names the skill inside a skill-read call", _LOOKUP),
    "read_is_oracle": SignalSpec(("P", "G", "R"), "bool", "skill-read call r chose the helpful skill", _LOOKUP),
    "read_mask": SignalSpec(("P", "G", "R"), "bool", "skill-read call r happened", _LOOKUP, ("rmask",)),
    "planning_mask": SignalSpec(
        _PGT, "bool", "the token lies inside a strategic n-gram, a planning phrase", "creditjax.signals.planning"
    ),
    "is_offpolicy": SignalSpec(
        ("P", "G"), "bool", "the rollout was drawn by an older policy and replayed", "creditjax.samplers.replay"
    ),
    "prompt_mean": SignalSpec(
        ("P",), "float32", "mean outcome of the prompt's latest on-policy rollouts", "creditjax.samplers.replay"
    ),
    "prefix_score": SignalSpec(
        _PGT, "float32", "reward model's score of the text up to and including position t", "creditjax.signals.hidden"
    ),
    "prompt_score": SignalSpec(
        ("P",), "float32", "reward model's score of the prompt alone", "creditjax.signals.hidden"
    ),
    "prover_value": SignalSpec(
        ("P", "G", "K+1"),
        "float32",
        "probability in [0, 1] that the base prover succeeds from each boundary on; the one at the end is not read",
        "creditjax.process.prm",
        (),
        True,
    ),
    "critic_value": SignalSpec(
        ("P", "G", "K", "D"),
        "float32",
        "value in [0, 1] that draw d of a generative critic states as segment k begins; NaN where it states none",
        _STEPWISE,
        (),
        True,
    ),
    "thinking_mask": SignalSpec(
        _PGT, "bool", "the token is thought (a chain of thought), not answer or format", "the tasks", ("cot_mask",)
    ),
    "format_ok": SignalSpec(("P", "G"), "bool", "the rollout has the form that was asked for", "the tasks"),
    "commitment_correct": SignalSpec(
        _PGK,
        "bool",
        "the answer that the rollout commits to at the end of segment k is right",
        _STEPWISE,
    ),
    "correctness": SignalSpec(
        _PGK,
        "float32",
        "mean probability in [0, 1] of the tokens of the gold answer, forced after segment k",
        "creditjax.signals.answer",
        (),
        True,
    ),
    "confidence": SignalSpec(
        _PGK,
        "float32",
        "exp of minus the mean entropy of a short answer drawn after segment k, in [0, 1]",
        "creditjax.signals.answer",
        (),
        True,
    ),
    "belief": SignalSpec(
        ("P", "G", "K+1", "Y"),
        "float32",
        "probability of each possible mark at each boundary; adds up to 1",
        _STEPWISE,
        (),
        True,
    ),
    "grounding": SignalSpec(
        _PGK,
        "float32",
        "mean log-ratio of segment k's tokens with the whole input to those with its evidence masked",
        "creditjax.signals.prompted",
    ),
    "gold_mark": SignalSpec(("P",), "int32", "index of the true mark", "the tasks"),
    "mark": SignalSpec(("P", "G"), "int32", "index of the mark that the rollout gives, -1 for none", "the tasks"),
    "revision_mask": SignalSpec(
        _PGT, "bool", "the token belongs to a step that was rewritten", "creditjax.signals.edits"
    ),
    "summary_reward": SignalSpec(
        ("P", "G", "B", "S"),
        "float32",
        "reward of summary s written from the thinking cut at budget b: verified, or (S = 1) the one to be expected",
        "creditjax.signals.budgets",
    ),
    "budget": SignalSpec(
        ("P", "B"),
        "int32",
        "number of thinking tokens at which thinking is cut, increasing",
        "creditjax.signals.budgets",
    ),
    "running_baseline": SignalSpec(
        (), "float32", "moving average of the outcome before this batch", "the training loop"
    ),
}
