"""Trials: ids that hang on the resolved config alone, flags that give exactly the values that were swept over."""

import pathlib

from hypothesis import example, given
from hypothesis import strategies as st
import pytest

from creditjax import training
from creditjax.sweeps import trials as trials_lib
from experiments import command_line

ROOT = pathlib.Path(__file__).parents[2]
CHAIN = f"--config={ROOT / 'configs/chain.py'}:runlocal"


def resolve(hypers, *shared, file=CHAIN, given=()):
    return trials_lib.resolve(hypers, lambda own: command_line.parse_config([file, *shared, *own]), given)


def ids(*arguments, **options):
    return [trial.id for trial in resolve(*arguments, **options)]


def test_an_id_is_that_of_the_resolved_config_however_it_came_about():
    plain = ids([{"seed": 1}, {"recipe.lam": 0.5}])
    assert ids([{"recipe.lam": 0.5}, {"seed": 1}]) == plain[::-1]
    assert ids([{}], "--config.seed=1") == ids([{"seed": 1, "recipe.lam": 0.95}]) == plain[:1]
    assert plain[0].startswith("ppo-s1-") and plain[1].startswith("ppo-s0-")
    assert len({*plain, *ids([{"seed": 2}, {"task.eval_size": 17}, {"warm_start.learning_rate": 0.5}])}) == 5


def test_an_id_does_not_change_with_how_a_run_is_run():
    free = ["--config.steps=9", "--config.log.every=3", "--config.mesh.data=1", "--config.checkpoint.keep_last=5"]
    assert ids([{"seed": 1}], *free) == ids([{"seed": 1}])
    assert ids([{"seed": 1}], "--config.checkpoint.best_metric=reward") != ids([{"seed": 1}])


def test_a_hash_is_of_canonical_json():
    config = {"recipe": {"name": "grpo", "b": 0.1, "a": [1, 2]}, "seed": 3, "steps": 5, "mesh": {"data": 2}}
    turned = {"steps": 6, "seed": 3, "mesh": {}, "recipe": {"a": [1, 2], "b": 0.1, "name": "grpo"}}
    # Written down once: sha256 of {"recipe.a":[1,2],"recipe.b":0.1,"recipe.name":"grpo","seed":3}.
    assert trials_lib.identify(config) == trials_lib.identify(turned) == "grpo-s3-6501cbfebb"


@given(
    st.sampled_from(["recipe.lam", "recipe.fresh", "optimizer.learning_rate"]),
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
)
@example("recipe.lam", 5e-324)
def test_numbers_arrive_bit_for_bit(path, value):
    config = command_line.parse_config([CHAIN, trials_lib.flag(path, value)])
    part, name = path.split(".")
    assert config[part][name] == value and repr(float(config[part][name])) == repr(float(value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recipe.fresh", "text"), ("recipe.fresh", "1"), ("recipe.fresh", "True"), ("recipe.fresh", "None"),
        ("recipe.fresh", "a b='c'"), ("recipe.fresh", None), ("recipe.fresh", True), ("recipe.fresh", (1, 0.5)),
        ("recipe.fresh", ()), ("recipe.fresh", ("a", "b")), ("task.environment", "1"), ("task.environment", "x=y"),
        ("policy.hidden", (8,)), ("policy.hidden", (8, 4)), ("policy.hidden", ()), ("log.tensorboard", True),
        ("log.tensorboard", False), ("seed", 3), ("recipe.fresh", "'quoted'"),
    ],
)  # fmt: skip
def test_every_kind_of_value_arrives_as_it_is(monkeypatch, path, value):
    monkeypatch.setattr(training.config, "check_config", lambda config: None)  # most of these name no part
    (trial,) = resolve([{path: value}])
    config = command_line.parse_config([CHAIN, *trial.flags])
    for name in path.split("."):
        config = config[name]
    assert config == value and type(config) is type(value)


def test_a_value_that_a_flag_cannot_give_is_refused():
    with pytest.raises(training.ConfigError, match=r"trial 1 \(seed=1\.5\): config\.seed|invalid literal"):
        resolve([{"seed": 1.5}])
    with pytest.raises(training.ConfigError, match="log.tensorboard"):
        resolve([{"log.tensorboard": 1}])


def test_every_bad_trial_is_listed_before_any_starts():
    hypers = [{"seed": 1}, {"recipe.name": "pppo"}, {"recipe.bta": 1}, {"stps": 2}, {"batch.prompts": 0}]
    with pytest.raises(training.ConfigError) as error:
        resolve(hypers)
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "trial 2 (recipe.name=pppo)", "trial 3 (recipe.bta=1)", "trial 4 (stps=2)", "trial 5 (batch.prompts=0)"
    ]  # fmt: skip
    assert "did you mean" in lines[0] and "did you mean steps" in lines[2] and "wanted at least 1" in lines[3]


def test_trials_that_are_the_same_run_are_an_error_that_names_both():
    with pytest.raises(training.ConfigError, match=r"trials 1 \(seed=0\) and 3 \(recipe.lam=0.95\) are the same run"):
        resolve([{"seed": 0}, {"seed": 1}, {"recipe.lam": 0.95}])
    with pytest.raises(training.ConfigError, match=r"steps=5.* and 2 \(steps=6\).*steps, mesh, log"):
        resolve([{"steps": 5}, {"steps": 6}])


def test_a_path_is_swept_over_or_given_not_both():
    with pytest.raises(training.ConfigError, match="config.seed is set on the command line too"):
        resolve([{"seed": 1}], "--config.seed=2", given=["seed"])


def test_a_sweep_without_trials_is_an_error():
    with pytest.raises(training.ConfigError, match="no trials"):
        resolve([])
