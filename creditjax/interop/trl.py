"""Any recipe or chain as the advantages of TRL's `GRPOTrainer`; written for and tested with TRL 1.16.0.

    from creditjax.interop import trl as credit

    Trainer = credit.with_credit("rloo")
    Trainer(model=..., reward_funcs=..., args=GRPOConfig(...), train_dataset=...).train()

TRL computes advantages inside of `_generate_and_score_completions`, the method that turns prompts into a training
batch, and no smaller one has them. :class:`CreditMixin` overrides it: TRL's own runs, then ``output["advantages"]`` is
exchanged, before the batch is shuffled and split. The rewards are those that `_calculate_rewards` returned, of all
processes. TRL's loss takes advantages of rollouts ``[B]`` and of tokens ``[B, T]``.
"""

from typing import Any

from creditjax.algebra import Level
from creditjax.interop import rows
from creditjax.interop import torch as credit_of_tensors
from creditjax.interop.rows import Estimator

# A trainer comes after it, which the type checker has to be told.
_Base: Any = object


class CreditMixin(_Base):
    """Goes before `GRPOTrainer`: ``class Trainer(CreditMixin, GRPOTrainer): credit_estimator = recipe("rloo")``.

    An estimator is given tokens, the mask of what the policy wrote, outcomes (the weighted sum of the reward functions,
    NaN where none of them scored), `reward_components` (each function's), and where TRL has them `logprob` and
    `logprob_ref`. Whoever is scored votes, truncated completions that TRL masks included, as in TRL.

    Attributes:
      credit_estimator: the name of a recipe, a recipe or a chain.
    """

    credit_estimator: Estimator

    def credit_signals(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> dict[str, Any]:
        """More fields and signals for the estimator, to be overridden.

        Args:
          inputs: the rows of the data set, one a completion of this process.
          output: what TRL made of them; `completion_ids` and so on are ``[B, T]``.

        Returns:
          Tensors by name, one row a completion of this process.
        """
        return {}

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        self._credit_scores = super()._calculate_rewards(*args, **kwargs)
        return self._credit_scores

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = self._credit_advantages(inputs, output)
        return output

    def _credit_advantages(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Any:
        import torch

        estimator = rows.as_estimator(self.credit_estimator)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        local = {"action_mask": mask, "tokens": output["completion_ids"]}
        for ours, theirs in (
            ("logprob", ("sampling_per_token_logps", "old_per_token_logps")),
            ("logprob_ref", ("ref_per_token_logps",)),
        ):
            found = [output[name] for name in theirs if output.get(name) is not None]
            local |= {ours: found[0]} if found else {}
        local |= self.credit_signals(inputs, output)
        scores = self._credit_scores.float()
        unscored = torch.isnan(scores).all(dim=1)
        outcome = (scores * self.reward_weights.to(scores.device)).nansum(dim=1)
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        given = {name: self._credit_gather(x) for name, x in local.items()}
        given |= {"outcome": outcome.masked_fill(unscored, torch.nan), "reward_components": scores}
        made = credit_of_tensors.credit(
            estimator,
            # TRL repeats a prompt in place, and gathers processes in their order.
            group_ids=torch.arange(len(outcome)) // group_size,
            votes=~unscored.cpu(),
            **{name: x.cpu() for name, x in given.items()},
        )
        value = made.value
        if estimator.gives is Level.TRAJECTORY:
            # The largest by magnitude is that of any token of the policy, and 0 where there is none.
            value = value.gather(1, value.abs().argmax(dim=1, keepdim=True))[:, 0]
        self._credit_log(value.reshape(len(value), -1), given["action_mask"].cpu())
        start = self.accelerator.process_index * len(mask)
        own = value[start : start + len(mask)]
        return (own if own.dim() == 1 else own[:, : mask.shape[1]]).to(mask.device)

    def _credit_gather(self, x: Any) -> Any:
        if self.accelerator.num_processes == 1:
            return x
        return self.accelerator.gather(self.accelerator.pad_across_processes(x, dim=1) if x.dim() > 1 else x)

    def _credit_log(self, value: Any, mask: Any) -> None:
        """The table of completions shows the mean credit over a completion's tokens in place of TRL's advantages."""
        logged = self._logs["advantages"]
        for _ in range(min(len(value), len(logged))):
            logged.pop()
        mean = (value * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        logged.extend(mean.tolist())


def with_credit(estimator: Estimator, trainer: type | None = None, **overrides: Any) -> type:
    """A subclass of `GRPOTrainer`, or of a trainer of your own, whose advantages are an estimator's credit.

    Args:
      estimator: the name of a recipe, a recipe or a chain.
      trainer: `trl.GRPOTrainer` by default, else a subclass of it.
      **overrides: hyperparameters, with the name of a recipe.

    Raises:
      ImportError: TRL cannot be imported.
      TypeError: `trainer` has not the method that is overridden.
    """
    base = trainer if trainer is not None else _grpo_trainer()
    if not hasattr(base, "_generate_and_score_completions"):
        raise TypeError(f"trainer: {base!r}, wanted trl.GRPOTrainer or a subclass of it")
    made = rows.as_estimator(estimator, **overrides)
    return type(f"{base.__name__}WithCredit", (CreditMixin, base), {"credit_estimator": made})


def _grpo_trainer() -> type:
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        raise rows.absent("trl", error) from error
    return GRPOTrainer
