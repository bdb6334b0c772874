"""Every advantage estimator that the page asks about computes what the recipe beside it computes, on tidy batches."""

import numpy as np
import pytest

for _library in ("verl", "trl", "tunix", "rlax"):
    pytest.importorskip(_library, reason=f"{_library} is not installed; `make peers` has it")

import creditjax
from creditjax import testing
from docs import make_peers, peer_estimators

PEERS = peer_estimators.peers(gamma=0.9, lam=0.7)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.library}-{peer.name}")
def test_equals_the_recipe(peer):
    name, hyperparameters = peer.recipe
    estimator = creditjax.recipe(name, **hyperparameters).estimator
    for seed in range(3):
        batch = testing.random_batch(seed, (4, 4, 6), needs=peer.needs, degenerate=False, hostile=False)
        batch = batch if peer.masks else make_peers.without_gaps(batch)
        if name == "optimal_token_baseline":  # where nobody outlasts its group, which is a convention of theirs
            batch = batch.replace(action_mask=np.ones(batch.tokens.shape, bool))
        given = batch.with_signals(reward_components=batch.outcome[..., None]) if name == "gdpo" else batch
        found, wanted = peer.estimator(batch), creditjax.estimate(estimator, given).value
        np.testing.assert_allclose(np.where(batch.action_mask, found, 0.0), wanted, atol=1e-4, rtol=1e-4)


def test_tunixs_ppo_learner_hands_over_whole_rewards():
    """The one fault that docs/peers.md tells of: when this fails, a newer Tunix has mended it."""
    given = peer_estimators.rewards_of_tunix_ppo(1.7)
    assert given.dtype == np.int32
    np.testing.assert_array_equal(given.sum(axis=-1), [1, 1])
