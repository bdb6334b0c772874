"""What other people's files hold, record by record: readers from a parsed record to :class:`Rollout`\\ s.

A :class:`Format` is a name, a test that recognises a record, and a reader of one. A record is what JSON makes of a line
or what a row of a Parquet table is: dicts, lists, strings, numbers. Readers see one record at a time, remember nothing,
and raise a `ValueError` or `TypeError` that names the field.

**Groups.** Where a format names the group of a rollout, that is its group. Where it does not, rollouts with equal
prompts within a step share one: its name is the step and a hash of the prompt. (Two draws of one prompt in one step are
then one group; say ``group_field`` where a column tells them apart.)

**Positions.** Text without token ids is cut into words (`creditjax.interop.text`). A response of a single turn has its
lines as segments (unit "step"); an exchange has its turns.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
import hashlib
import json
import math
from typing import Any, NamedTuple

import numpy as np

from creditjax.interop.rollout import _DEEPEST, SCHEMA, Message, Rollout, Signal
from creditjax.interop.text import split_lines, split_words
from creditjax.naming import choose

Record = Mapping[str, Any]

_LARGEST = float(np.finfo(np.float32).max)


class Place(NamedTuple):
    """Where a record stands, and what the caller knows of its fields.

    Attributes:
      number: of the record in its file, from 1.
      group_field: field that names the group, instead of what the format says.
      outcome_field: field that holds the outcome, instead of what the format says.
      file: name of the file, where several are read together and numbers alone would come twice.
    """

    number: int = 1
    group_field: str | None = None
    outcome_field: str | None = None
    file: str = ""

    @property
    def name(self) -> str:
        """A name for the record that no other one has."""
        return f"{self.file}/{self.number}" if self.file else str(self.number)


class Format(NamedTuple):
    """A kind of file.

    Attributes:
      name: what `format=` calls it.
      title: one line for people.
      recognise: whether a record is of this kind.
      read: the rollouts of a record.
    """

    name: str
    title: str
    recognise: Callable[[Record], bool]
    read: Callable[[Record, Place], Iterable[Rollout]]


# --- verl -------------------------------------------------------------------------------------------------------------


def read_verl(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """A line of a verl rollout dump (``trainer.rollout_data_dir``, a file ``{step}.jsonl`` a step).

    Seen in verl 0.9.1, `RayPPOTrainer._write_generations` and `trainer/ppo/v1/trainer_base.py`: ``input``, ``output``
    (decoded without special tokens), ``gts``, ``score`` (the sum of the token-level scores), ``step``, and whatever the
    reward function returns beside; the newer trainer adds ``uid`` of the form ``{sample}_{rollout}_{output}``, whose
    sample is the group. ``acc`` becomes the signal `accuracy`, other numbers signals without axes, the rest `meta`.

    The dump has no mask: in a rollout of several turns the words of tools stand in ``output`` undistinguished, and
    count as acted.
    """
    prompt = (Message("prompt", _string(record, "input")),)
    step = _step(record)
    group, uid = None, record.get("uid")
    if isinstance(uid, str):
        parts = uid.rsplit("_", 2)
        numbered = len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()
        group = _within(step, parts[0] if numbered else uid)
    yield _rollout(
        record,
        place,
        id=_within(step, place.name),
        group=group,
        prompt=prompt,
        turns=[Message("assistant", _string(record, "output"))],
        outcome=_number(record, "score"),
        taken=("input", "output", "score"),
    )


# --- TRL --------------------------------------------------------------------------------------------------------------


def read_trl(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """A row of TRL's completions table (``completions/completions_{step}.parquet`` with ``log_completions=True``).

    Seen in trl 1.16.0, `GRPOTrainer.log`: ``step``, ``prompt`` and ``completion`` (a string, or messages with ``role``
    and ``content``), a column for each reward function under its name, columns of the user's, ``advantage``. The table
    does not say which columns are rewards, nor their weights: those whose name contains "reward" are taken, all numeric
    ones where there is none (but for names of groups and steps), and the outcome is their sum without those that are
    NaN (as TRL sums, weights of 1), or NaN where all are. They come as the signal `reward_components` (M columns in the
    order of the table); ``advantage`` stays a signal of that name.

    Raises:
      ValueError: a reward that is infinite or beyond float32.
    """
    fixed = {"step", "prompt", "completion", "advantage", *GROUPS, *STEPS, place.group_field}
    numeric = [name for name, value in record.items() if name not in fixed and _is_number_or_none(value)]
    rewards = [name for name in numeric if "reward" in name.lower()] or numeric
    values = np.array([_number(record, name) for name in rewards], np.float64)
    scored = ~np.isnan(values)
    components = Signal(("M",), np.where(scored, values, 0.0).astype(np.float32))
    outcome = float(values[scored].sum()) if scored.any() else math.nan
    if len(rewards) > 1 and "reward" in record:
        outcome = _number(record, "reward")
    prompt, turns = _split(_messages(record, "prompt", "user"), _messages(record, "completion", "assistant"))
    yield _rollout(
        record,
        place,
        id=_within(_step(record), place.name),
        prompt=prompt,
        turns=turns,
        outcome=outcome,
        signals={"reward_components": components} if rewards else {},
        taken=("prompt", "completion", *rewards),
    )


# --- message logs -----------------------------------------------------------------------------------------------------

OUTCOMES = ("outcome", "score", "reward", "final_reward", "is_correct", "correct")
"""Names under which a log may hold the outcome, the first that is there."""
GROUPS = ("group", "group_id", "uid", "prompt_id", "problem_id", "question_id", "task_id", "example_id")
"""Names under which a log may hold the group, the first that is there."""
STEPS = ("step", "global_step", "training_step", "iteration")


def read_messages(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """A conversation in the messages of OpenAI's chat API, with a score.

    ``messages`` is a list of ``{"role", "content"}``; content is a string, null, or a list of parts whose text is taken
    (seen in the API's reference, and as the ``messages`` column of chat data sets). ``tool_calls`` and
    ``reasoning_content`` are what the policy wrote too, and become text in tags. Everything before the first
    message of the assistant is the prompt. The outcome is the first of `OUTCOMES` that is there, the group the first of
    `GROUPS`. A message may have its own ``reward``, or else ``score`` (then `segment_reward`, and a segment is a turn),
    and ``logprobs`` in the form of a choice of the API (``{"content": [{"token", "logprob"}]}``): then its tokens are
    the pieces, with their log-probability.
    """
    raw = _list(record, "messages")
    start = next((i for i, m in enumerate(raw) if isinstance(m, Mapping) and m.get("role") == "assistant"), len(raw))
    if start == len(raw):
        raise ValueError("messages: none of the role 'assistant', wanted what the policy wrote")
    messages = _messages(record, "messages", "user")
    outcome = next((name for name in OUTCOMES if name in record), None)
    name, field = _id(record, ("id",))
    yield _rollout(
        record,
        place,
        id=name,
        prompt=messages[:start],
        turns=messages[start:],
        outcome=math.nan if outcome is None else _number(record, outcome),
        taken=("messages", *field, *((outcome,) if outcome else ())),
        raw=raw[start:],
    )


# --- verifiers, prime-rl ----------------------------------------------------------------------------------------------


def read_verifiers(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """A line of a results file of verifiers, or of the rollouts that prime-rl saves of it.

    Seen in PrimeIntellect-ai/verifiers, ``verifiers/utils/save_utils.py`` (`state_to_output`) and the ``results.jsonl``
    files under ``environments/*/outputs/evals``: ``example_id`` (``id`` in older files), ``prompt`` and ``completion``
    (messages, tool calls as JSON text, or strings), ``reward``, ``metrics`` (also flat, under their names), ``info``,
    ``answer``, ``task``, ``is_completed``, ``is_truncated``, ``error``, times. The rollouts of one example are a group,
    within a step where there is one; its numeric metrics are signals without axes.

    Raises:
      TypeError: an example or its task that is no name, a string or a whole number.
    """
    prompt, turns = _split(_messages(record, "prompt", "user"), _messages(record, "completion", "assistant"))
    example = next((name for name in ("example_id", "id") if not _is_missing(record.get(name))), None)
    group = None
    if example is not None and place.group_field is None:
        task = next((name for name in ("env_id", "task") if record.get(name) and not _is_missing(record[name])), None)
        group = _named_group(record, example, None)
        group = _within(_step(record), group if task is None else f"{_named_group(record, task, None)}/{group}")
    end = "truncated" if record.get("is_truncated") is True else "unknown"
    if end == "unknown" and record.get("is_completed") is True:
        end = "terminated"
    metrics = record.get("metrics")
    signals, others, flat = {}, metrics, ()
    if isinstance(metrics, Mapping):
        measures = {name: x for name, x in metrics.items() if _is_measure(x)}
        signals = {_signal_name(name, metrics): Signal((), np.float32(x)) for name, x in measures.items()}
        others = {name: x for name, x in metrics.items() if name not in measures}
        # They stand in the record a second time, flat under their names.
        flat = tuple(name for name, x in measures.items() if name in record and _same_number(record[name], x))
    name, field = _id(record, ("rollout_id", "trajectory_id"))
    yield _rollout(
        {**record, "metrics": others} if others else {k: v for k, v in record.items() if k != "metrics"},
        place,
        id=name,
        group=group,
        prompt=prompt,
        turns=turns,
        outcome=_number(record, "reward"),
        end=end,
        signals=signals,
        taken=("prompt", "completion", "reward", *field, *flat),
    )


# --- gymnasium --------------------------------------------------------------------------------------------------------


def read_episode(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """An episode of a gymnasium environment, as lists over its steps.

    The names are those of `minari.EpisodeData` (seen in Minari's reference): ``observations`` (T, or T + 1 with the
    final one), ``actions``, ``rewards``, ``terminations``, ``truncations`` (T each); what `gymnasium.Env.step` calls
    them (``observation``, ``action``, …, ``terminated``, ``truncated``) is taken too. A position is an action and a
    segment of its own; integer actions are the tokens. Observations of numbers become the signals `observation` and,
    with the final one, `next_observation` (null is NaN); the outcome is the sum of the rewards. Episodes that begin
    with the same observation are a group where no field of `GROUPS` says otherwise.

    Raises:
      ValueError: lists of different lengths; an episode that goes on after its end; a number beyond float32.
    """
    names = {plain: next((n for n in _EPISODE[plain] if n in record), None) for plain in _EPISODE}
    rewards = _numbers(record, names["rewards"] or "rewards")
    taken_actions = _list(record, names["actions"] or "actions")
    try:
        actions = np.asarray(taken_actions)
    except ValueError:
        raise ValueError("actions: of different shapes, wanted one number or vector for each step") from None
    length = len(actions)
    flags = {}
    for plain in ("terminations", "truncations"):
        name = names[plain]
        flags[plain] = np.zeros(length, bool) if name is None else _flags(record, name)
    for plain, values in (("rewards", rewards), *flags.items()):
        if len(values) != length:
            raise ValueError(f"{names[plain]}: {len(values)} of them, wanted {length}, one for each action")
    over = flags["terminations"] | flags["truncations"]
    if over[:-1].any():
        found = f"an end at step {int(over.argmax())} of {length}"
        raise ValueError(f"{names['terminations'] or names['truncations']}: {found}, wanted one episode a record")
    end = "unknown"
    if length and over[-1]:
        end = "terminated" if flags["terminations"][-1] else "truncated"
    signals, first = {}, None
    if (name := names["observations"]) is not None:
        seen = _list(record, name)
        if len(seen) not in (length, length + 1):
            raise ValueError(f"{name}: {len(seen)} of them, wanted {length} or {length + 1}, with the final one")
        first = seen[0] if seen else None
        array = _features(name, seen)
        if array is not None and array.size:
            signals["observation"] = Signal(("T", "F"), array[:length])
            if len(seen) == length + 1:
                signals["next_observation"] = Signal(("T", "F"), array[1:])
    discrete = length > 0 and all(type(action) is int for action in taken_actions)
    pieces = [json.dumps(action, default=str) for action in taken_actions]
    taken = {name for name in names.values() if name}
    name, field = _id(record, ("episode_id", "episode", "id"))
    yield _rollout(
        record,
        place,
        id=name,
        prompt=() if first is None else (Message("environment", json.dumps(first, default=str)),),
        pieces=[f"{piece} " for piece in pieces],
        tokens=actions if discrete else None,
        segment=np.arange(length, dtype=np.int32),
        roles=("assistant",) * length,
        unit="step",
        reward=rewards,
        outcome=float(np.sum(rewards, dtype=np.float64)),
        end=end,
        signals=signals,
        taken=(*taken, *field),
    )


_EPISODE = {
    "observations": ("observations", "observation", "obs"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminations": ("terminations", "terminated", "terminateds"),
    "truncations": ("truncations", "truncated", "truncateds"),
}


def _features(name: str, values: list) -> np.ndarray | None:
    """Observations as f32 ``[T, F]``, NaN where null; None where they are dicts, text or of different sizes."""
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    if array.dtype.kind == "O" and all(map(_is_number_or_none, array.flat)):
        wide = [math.nan if x is None else _small(name, x) for x in array.flat]
        array = np.asarray(wide, np.float64).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        return None
    array = array.astype(np.float64)
    if (over := np.isfinite(array) & (np.abs(array) > _LARGEST)).any():
        raise ValueError(f"{name}: {array[over][0]}, wanted numbers that float32 can hold")
    return array.astype(np.float32).reshape(len(values), -1 if array.size else 0)


# --- GSM8K ------------------------------------------------------------------------------------------------------------


def read_gsm8k(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """A problem of GSM8K's ``example_model_solutions.jsonl`` with the solutions of four models: a group.

    Seen in openai/grade-school-math: ``question``, ``ground_truth`` and for each model ``{"solution", "is_correct"}``.
    The outcome is 1 where the solution is right. Lines are the segments; the calculator's annotations ``<<a+b=c>>`` are
    kept, each as one piece; the pieces of the last line, "A: …", are marked by the signal `answer_mask`.
    """
    question = _string(record, "question")
    truth = record.get("ground_truth")
    solutions = {name: value for name, value in record.items() if isinstance(value, Mapping) and "solution" in value}
    if not solutions:
        raise ValueError("solution: none, wanted an object with `solution` and `is_correct` for each model")
    group = place.name if place.group_field is None else _named_group(record, place.group_field, None)
    for name, value in solutions.items():
        right = value.get("is_correct")
        if type(right) is not bool:
            raise TypeError(f"{name}.is_correct: {_found(right)}, wanted true or false")
        pieces, segment = _lines(_string(value, "solution", f"{name}.solution"))
        last = int(segment[-1]) if len(segment) else -1
        marked = (segment == last) if _is_answer(pieces, segment, last) else np.zeros(len(pieces), bool)
        yield Rollout(
            id=f"{place.name}/{name}",
            group=group,
            prompt=(Message("user", question),),
            pieces=tuple(pieces),
            segment=segment,
            roles=("assistant",) * (last + 1),
            unit="step",
            outcome=float(right),
            end="terminated" if marked.any() else "unknown",
            signals={"answer_mask": Signal(("T",), marked)},
            meta={"model": name, **({"ground_truth": truth} if isinstance(truth, str) else {})},
        )


def _is_answer(pieces: Sequence[str], segment: np.ndarray, last: int) -> bool:
    return "".join(piece for piece, k in zip(pieces, segment, strict=True) if k == last).startswith("A:")


# --- our own ----------------------------------------------------------------------------------------------------------

_ARRAYS = {"tokens": "int32", "action_mask": "bool", "segment": "int32", "reward": "float32"} | {
    "segment_reward": "float32",
    "logprob": "float32",
}
_FIELDS = {"schema", "id", "group", "prompt", "pieces", "roles", "unit", "outcome", "end", "signals", "meta", *_ARRAYS}


def read_own(record: Record, place: Place = Place()) -> Iterator[Rollout]:
    """A record of our own schema (`creditjax.interop.rollout.SCHEMA`), as :func:`to_record` writes it.

    Raises:
      ValueError: another version, an unknown field, a value that does not fit.
    """
    if (version := record.get("schema")) != SCHEMA:
        raise ValueError(f"schema: {_found(version)}, wanted {SCHEMA!r}")
    if unknown := [name for name in record if name not in _FIELDS]:
        raise ValueError(f"{unknown[0][:60]!r}: unknown, wanted the fields of {SCHEMA}")
    if absent := [name for name in ("id", "group", "pieces") if name not in record]:
        raise ValueError(f"{absent[0]}: absent, wanted a field of {SCHEMA}")
    fields: dict[str, Any] = {name: record[name] for name in ("id", "group", "unit", "end", "meta") if name in record}
    for name in ("pieces", "roles"):
        if name in record:
            fields[name] = _list(record, name)
    for name, dtype in _ARRAYS.items():
        if record.get(name) is not None:
            fields[name] = _from_json(name, record[name], dtype)
    outcome = record.get("outcome")
    if outcome is not None and (not _is_number(outcome) or outcome != outcome):
        raise TypeError(f"outcome: {_found(outcome)}, wanted a number, or null for unscored")
    fields["outcome"] = math.nan if outcome is None else outcome
    fields["prompt"] = [
        Message(_string(m, "role", f"prompt[{i}].role"), _string(m, "content", f"prompt[{i}].content"))
        for i, m in enumerate(_list(record, "prompt") if "prompt" in record else ())
    ]
    signals = record.get("signals", {})
    if not isinstance(signals, Mapping):
        raise TypeError(f"signals: {_found(signals)}, wanted an object")
    fields["signals"] = {name: _signal(name, value) for name, value in signals.items()}
    yield Rollout(**fields)


def to_record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a JSON object of our schema; what is absent is left out, NaN is null, ±inf a word.

    `read_own` makes of it the same rollout, bit for bit: a float32 is written as the float64 that it equals.
    """
    record: dict[str, Any] = {"schema": SCHEMA, "id": rollout.id, "group": rollout.group}
    if rollout.prompt:
        record["prompt"] = [message._asdict() for message in rollout.prompt]
    record["pieces"] = list(rollout.pieces)
    for name, dtype in _ARRAYS.items():
        if (array := getattr(rollout, name)) is not None:
            record[name] = _to_json(array, dtype)
    record["roles"] = list(rollout.roles or ())
    record["unit"] = rollout.unit
    record["outcome"] = None if math.isnan(rollout.outcome) else rollout.outcome
    record["end"] = rollout.end
    if rollout.signals:
        record["signals"] = {
            name: {
                "axes": list(axes),
                "shape": list(values.shape),
                "dtype": str(values.dtype),
                "values": _to_json(values.reshape(-1), str(values.dtype)),
            }
            for name, (axes, values) in rollout.signals.items()
        }
    if rollout.meta:
        record["meta"] = rollout.meta
    return record


_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_NUMBERS = {word: number for number, word in _WORDS.items()}


_JSON_TYPES: dict[str, set[type]] = {"float32": {int, float, type(None), str}, "int32": {int}, "bool": {bool}}


def _to_json(array: np.ndarray, dtype: str) -> list:
    values = array.tolist()
    if dtype == "float32" and not np.isfinite(array).all():
        return [None if x != x else _WORDS.get(x, x) for x in values]
    return values


def _from_json(name: str, values: Any, dtype: str) -> np.ndarray:
    if type(values) is not list:
        raise TypeError(f"{name}: {_found(values)}, wanted a list")
    kinds = set(map(type, values))
    allowed = _JSON_TYPES[dtype]
    if not kinds <= allowed:
        at = next(i for i, value in enumerate(values) if type(value) not in allowed)
        raise TypeError(f"{name}[{at}]: {_found(values[at])}, wanted {dtype}")
    if str in kinds and (wrong := [x for x in values if type(x) is str and x not in _NUMBERS]):
        raise TypeError(f"{name}: {_found(wrong[0])}, wanted float32")
    said = [_NUMBERS[x] if type(x) is str else x for x in values] if str in kinds else values
    try:
        array = np.array(said, {"float32": np.float64, "int32": np.int64, "bool": bool}[dtype])
    except OverflowError:
        raise ValueError(f"{name}: a number of more than 64 bits, wanted {dtype}") from None
    if dtype == "float32" and not np.isfinite(array).all():
        # Python's reader of JSON takes NaN and Infinity without quotes for numbers; JSON knows no such words.
        for i, x in enumerate(values):
            if type(x) is float and not math.isfinite(x):
                raise TypeError(f"{name}[{i}]: {x} as a number, wanted null for NaN, a string for an infinity")
    return array


def _signal(name: str, value: Any) -> Signal:
    label = f"signals[{name[:60]!r}]"
    if not isinstance(value, Mapping) or set(value) != {"axes", "shape", "dtype", "values"}:
        raise TypeError(f"{label}: {_found(value)}, wanted an object with axes, shape, dtype, values")
    dtype, shape = value["dtype"], value["shape"]
    if dtype not in ("float32", "int32", "bool"):
        raise ValueError(f"{label}.dtype: {_found(dtype)}, wanted float32, int32 or bool")
    if type(shape) is not list or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise TypeError(f"{label}.shape: {_found(shape)}, wanted a list of sizes")
    values = _from_json(f"{label}.values", value["values"], dtype)
    if math.prod(shape) != len(values):
        raise ValueError(f"{label}.values: {len(values)} of them, wanted {math.prod(shape)} (shape {shape[:8]})")
    with np.errstate(over="ignore"):
        if dtype == "int32" and len(values) and not -(2**31) <= values.min() <= values.max() < 2**31:
            raise ValueError(f"{label}.values: beyond int32")
        cast = values.astype(dtype)
    if dtype == "float32" and (np.isinf(cast) & np.isfinite(values)).any():
        raise ValueError(f"{label}.values: beyond float32")
    axes = value["axes"]
    return Signal(tuple(axes) if type(axes) is list else axes, cast.reshape(shape))


# --- the table --------------------------------------------------------------------------------------------------------


def _is_own(record: Record) -> bool:
    schema = record.get("schema")
    return isinstance(schema, str) and schema.startswith("creditjax.rollout/")


def _is_gsm8k(record: Record) -> bool:
    return "question" in record and any(isinstance(x, Mapping) and "solution" in x for x in record.values())


def _is_episode(record: Record) -> bool:
    return any(isinstance(record.get(name), list) for name in _EPISODE["actions"]) and any(
        isinstance(record.get(name), list) for name in _EPISODE["rewards"]
    )


# In the order in which they are tried: the more particular first.
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("creditjax", "our own schema", _is_own, read_own),
        Format("gsm8k", "GSM8K's example_model_solutions.jsonl", _is_gsm8k, read_gsm8k),
        Format("verl", "verl rollout dumps", lambda r: {"input", "output", "score"} <= set(r), read_verl),
        Format(
            "trl",
            "TRL's completions tables",
            lambda r: {"prompt", "completion", "advantage", "step"} <= set(r),
            read_trl,
        ),
        Format(
            "verifiers",
            "results of verifiers and prime-rl",
            lambda r: {"prompt", "completion", "reward"} <= set(r),
            read_verifiers,
        ),
        Format(
            "messages",
            "OpenAI-style messages with a score",
            lambda r: isinstance(r.get("messages"), list),
            read_messages,
        ),
        Format("gymnasium", "episodes of gymnasium environments", _is_episode, read_episode),
    )
}


def recognise(record: Record) -> Format:
    """The format of a record.

    Raises:
      ValueError: none fits, naming the fields found.
    """
    for form in FORMATS.values():
        if form.recognise(record):
            return form
    shown = ", ".join(str(name)[:40] for name in list(record)[:12])
    raise ValueError(f"format: unknown, with the fields {shown or '(none)'}; wanted one of {', '.join(FORMATS)}")


def named(name: str) -> Format:
    """The format called `name`.

    Raises:
      ValueError: there is none, with the nearest names.
    """
    return choose("format", name, FORMATS)


# --- shared -----------------------------------------------------------------------------------------------------------


def _rollout(
    record: Record,
    place: Place,
    *,
    id: str | None,
    prompt: Sequence[Message],
    turns: Sequence[Message] | None = None,
    group: str | None = None,
    raw: Sequence[Any] = (),
    taken: Iterable[str] = (),
    signals: Mapping[str, Signal] | None = None,
    **fields: Any,
) -> Rollout:
    """What the readers share: the group, the pieces of the turns, and where the remaining fields go."""
    step = _step(record)
    used = set(taken)
    if place.group_field is not None:
        group = _named_group(record, place.group_field, step)
    elif group is None:
        name = next((name for name in GROUPS if not _is_missing(record.get(name))), None)
        group = _prompt_group(prompt, step) if name is None else _named_group(record, name, step)
    if place.outcome_field is not None:
        fields["outcome"] = _number(record, place.outcome_field)
    if turns is not None:
        fields |= _positions(turns, raw)
    kept: dict[str, Signal] = dict(signals or {})
    meta: dict[str, Any] = {}
    for name, value in record.items():
        if name in used:
            continue
        ours = _signal_name(name, record)
        if name not in STEPS and name not in GROUPS and ours not in kept and _is_measure(value):
            kept[ours] = Signal((), np.asarray(value, np.float32))
        elif (plain := _plain(value)) is not None:
            meta[name] = plain
    return Rollout(
        id=id or place.name,
        group=group,
        prompt=tuple(prompt),
        signals=kept,
        meta=meta,
        **fields,
    )


# Other people's names of signals of the table.
_SIGNAL_NAMES = {"acc": "accuracy"}


def _signal_name(name: str, others: Container[str]) -> str:
    """The table's name of a signal, unless another one has it already."""
    ours = _SIGNAL_NAMES.get(name, name)
    return name if ours in others else ours


def _positions(turns: Sequence[Message], raw: Sequence[Any]) -> dict[str, Any]:
    """Pieces, masks and segments of what followed the prompt."""
    details = [m if isinstance(m, Mapping) else {} for m in raw] or [{} for _ in turns]
    choices = [_token_logprobs(i, detail) for i, detail in enumerate(details)]
    rewards = [_first_of(detail, ("reward", "score")) for detail in details]
    if len(turns) == 1 and turns[0].role == "assistant" and choices[0] is None and rewards[0] is None:
        pieces, segment = _lines(turns[0].content)
        count = int(segment[-1]) + 1 if len(segment) else 0
        return {"pieces": pieces, "segment": segment, "roles": ("assistant",) * count, "unit": "step"}
    said: list[str] = []
    sizes, logprob = [], []
    for turn, choice in zip(turns, choices, strict=True):
        words = split_words(turn.content) if choice is None else choice[0]
        logprob += [0.0] * len(words) if choice is None else choice[1]
        said += words
        sizes.append(len(words))
    segment = np.repeat(np.arange(len(turns), dtype=np.int32), sizes)
    acted = np.repeat([turn.role == "assistant" for turn in turns], sizes).astype(bool)
    fields: dict[str, Any] = {
        "pieces": said,
        "segment": segment,
        "action_mask": acted,
        "roles": tuple(turn.role for turn in turns),
        "unit": "turn",
    }
    spoken = [choice for turn, choice in zip(turns, choices, strict=True) if turn.role == "assistant"]
    if spoken and all(choice is not None for choice in spoken):
        fields["logprob"] = np.asarray(logprob, np.float64)
    if any(reward is not None for reward in rewards):
        scores = [math.nan if r is None else _small(f"messages[{i}].reward", r) for i, r in enumerate(rewards)]
        fields["segment_reward"] = np.asarray(scores, np.float32)
    return fields


def _token_logprobs(index: int, message: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
    logprobs = message.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list) or not content:
        return None
    label = f"messages[…][{index}].logprobs"
    for entry in content:
        if not isinstance(entry, Mapping):
            raise TypeError(f"{label}: {_found(entry)}, wanted objects with `token` and `logprob`")
    return [_string(e, "token", f"{label}.token") for e in content], [_number(e, "logprob") for e in content]


def _lines(text: str) -> tuple[list[str], np.ndarray]:
    lines = [split_words(line) for line in split_lines(text)]
    segment = np.repeat(np.arange(len(lines), dtype=np.int32), [len(words) for words in lines])
    return [word for words in lines for word in words], segment.astype(np.int32)


def _split(prompt: list[Message], completion: list[Message]) -> tuple[list[Message], list[Message]]:
    """What came before the policy's first word, and the rest: a completion may begin with what the environment said."""
    start = next((i for i, message in enumerate(completion) if message.role == "assistant"), len(completion))
    return [*prompt, *completion[:start]], completion[start:]


def _messages(record: Record, name: str, role: str) -> list[Message]:
    """A field that is a text (said by `role`) or a list of messages."""
    if isinstance(record.get(name), str):
        return [Message(role, record[name])]
    done = []
    for i, message in enumerate(_list(record, name)):
        if not isinstance(message, Mapping):
            raise TypeError(f"{name}[{i}]: {_found(message)}, wanted an object with `role` and `content`")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(map(_part, content))
        elif content is not None and not isinstance(content, str):
            raise TypeError(f"{name}[{i}].content: {_found(content)}, wanted text, a list of parts or null")
        text = content or ""
        if isinstance(thought := message.get("reasoning_content"), str) and thought:
            text = f"<think>{thought}</think>{text}"
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            text += "".join(f"<tool_call>{_call(call)}</tool_call>" for call in calls)
        done.append(Message(_string(message, "role", f"{name}[{i}].role"), text))
    return done


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return part["text"]
    return f"[{part['type'][:40]}]" if isinstance(part, Mapping) and isinstance(part.get("type"), str) else ""


def _call(call: Any) -> str:
    """A tool call as the text that a model writes for it: name and arguments."""
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError):
            return call
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping):
        return json.dumps(function)
    arguments = function.get("arguments")
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(function.get("name"), ensure_ascii=False)}, "arguments": {said}}}'


def _named_group(record: Record, name: str, step: str | None) -> str:
    value = record.get(name)
    if (said := _name(value)) is None:
        raise TypeError(f"{name}: {_found(value)}, wanted a string or an integer, the name of the group")
    return _within(step, said)


def _step(record: Record) -> str | None:
    """The training step, as the name that groups share."""
    return next((said for name in STEPS if (said := _name(record.get(name))) is not None), None)


def _within(step: str | None, name: str) -> str:
    return name if step is None else f"{step}/{name}"


def _prompt_group(prompt: Sequence[Message], step: str | None) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for role, content in prompt:
        digest.update(f"{len(role)} {len(content)} {role}{content}".encode("utf-8", "surrogatepass"))
    return _within(step, digest.hexdigest())


def _id(record: Record, names: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """The first of these fields that is a name, and the field it came from."""
    found = ((said, (name,)) for name in names if (said := _name(record.get(name))) is not None)
    return next(found, (None, ()))


def _name(value: Any) -> str | None:
    """A string or whole number as a name. A column of integers with gaps comes as floats: 1.0 is the name 1."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _first_of(record: Record, names: Iterable[str]) -> Any:
    return next((record[name] for name in names if not _is_missing(record.get(name))), None)


def _same_number(a: Any, b: Any) -> bool:
    return _is_number(a) and (a == b or (a != a and b != b))


def _found(value: Any) -> str:
    if value is None:
        return "absent or null"
    said = repr(value) if isinstance(value, str | int | float | bool) else type(value).__name__
    return said if len(said) <= 60 else said[:57] + "..."


def _string(record: Any, name: str, label: str = "") -> str:
    value = record.get(name) if isinstance(record, Mapping) else record
    if not isinstance(value, str):
        raise TypeError(f"{label or name}: {_found(value)}, wanted a string")
    return value


def _list(record: Record, name: str) -> list:
    value = record.get(name)
    if not isinstance(value, list):
        raise TypeError(f"{name}: {_found(value)}, wanted a list")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_measure(value: Any) -> bool:
    """A number that float32 can hold; whole ones exactly, as they may be names."""
    if isinstance(value, int):
        return abs(value) <= 2**24
    return isinstance(value, float) and not abs(value) > _LARGEST


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _small(name: str, value: Any) -> float:
    if not _is_number(value):
        raise TypeError(f"{name}: {_found(value)}, wanted a number")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if abs(value) > _LARGEST:
        raise ValueError(f"{name}: {value}, wanted a number that float32 can hold")
    return value


def _number(record: Record, name: str) -> float:
    """A number; null and NaN mean that there is none."""
    if name not in record:
        raise ValueError(f"{name}: absent, wanted a number, or null for unscored")
    return math.nan if record[name] is None else _small(name, record[name])


def _numbers(record: Record, name: str) -> np.ndarray:
    return np.asarray([_small(f"{name}[{i}]", value) for i, value in enumerate(_list(record, name))], np.float32)


def _flags(record: Record, name: str) -> np.ndarray:
    values = _list(record, name)
    if wrong := [value for value in values if value is not True and value is not False and value not in (0, 1)]:
        raise TypeError(f"{name}: {_found(wrong[0])}, wanted true or false")
    return np.asarray(values, bool)


def _plain(value: Any, depth: int = 0) -> Any:
    """A JSON value without what JSON has no word for: numbers that are not finite are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth > _DEEPEST:
        return value  # no rollout takes it, and what it says names the place
    if isinstance(value, Mapping):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value]
    return str(value)
