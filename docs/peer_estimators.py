"""The advantage estimators that verl, TRL, Tunix and rlax ship, each as an estimator for `creditjax.testing`.

Each is called as its own trainer calls it, on the rows of a batch. TRL has no function for it: its trainers compute
advantages inside of the method that also generates, so that method runs, with generation and rewards replaced.
"""

from collections.abc import Callable, Mapping
import functools
import importlib.metadata
import os
import tempfile
from typing import Any, Literal, NamedTuple

import numpy as np

from creditjax import testing


class Peer(NamedTuple):
    """An estimator of another library and the recipe that computes the same.

    Attributes:
      library: as its package is called.
      name: what it is called there.
      function: from `testing.Rows` to its advantages.
      recipe: of creditjax, and its hyperparameters.
      needs: fields and signals that it reads.
      arrays: what its rows are made of.
      groups: "ids", "in order" (consecutive groups of one size), or "none".
      masks: whether observed positions between the policy's are part of its contract.
    """

    library: str
    name: str
    function: Callable[[testing.Rows], Any]
    recipe: tuple[str, Mapping[str, Any]]
    needs: tuple[str, ...] = ()
    arrays: Literal["numpy", "torch", "jax"] = "torch"
    groups: str = "ids"
    masks: bool = True

    @property
    def estimator(self) -> Callable[..., np.ndarray]:
        """For `creditjax.testing`. Rollouts that act nowhere are left out where groups may be ragged."""
        return testing.foreign(
            self.function,
            needs=self.needs,
            arrays=self.arrays,
            name=f"{self.library}: {self.name}",
            skip_idle=self.groups == "ids",
        )

    @property
    def version(self) -> str:
        """Of the library that is installed."""
        return importlib.metadata.version(self.library)


def peers(gamma: float = 1.0, lam: float = 0.8) -> list[Peer]:
    """All of them, with this discount and trace where they have one; imports the four libraries."""
    return [*_verl(gamma, lam), *_trl(), *_tunix(gamma, lam), *_rlax(gamma, lam)]


def _verl(gamma: float, lam: float) -> list[Peer]:
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos

    config = AlgoConfig(gamma=gamma, lam=lam)

    def of_groups(function: str, **more: Any) -> Callable[[testing.Rows], Any]:
        call = getattr(core_algos, function)
        return lambda rows: call(rows.reward.clone(), rows.action_mask.float(), index=rows.group_ids, **more)

    def energy(function: str) -> Callable[[testing.Rows], Any]:
        call = getattr(core_algos, function)
        return lambda rows: call(
            rows.reward.clone(),
            rows.action_mask.float(),
            index=rows.group_ids,
            old_log_probs=rows.logprob,
            sum_pi_squared=rows.sum_pi_squared,
        )

    def gae(rows: testing.Rows) -> Any:
        mask = rows.action_mask.float()
        return core_algos.compute_gae_advantage_return(rows.reward, rows.value, mask, gamma=gamma, lam=lam)

    def remax(rows: testing.Rows) -> Any:
        return core_algos.compute_remax_outcome_advantage(rows.reward, rows.greedy_outcome, rows.action_mask.float())

    raw = {"single": "raw"}
    grpo, passk = "compute_grpo_outcome_advantage", "compute_grpo_passk_outcome_advantage"
    vectorized = "compute_grpo_vectorized_outcome_advantage"
    plus = "compute_reinforce_plus_plus_baseline_outcome_advantage"
    made = {
        "grpo": (of_groups(grpo), ("grpo", raw), ()),
        "grpo, norm_adv_by_std_in_grpo=False": (
            of_groups(grpo, norm_adv_by_std_in_grpo=False),
            ("dr_grpo", raw),
            (),
        ),
        "grpo_vectorized": (of_groups(vectorized), ("grpo", raw), ()),
        "grpo_passk": (of_groups(passk, config=config), ("pass_at_k_grpo", {}), ()),
        "rloo": (of_groups("compute_rloo_outcome_advantage"), ("rloo", raw), ()),
        "rloo_vectorized": (of_groups("compute_rloo_vectorized_outcome_advantage"), ("rloo", {}), ()),
        "opo": (of_groups("compute_opo_outcome_advantage"), ("opo", raw), ()),
        "gpg": (of_groups("compute_gpg_outcome_advantage"), ("gpg", {}), ()),
        "gdpo (of one reward)": (of_groups("compute_gdpo_outcome_advantage"), ("gdpo", {"weights": (1.0,)}), ()),
        "reinforce_plus_plus": (
            of_groups("compute_reinforce_plus_plus_outcome_advantage", config=config),
            ("reinforce_plus_plus", {"gamma": gamma}),
            (),
        ),
        "reinforce_plus_plus_baseline": (of_groups(plus), ("reinforce_plus_plus_baseline", {}), ()),
        "remax": (remax, ("remax", {}), ("greedy_outcome",)),
        "gae": (gae, ("gae", {"gamma": gamma, "lam": lam}), ("value",)),
        "optimal_token_baseline": (
            energy("compute_optimal_token_baseline_advantage"),
            ("optimal_token_baseline", {}),
            ("logprob", "sum_pi_squared"),
        ),
        "tir_optimal_token_baseline": (
            energy("compute_multi_turn_optimal_token_baseline_advantage"),
            ("optimal_token_baseline", {}),
            ("logprob", "sum_pi_squared"),
        ),
    }
    return [Peer("verl", name, *rest) for name, rest in made.items()]


