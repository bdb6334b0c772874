"""Tasks: where prompts, environments, verifiers and oracles come from. `make` builds one by its name."""

import importlib
import inspect
from typing import Any

from creditjax.naming import nearest
from creditjax.tasks.base import ControlTask, Prompts, TextTask, TurnEnvironment, TurnFormat, TurnResult

# Name, and the module and class behind it. A module is imported when its task is made, not before.
TASKS: dict[str, tuple[str, str]] = {
    "lookup": ("creditjax.tasks.lookup", "LookupTask"),
    "stepwise": ("creditjax.tasks.stepwise", "StepwiseTask"),
    "judging": ("creditjax.tasks.judging", "JudgingTask"),
    "reasoning_gym": ("creditjax.tasks.reasoning", "ReasoningTask"),
    "gsm8k": ("creditjax.tasks.gsm8k", "GSM8KTask"),
    "control": ("creditjax.tasks.control", "GymnaxTask"),
}

__all__ = [
    "TASKS",
    "ControlTask",
    "Prompts",
    "TextTask",
    "TurnEnvironment",
    "TurnFormat",
    "TurnResult",
    "make",
]


def make(name: str, **options: Any) -> TextTask | ControlTask:
    """Builds the task called `name`.

    Args:
      name: one of `TASKS`.
      **options: keyword arguments of the task's class.

    Raises:
      ValueError: the task or an option is unknown (the message gives the nearest right names), or an option's value is
        refused by the task. Nothing is compiled or read before that.
      TypeError: an option's value has the wrong type.
    """
    if name not in TASKS:
        raise ValueError(f"task {name!r} is unknown; {nearest(name, TASKS)}")
    module, cls = TASKS[name]
    task = getattr(importlib.import_module(module), cls)
    parameters = inspect.signature(task).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    named = [p.name for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for option in options:
        if option not in named and not open_ended:
            raise ValueError(f"task {name!r} has no option {option!r}; {nearest(option, named)}")
    return task(**options)
