"""What a sweep shows: a table that is drawn again on a terminal, plain lines elsewhere, and the results at the end."""

from collections import Counter
from collections.abc import Mapping, Sequence
import math
import shutil
import time
from typing import TextIO

from creditjax.sweeps.runner import FAILED, FINISHED, RUNNING, WAITING
from creditjax.sweeps.store import Store
from creditjax.sweeps.trials import Trial

# Seconds between two tables on a terminal, and between two lines elsewhere.
_REDRAW, _REPEAT = 1.0, 60.0


class Table:
    """A :class:`~creditjax.sweeps.runner.View` on a text stream."""

    def __init__(self, trials: Sequence[Trial], store: Store, stream: TextIO):
        """Shows these trials.

        Args:
          trials: those of this call.
          store: the sweep's directory.
          stream: where to.
        """
        self._trials, self._store, self._stream = trials, store, stream
        self._live = stream.isatty()
        self._drawn = 0
        self._shown_at = -math.inf
        self._began: tuple[float, int] | None = None
        self._lines: list[str] = []

    def say(self, text: str) -> None:
        """A line that stays."""
        self._erase()
        print(f"{time.strftime('%H:%M:%S')}  {text}", file=self._stream, flush=True)
        self._draw()

    def show(self, states: Mapping[str, str], force: bool = False) -> None:
        """The table, or a line with the counts, if it is time for it."""
        now = time.monotonic()
        if now - self._shown_at < (_REDRAW if self._live else _REPEAT) and not force:
            return
        self._shown_at = now
        steps = {trial.id: _steps(self._store, trial, states[trial.id]) for trial in self._trials}
        done = sum(steps.values())
        self._began = self._began or (now, done)
        left = sum(trial.steps - steps[trial.id] for trial in self._trials if states[trial.id] in (RUNNING, WAITING))
        head = counts(states) + _eta(left, done - self._began[1], now - self._began[0])
        if not self._live:
            if [head] != self._lines:
                print(f"{time.strftime('%H:%M:%S')}  {head}", file=self._stream, flush=True)
            self._lines = [head]
            return
        running = [trial for trial in self._trials if states[trial.id] == RUNNING]
        rows = [("", "trial", "step", "metric", "overrides")] if running else []
        for trial in running:
            metrics = self._store.progress(trial).metrics
            name = next((name for name in (trial.metric, "reward", "loss") if metrics.get(name) is not None), None)
            shown = f"{name} {metrics[name]:.4g}" if name else ""
            rows.append((str(trial.number), trial.id, f"{steps[trial.id]}/{trial.steps}", shown, trial.shown))
        self._erase()
        self._lines = [head, *aligned(rows)]
        self._draw()

    def close(self) -> None:
        """Takes the table away."""
        self._erase()
        self._lines = []

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        if self._live and self._lines:
            size = shutil.get_terminal_size()
            # A line that wraps, or a table that scrolls, could not be erased again.
            lines = [line[: size.columns - 1] for line in self._lines[: size.lines - 1]]
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
            self._drawn = len(lines)


def counts(states: Mapping[str, str]) -> str:
    """How many trials are in which state.

    >>> counts({"a": "finished", "b": "running", "c": "waiting"})
    '1 of 3 finished, 1 running, 1 waiting'
    """
    number = Counter(states.values())
    others = [f"{number[state]} {state}" for state in (RUNNING, WAITING, FAILED) if number[state]]
    return ", ".join([f"{number[FINISHED]} of {len(states)} finished", *others])


def results(trials: Sequence[Trial], states: Mapping[str, str], store: Store) -> list[str]:
    """The finished trials, the best first, and behind them the failed ones with the last line of their log."""
    finished = [trial for trial in trials if states[trial.id] == FINISHED]
    scores: dict[str, float] = {}
    for trial in finished:
        found = (store.result(trial) or {"metrics": {}})["metrics"].get(trial.metric)
        scores[trial.id] = math.nan if found is None else float(found)
    ranked = sorted(finished, key=lambda trial: (-_or_least(scores[trial.id]), trial.number))
    lines = []
    if ranked:
        rows = [("", "trial", "step", ranked[0].metric, "overrides")]
        for trial in ranked:
            step = str((store.result(trial) or {"step": ""})["step"])
            # Trials may differ in what they are ranked by.
            other = "" if trial.metric == ranked[0].metric else f" {trial.metric}"
            rows.append((str(trial.number), trial.id, step, f"{scores[trial.id]:.4g}{other}", trial.shown))
        lines += aligned(rows)
    for trial in trials:
        if states[trial.id] == FAILED:
            times, code = store.failures(trial), store.last_failure(trial)
            lines.append(f"failed {times} times: {trial.number} {trial.id}  {trial.shown}")
            lines.append(f"    exit code {code}; {store.directory(trial) / 'log.txt'} ends: {store.last_line(trial)}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text in columns.

    >>> aligned([("", "trial"), ("12", "a")])
    ['    trial', '12  a']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _steps(store: Store, trial: Trial, state: str) -> int:
    if state == FINISHED:
        return trial.steps
    return min(store.progress(trial).step, trial.steps)


def _eta(left: int, done: int, seconds: float) -> str:
    if done <= 0 or not left:
        return ""
    minutes = math.ceil(left / done * seconds / 60)
    return f"; about {minutes // 60} h {minutes % 60:02d} min left" if minutes >= 60 else f"; about {minutes} min left"


def _or_least(score: float) -> float:
    return -math.inf if math.isnan(score) else score
