"""Files of rollouts for the tests of the inspector."""

import numpy as np

from creditjax.interop import Message, Rollout, files

HOSTILE = "</script><img src=x onerror=document.title='owned'>\u202edab\u0000<!--"


def member(group, g, pieces, outcome, **fields):
    """One rollout of a group."""
    return Rollout(
        id=f"{group}/{g}",
        group=group,
        pieces=pieces,
        outcome=outcome,
        prompt=(Message("user", f"ask {group}"),),
        **fields,
    )


def rollouts():
    """Groups: live, all right, all wrong, unscored, of one, and one with hostile text and a turn of a tool."""
    yield member("live", 0, ["yes", " it", " is"], 1.0)
    yield member("live", 1, ["no", " it", " is", " not"], 0.0)
    for g in range(2):
        yield member("easy", g, ["a", " b"], 1.0)
        yield member("hard", g, ["c", " d"], 0.0)
        yield member("blank", g, ["e"], np.nan)
    yield member("lone", 0, ["f"], 1.0)
    yield member(HOSTILE, 0, [HOSTILE, " zebra\nline"], 1.0)
    turns = {"action_mask": [True, False, True], "segment": [0, 1, 2], "roles": ("assistant", "tool", "assistant")}
    yield member(HOSTILE, 1, ["call ", "result ", "answer"], 0.0, **turns)


def write(path):
    """Writes them and gives the path back."""
    files.write(path, rollouts())
    return path