def _tunix(gamma: float, lam: float) -> list[Peer]:
    from tunix.rl import algo_core

    def of_groups(function: str) -> Callable[[testing.Rows], Any]:
        return lambda rows: getattr(algo_core, function)(rows.outcome, rows.group_size)

    def gae(rows: testing.Rows) -> Any:
        mask = rows.action_mask.astype(np.float32)
        return algo_core.compute_gae_advantages(rows.reward, rows.value, mask, gamma, lam)

    return [
        Peer("google-tunix", "grpo", of_groups("compute_advantages"), ("grpo", {}), (), "numpy", "in order"),
        Peer("google-tunix", "rloo", of_groups("compute_rloo_advantages"), ("rloo", {}), (), "numpy", "in order"),
        Peer(
            "google-tunix", "drgrpo", of_groups("compute_drgrpo_advantages"), ("dr_grpo", {}), (), "numpy", "in order"
        ),
        Peer("google-tunix", "gae", gae, ("gae", {"gamma": gamma, "lam": lam}), ("value",), "jax"),
    ]


def _rlax(gamma: float, lam: float) -> list[Peer]:
    """On rows without gaps. rlax knows no masks: the discount is 0 after the last position, and what is padding is cut
    off.
    """
    import jax
    from jax import numpy as jnp
    import rlax

    rowwise_gae = jax.jit(jax.vmap(rlax.truncated_generalized_advantage_estimation, (0, 0, None, 0)))
    rowwise_vtrace = jax.jit(
        jax.vmap(lambda v, r, d, w: rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, w, lam).pg_advantage)
    )

    def padded(rows: testing.Rows) -> tuple[Any, Any]:
        later = jnp.flip(jnp.cumsum(jnp.flip(rows.action_mask, -1), -1), -1) > 1
        return jnp.where(later, gamma, 0.0), jnp.pad(rows.value, ((0, 0), (0, 1)))

    def gae(rows: testing.Rows) -> Any:
        discount, values = padded(rows)
        return jnp.where(rows.action_mask, rowwise_gae(rows.reward, discount, lam, values), 0.0)

    def vtrace(rows: testing.Rows) -> Any:
        discount, values = padded(rows)
        rho = jnp.exp(rows.logprob_current - rows.logprob)
        return jnp.where(rows.action_mask, rowwise_vtrace(values, rows.reward, discount, rho), 0.0)

    common = {"arrays": "jax", "groups": "none", "masks": False}
    return [
        Peer(
            "rlax",
            "truncated_generalized_advantage_estimation",
            gae,
            ("gae", {"gamma": gamma, "lam": lam, "whiten": False}),
            ("value",),
            **common,
        ),
        Peer(
            "rlax",
            "vtrace_td_error_and_advantage",
            vtrace,
            ("vtrace", {"gamma": gamma, "lam": lam}),
            ("value", "logprob", "logprob_current"),
            **common,
        ),
    ]


