import pytest
from training_cases import catch_config

from creditjax.training import config as config_lib
from creditjax.training.config import ConfigError, check_config, default_config, parse_arg


def test_a_good_config_is_built():
    parts = check_config(catch_config(recipe={"name": "ppo", "lam": 0.9}), shards=8)
    assert parts.recipe.name == "ppo" and parts.recipe.hyperparameters["lam"] == 0.9
    assert parts.policy.hidden == (16,)
    assert parts.plan.minibatches == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": {"name": "grop"}}, r"config.recipe.name: 'grop' is unknown; did you mean grpo"),
        ({"recipe": {"name": "grpo", "epsclip": 0.1}}, r"no hyperparameter 'epsclip'; did you mean eps_clip"),
        ({"recipe": {"name": "grpo", "eps_clip": "wide"}}, r"recipe: .*eps.*'wide'"),
        ({"recipe": {"name": "rise_dpo"}}, r"'rise_dpo': task 'control' names no tokens .* \(digits\), wanted two"),
        ({"task": {"name": "contrl"}}, r"config.task.name: 'contrl' is unknown; did you mean control"),
        ({"task": {"name": "control", "environment": "Catchbsuite"}}, r"task: .*did you mean .*Catch-bsuite"),
        ({"task": {"name": "control", "enviroment": "x"}}, r"task: .*'enviroment'; did you mean environment"),
        ({"policy": {"name": "mpl"}}, r"config.policy.name: 'mpl' is unknown; did you mean mlp"),
        ({"policy": {"name": "mlp", "hiden": (8,)}}, r"policy.hiden is unknown; did you mean hidden"),
        ({"policy": {"name": "transformer"}}, r"policy.name: 'transformer', wanted mlp or gru"),
        ({"optimizer__name": "adm"}, r"optimizer.name: 'adm' is unknown; did you mean adam"),
        ({"batch__prompts": 12}, r"batch.prompts: 12, wanted a multiple of 8"),
        ({"batch__group_size": 0}, r"config.batch.group_size: 0, wanted at least 1"),
        ({"on_fault": "stopp"}, r"config.on_fault: 'stopp' is unknown; did you mean stop"),
        (
            {"recipe": {"name": "vpr"}},
            r"recipe 'vpr' with task 'control': commit: .*does not make .*'process_reward'",
        ),
        ({"warm_start__steps": 3}, r"warm_start.steps: 3, but task 'control' has no gold answers"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_errors_name_the_field_and_the_nearest_right_name(change, message):
    with pytest.raises(ConfigError, match=message):
        check_config(catch_config(**change), shards=8)


def test_unknown_and_missing_fields_and_wrong_types():
    config = catch_config()
    with config.unlocked():
        config.optmizer = 1
    with pytest.raises(ConfigError, match=r"config.optmizer is unknown; did you mean optimizer"):
        check_config(config)
    config = catch_config()
    with config.unlocked():
        del config.seed
    with pytest.raises(ConfigError, match="config.seed is missing"):
        check_config(config)
    config = catch_config()
    with config.unlocked(), config.ignore_type():
        config.steps = 1.5
    with pytest.raises(ConfigError, match=r"config.steps: 1.5, wanted int"):
        check_config(config)
    # The config itself refuses both already when it is written.
    with pytest.raises(AttributeError, match="optimizer"):
        default_config().optmizer = 1
    with pytest.raises(TypeError):
        default_config().steps = "many"


@pytest.mark.parametrize(
    ("arg", "wanted"),
    [
        (None, {"runlocal": False, "steps": 100, "rate": 0.5}),
        ("runlocal", {"runlocal": True, "steps": 100, "rate": 0.5}),
        ("runlocal,steps=10,rate=1e-3", {"runlocal": True, "steps": 10, "rate": 1e-3}),
        ("runlocal=False", {"runlocal": False, "steps": 100, "rate": 0.5}),
    ],
)
def test_the_argument_string_is_typed_by_its_defaults(arg, wanted):
    assert parse_arg(arg, runlocal=False, steps=100, rate=0.5).to_dict() == wanted


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("runlocl", "'runlocl' is unknown; did you mean runlocal"),
        ("steps=many", "steps: 'many', wanted int"),
        ("steps", "steps: '', wanted int"),
        ("runlocal=perhaps", "runlocal: 'perhaps', wanted bool"),
    ],
)
def test_a_bad_argument_string_is_an_error(arg, message):
    with pytest.raises(ConfigError, match=message):
        parse_arg(arg, runlocal=False, steps=100)


def test_differences_name_the_path():
    old, new = config_lib.to_json(catch_config()), config_lib.to_json(catch_config(seed=3, batch__prompts=8))
    assert config_lib.differences(old, new) == ["batch.prompts: 16 -> 8", "seed: 0 -> 3"]


def test_a_value_head_is_added_for_recipes_that_read_values():
    config = catch_config(task={"name": "lookup"}, policy={"name": "transformer", "width": 16, "heads": 2})
    assert not check_config(config).policy.config.value_head
    config.recipe = {"name": "ppo"}
    assert check_config(config).policy.config.value_head


def test_a_task_makes_only_the_signals_that_the_recipe_reads():
    config = catch_config(task={"name": "lookup"}, policy={"name": "transformer"})
    assert check_config(config).task.signals == ()
    config.recipe = {"name": "gigpo"}
    assert check_config(config).task.signals == ("state_key",)
