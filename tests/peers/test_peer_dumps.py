"""Files that the peers themselves write are read as what they are."""

import json
import math

import pytest

from creditjax.interop.batches import batches, groups
from creditjax.interop.files import read


def test_a_dump_that_verl_writes(tmp_path):
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl is not installed; `make peers` has it")
    for step in (10, 9):
        trainer.RayPPOTrainer._write_generations(
            ["Q1", "Q2", "Q1", "Q2"],
            ["a b\nc", "é \u2028x", "", "d"],
            ["1", None, "1", "2"],
            [1.0, math.nan, 0.0, 0.5],
            {"acc": [1.0, 0.0, 0.0, 1.0], "of another length": [1]},
            str(tmp_path),
            step,
        )
    reader = read(tmp_path)
    found = [[rollout.text for rollout in group] for group in groups(reader)]
    assert found == [["a b\nc", ""], ["é \u2028x", "d"]] * 2 and reader.format.name == "verl"
    assert [rollout.meta["step"] for rollout in read(tmp_path)] == [9] * 4 + [10] * 4
    assert math.isnan(next(rollout for rollout in read(tmp_path) if "x" in rollout.text).outcome)


def test_a_table_as_trl_saves_it(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed; `make peers` has it")
    pandas = pytest.importorskip("pandas")
    tool = [
        {"role": "assistant", "content": "x"},
        {"role": "tool", "content": "T"},
        {"role": "assistant", "content": "y"},
    ]
    table = {
        "step": [3, 3],
        "prompt": [[{"role": "user", "content": "hi"}]] * 2,
        "completion": [[{"role": "assistant", "content": "a b"}], tool],
        "right_reward": [1.0, float("nan")],
        "advantage": [0.5, -0.5],
    }
    path = tmp_path / "completions_00003.parquet"
    pandas.DataFrame(table).to_parquet(path)
    first, second = read(path)
    assert first.group == second.group and first.outcome == 1.0 and math.isnan(second.outcome)
    assert second.roles == ("assistant", "tool", "assistant") and second.action_mask.tolist() == [True, False, True]


def test_an_episode_of_gymnasium(tmp_path):
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed; `make peers` has it")
    environment = gymnasium.make("CartPole-v1")
    path = tmp_path / "episodes.jsonl"
    with open(path, "w") as file:
        for seed in (0, 0, 1):
            observation, _ = environment.reset(seed=seed)
            over, episode = False, {"observations": [observation.tolist()], "actions": [], "rewards": []}
            episode |= {"terminations": [], "truncations": []}
            while not over:
                observation, reward, terminated, truncated, _ = environment.step(0)
                step = (observation.tolist(), 0, reward, terminated, truncated)
                for values, value in zip(episode.values(), step, strict=True):
                    values.append(value)
                over = terminated or truncated
            file.write(json.dumps(episode) + "\n")
    found = list(groups(read(path)))
    assert [len(group) for group in found] == [2, 1] and found[0][0].end == "terminated"
    assert found[0][0].outcome == found[0][0].length
    (batch,) = batches(found, positions=128)
    assert batch.trajectory.signals["next_observation"].shape[-1] == 4