def _trl() -> list[Peer]:
    def of(kind: str, **settings: Any) -> Callable[[testing.Rows], Any]:
        return lambda rows: _advantages_of_trl(_trainer(kind, **settings), rows)

    grpo = {"eps": 1e-4}
    return [
        Peer("trl", "GRPOTrainer", of("GRPO"), ("grpo", grpo), groups="in order"),
        Peer(
            "trl",
            "GRPOTrainer, scale_rewards='none'",
            of("GRPO", scale_rewards="none"),
            ("dr_grpo", {}),
            groups="in order",
        ),
        Peer("trl", "RLOOTrainer", of("RLOO"), ("rloo", {}), groups="in order"),
    ]


def _advantages_of_trl(trainer: Any, rows: testing.Rows) -> Any:
    """One run of the trainer's own `_generate_and_score_completions` on rows that exist already."""
    import torch

    n, length = rows.action_mask.shape
    trainer.num_generations = rows.group_size
    trainer._calculate_rewards = lambda *args: rows.outcome.float()[:, None]
    ids = [[2]] * n, [[2] * length] * n
    completions = ["a"] * n
    short = trainer.__class__.__name__ == "RLOOTrainer"
    # Without a divergence in the reward log-probabilities do not enter, and nothing has to be evaluated.
    trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (torch.zeros(n, length), None, None)
    trainer._generate = lambda prompts: (
        (*ids, completions) if short else (*ids, None, completions, None, {}, None, None)
    )
    return trainer._generate_and_score_completions([{"prompt": "a"} for _ in range(n)])["advantages"]


@functools.cache
def _trainer(kind: str, **settings: Any) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import Dataset
    import trl

    config = getattr(trl, f"{kind}Config")(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        beta=0.0,
        report_to="none",
        use_cpu=True,
        **settings,
    )
    made = getattr(trl, f"{kind}Trainer")(
        model=language_model(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=tokenizer(),
    )
    made.model.train()
    return made


WORDS = ["<pad>", "<eos>", "a", "b", "c", "d"]


def language_model() -> Any:
    """A transformer of some thousand random weights, the same every time, that nothing is downloaded for."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return Qwen2ForCausalLM(config)


def tokenizer() -> Any:
    """Of the words that the model knows."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def tunix_cluster(critic: bool = False) -> Any:
    """Tunix's models for its own tests, with random weights, and all that its learners ask for around them."""
    from flax import nnx
    import jax
    import optax
    from tunix.rl import rl_cluster
    from tunix.rl.rollout import base_rollout
    from tunix.tests import test_common

    def transformer(seed: int) -> Any:
        config = test_common.ModelConfig(num_layers=1, vocab_size=len(test_common.MockVocab.DEFAULT_MAPPING))
        return test_common.ToyTransformer(config=config, rngs=nnx.Rngs(seed))

    roles = [rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.sgd(0.1),
        critic_optimizer=optax.sgd(0.1) if critic else None,
        eval_every_n_steps=100,
        max_steps=2,
        mini_batch_size=2,
        train_micro_batch_size=2,
    )
    rollout = base_rollout.RolloutConfig(
        max_tokens_to_generate=6, max_prompt_length=4, kv_cache_size=16, temperature=1.0, seed=0
    )
    more = {}
    if critic:
        roles.append(rl_cluster.Role.CRITIC)
        more["critic"] = test_common.ToyTransformerWithScoreHead(transformer(1), rngs=nnx.Rngs(2))
    return rl_cluster.RLCluster(
        actor=transformer(0),
        reference=transformer(0),
        tokenizer=test_common.MockVocab(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine="vanilla",
            training_config=training,
            rollout_config=rollout,
        ),
        **more,
    )


def rewards_of_tunix_ppo(score: float) -> Any:
    """What an advantage estimator is given by `PPOLearner` when every completion scores `score`."""
    from tunix.rl import algo_core, function_registry
    from tunix.rl.ppo import ppo_learner

    seen = []

    @function_registry.register_advantage_estimator("creditjax_probe")
    def probe(rewards: Any, **given: Any) -> Any:
        seen.append(np.asarray(rewards))
        return algo_core.compute_gae_advantages(rewards, *given.values())

    config = ppo_learner.PPOConfig(advantage_estimator="creditjax_probe", beta=0.0)
    learner = ppo_learner.PPOLearner(
        tunix_cluster(critic=True), reward_fns=lambda prompts, completions, **_: [score] * 2, ppo_config=config
    )
    learner.train([{"prompts": np.array(["input string", "hello world"])}])
    return seen[0]
