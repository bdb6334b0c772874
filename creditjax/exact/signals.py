"""The signals that recipes declare, as a perfect model would give them, or one that errs by a dial.

A method that reads a critic, a process-reward model or an answer probe is judged apart from that model by giving it
the exact numbers; how much it needs them is seen by turning `noise` up. A noisy model is wrong in the same way
whenever it sees the same state, as a trained one is: its value of each state is off by a normal number times `noise`.
What judges, provers and networks make of values is in `creditjax.exact.ideal`.
"""

from collections.abc import Callable
import functools

import numpy as np

from creditjax.exact.ideal import IDEAL
from creditjax.exact.paths import Paths, log_probability
from creditjax.exact.process import Process, check_policy
from creditjax.exact.values import Solution, solve
from creditjax.naming import nearest
from creditjax.trajectory import FIELDS

# exp(-20) stands for an answer that has become impossible.
_LEAST = 2e-9


class Oracle:
    """Signals of episodes under one policy.

    Attributes:
      process: the game laid out.
      solution: of the policy that rolls out.
      noise: standard deviation of the error in each state's value, in units of the outcome.
      seed: of those errors.
      prm_scale: the beta by which an implicit process-reward model's log-ratio is multiplied to give rewards.
      reference: f64 ``[O, V]``, the reference policy; the policy itself if none is given.
    """

    def __init__(
        self,
        process: Process,
        solution: Solution,
        *,
        noise: float = 0.0,
        seed: int = 0,
        prm_scale: float = 0.05,
        reference: np.ndarray | None = None,
    ):
        """Draws the errors.

        Raises:
          ValueError: negative noise, or a scale that is not positive, either not finite; a reference that is no policy.
        """
        self.reference = solution.policy if reference is None else check_policy(process, reference)
        if not (0 <= noise < np.inf and 0 < prm_scale < np.inf):
            raise ValueError(f"noise: {noise}, prm_scale: {prm_scale}, wanted at least 0 and more than 0, finite")
        self.process: Process = process
        self.solution: Solution = solution
        self.noise, self.prm_scale = noise, prm_scale
        rng = np.random.default_rng(seed)
        believed = [v + noise * rng.standard_normal(v.shape) for v in solution.v]
        # Who has seen the end knows the outcome.
        self._v = [np.where(layer.live, b, v) for layer, b, v in zip(process.layers, believed, solution.v, strict=True)]

    def signals(self, paths: Paths, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """The signals called `names`, one entry an episode (see `paths.batch`).

        Raises:
          KeyError: a signal that a process alone does not determine; the game has to give it.
        """
        made = {}
        for name in names:
            if name not in _MADE:
                hint = "a field of the batch (exact.batch)" if name in FIELDS or name == "token_mask" else ""
                hint = hint or f"known to the game alone, or none: {nearest(name, _MADE)}"
                raise KeyError(f"signal {name!r}: not determined by the process; {hint}")
            made[name] = _MADE[name](self, paths)
        return made

    @functools.cached_property
    def believed_q(self) -> list[np.ndarray]:
        """What each token is believed to be worth, by layer ``[S, V]``."""
        off = [believed - v for believed, v in zip(self._v, self.solution.v, strict=True)]
        # Nobody errs about the end.
        ahead = [error[np.asarray(layer.next)] for error, layer in zip(off[1:], self.process.layers, strict=False)]
        return [q + e for q, e in zip(self.solution.q, [*ahead, np.zeros(())], strict=True)]

    def value(self, paths: Paths) -> np.ndarray:
        """V before each position, f64 ``[L, T]``."""
        return paths.gather(self._v)

    def next_value(self, paths: Paths) -> np.ndarray:
        """V of the state in which the policy acts next, 0 after its last action, ``[L, T]``."""
        value, after = self.value(paths), np.zeros(len(paths.tokens))
        made = np.zeros(value.shape)
        for t in reversed(range(value.shape[1])):
            made[:, t] = after
            after = np.where(paths.acts[:, t], value[:, t], after)
        return made

    def boundary_value(self, paths: Paths) -> np.ndarray:
        """The return to be expected when each segment begins, and at the end the return: ``[L, K + 1]``.

        A segment that an episode leaves out is worth what the next one is.
        """
        count = int(paths.segment.max()) + 1
        to_come = np.where(paths.live, self.value(paths), 0.0)
        paid = np.cumsum(paths.reward, axis=1) - paths.reward
        made = np.repeat(paths.outcome[:, None], count + 1, axis=1)
        for k in reversed(range(count)):
            inside = paths.segment == k
            first = np.argmax(inside, axis=1)[:, None]
            here = np.take_along_axis(to_come + paid, first, axis=1)[:, 0]
            made[:, k] = np.where(inside.any(axis=1), here, made[:, k + 1])
        return made

    def step_credit(self, paths: Paths) -> np.ndarray:
        """How much each token, the environment's included, changed the expected return, ``[L, T]``."""
        before, after = self.expected_return(paths)
        return after - before

    def expected_return(self, paths: Paths) -> tuple[np.ndarray, np.ndarray]:
        """The episode's whole return, as expected before each position and after it, 0 past the end, ``[L, T]``."""
        expected = np.where(paths.live, self.value(paths) + np.cumsum(paths.reward, axis=1) - paths.reward, np.nan)
        after = np.concatenate([expected[:, 1:], np.full((len(expected), 1), np.nan)], axis=1)
        after = np.where(np.isnan(after), paths.outcome[:, None], after)
        return np.where(paths.live, expected, 0.0), np.where(paths.live, after, 0.0)

    def law(self, paths: Paths) -> np.ndarray:
        """The policy's probabilities at each position, ``[L, T, V]``."""
        return self.solution.policy[paths.observation]

    def logprob(self, paths: Paths) -> np.ndarray:
        """Log-probability of each action, 0 elsewhere, ``[L, T]``."""
        return log_probability(paths, self.solution.policy)

    def logprob_ref(self, paths: Paths) -> np.ndarray:
        """The same under the reference."""
        return log_probability(paths, self.reference)

    def token_kl(self, paths: Paths) -> np.ndarray:
        """``KL(policy || reference)`` at each action, in nats, ``[L, T]``."""
        law, other = self.law(paths), self.reference[paths.observation]
        ratio = np.log(np.where(law > 0, law, 1.0)) - np.log(np.where(law > 0, np.maximum(other, 1e-30), 1.0))
        return np.where(paths.acts, np.sum(law * ratio, axis=-1), 0.0)

    def entropy(self, paths: Paths) -> np.ndarray:
        """Entropy of the policy at each action, in nats, ``[L, T]``."""
        law = self.law(paths)
        return np.where(paths.acts, -np.sum(law * np.log(np.where(law > 0, law, 1.0)), axis=-1), 0.0)

    def self_certainty(self, paths: Paths) -> np.ndarray:
        """``KL(uniform || policy)`` over the legal tokens at each action, ``[L, T]``."""
        legal = self.process.choices[paths.observation]
        log = np.log(np.where(legal, np.maximum(self.law(paths), 1e-30), 1.0))
        count = legal.sum(axis=-1)
        return np.where(paths.acts, -log.sum(axis=-1) / count - np.log(count), 0.0)

    def greedy_outcome(self, paths: Paths) -> np.ndarray:
        """Expected outcome of always taking the most likely action, ``[]``."""
        policy = self.solution.policy
        greedy = np.eye(policy.shape[1])[np.argmax(policy, axis=1)]
        return np.asarray(solve(self.process, greedy).start)

    def state_key(self, paths: Paths) -> np.ndarray:
        """What the policy saw when each segment began, -1 for segments without an action: i32 ``[L, K]``."""
        count = int(paths.segment.max()) + 1
        made = np.full((len(paths.tokens), count), -1, np.int32)
        for k in range(count):
            inside = (paths.segment == k) & paths.acts
            first = np.take_along_axis(paths.observation, np.argmax(inside, axis=1)[:, None], axis=1)[:, 0]
            made[:, k] = np.where(inside.any(axis=1), first, -1)
        return made

    def process_reward(self, paths: Paths) -> np.ndarray:
        """How much each segment changed the expected return, ``[L, K]``."""
        return np.diff(self.boundary_value(paths), axis=1)

    def answer_logprob(self, paths: Paths) -> np.ndarray:
        """Log of the expected outcome at each boundary, of the one accepted answer, ``[L, K + 1, 1]``."""
        return np.log(np.clip(self.boundary_value(paths), _LEAST, None))[..., None]

    def logprob_prm(self, paths: Paths) -> np.ndarray:
        """A model whose log-ratio to the reference, times `prm_scale`, is what each action adds to the expected return.

        No probability: the ratio that gives the exact credit belongs to no normalised model.
        """
        return self.logprob_ref(paths) + np.where(paths.acts, self.step_credit(paths), 0.0) / self.prm_scale


_MADE: dict[str, Callable[[Oracle, Paths], np.ndarray]] = {
    "accuracy": lambda oracle, paths: paths.outcome,
    "agent": lambda oracle, paths: paths.agent,
    "answer_logprob": Oracle.answer_logprob,
    "answer_score": lambda oracle, paths: paths.outcome,
    "chosen_logit": Oracle.logprob,
    "entropy": Oracle.entropy,
    "greedy_outcome": Oracle.greedy_outcome,
    "logprob_current": Oracle.logprob,
    "logprob_prm": Oracle.logprob_prm,
    "logprob_ref": Oracle.logprob_ref,
    "next_value": Oracle.next_value,
    "potential": Oracle.boundary_value,
    "process_reward": Oracle.process_reward,
    "reward_components": lambda oracle, paths: paths.outcome[:, None],
    "running_baseline": lambda oracle, paths: np.asarray(oracle.solution.start),
    "self_certainty": Oracle.self_certainty,
    "state_key": Oracle.state_key,
    "sum_pi_squared": lambda oracle, paths: np.sum(oracle.law(paths) ** 2, axis=-1),
    "token_kl": Oracle.token_kl,
    "value": Oracle.value,
    **IDEAL,
}

DETERMINED = tuple(_MADE)
"""The signals that a process and its solution determine."""
