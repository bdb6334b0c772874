"""Shows the credit that recipes give to a file of rollouts, on one offline page.

    python -m experiments.inspect dump.jsonl                            report.html, with recipes that suit the file
    python -m experiments.inspect dump.jsonl --recipe=grpo,gigpo        these recipes side by side
    python -m experiments.inspect rollout_data/ --json=credit.jsonl     every number too, one rollout a line
    python -m experiments.inspect dump.jsonl --pages                    every rollout, --limit of them a page

The format is recognised from the content (docs/rollout_files.md lists them); docs/inspect.md says what the page shows.
`python -m experiments.methods` lists the recipes. What a recipe needs and the file lacks is said on the page; the exit
status is 1 if no recipe can run, a record is bad (with --on_error=raise) or there are no rollouts.
"""

import os
import pathlib
import sys
import time

from absl import app, flags
import jax

from creditjax.report import inspect as report
from experiments import rollout_flags

# Other commands have an --out and a --json of their own, so these join the global flags only where this command runs.
_OWN = flags.FlagValues()
_RECIPE = flags.DEFINE_list("recipe", [], "Recipes; without any, a few that suit the file.", flag_values=_OWN)
_OUT = flags.DEFINE_string("out", "report.html", "File for the page; empty for none.", flag_values=_OWN)
_JSON = flags.DEFINE_string("json", None, "File for one JSON object a rollout.", flag_values=_OWN)
_LIMIT = flags.DEFINE_integer("limit", report.LIMIT, "Rollouts on a page, at most.", 1, flag_values=_OWN)
_PAGES = flags.DEFINE_bool("pages", False, "Write every rollout, page by page.", flag_values=_OWN)
_WINDOW = flags.DEFINE_integer(
    "window", 4096, "Rollouts after its last one at which a group is complete.", 1, flag_values=_OWN
)


def main(argv: list[str]) -> None:
    """Inspects argv[1]."""
    if len(argv) != 2:
        raise app.UsageError(f"found {' '.join(argv[1:]) or 'no arguments'}, wanted a file of rollouts")
    if "JAX_PLATFORMS" not in os.environ:
        # Groups of a file are small, and an accelerator may belong to a training run.
        jax.config.update("jax_platforms", "cpu")
    # A few small programs run a few times each: compiling them is what takes time.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    path = pathlib.Path(argv[1])
    progress = _Progress()
    with rollout_flags.reader(argv[1]) as reader:
        try:
            summary = report.inspect(
                reader,
                _RECIPE.value,
                out=_OUT.value or None,
                json=_JSON.value,
                title=path.resolve().name,
                limit=_LIMIT.value,
                pages=_PAGES.value,
                window=_WINDOW.value,
                progress=progress,
            )
        except KeyError as error:
            sys.exit(f"--recipe: {error.args[0]}")
        except (OSError, ImportError, ValueError) as error:
            progress.end()
            sys.exit(str(error))
        progress.end()
        print(rollout_flags.summary(reader))
    for name, lacking in summary.missing.items():
        print(f"{name} did not run, the file lacks: {', '.join(lacking)}")
    dead = sum(summary.dead.values())
    print(f"{summary.groups:,} groups, {dead:,} dead; {', '.join(made.name for made in summary.recipes)}")
    if summary.pages:
        more = f" and {len(summary.pages) - 1:,} more" if len(summary.pages) > 1 else ""
        print(f"page: {summary.pages[0]}{more}, {summary.shown:,} of {summary.rollouts:,} rollouts to look at")


class _Progress:
    """A line on the terminal about every second."""

    def __init__(self):
        self._started = self._said = time.monotonic()

    def __call__(self, done: int) -> None:
        if (now := time.monotonic()) > self._said + 1:
            self._said = now
            print(f"\r{done:,} rollouts, {done / (now - self._started):,.0f}/s", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._said != self._started:
            print(file=sys.stderr)


def parse(argv: list[str]) -> list[str]:
    """Parses this command's flags with the global ones."""
    flags.FLAGS.append_flag_values(_OWN)
    for name in _OWN:
        flags.declare_key_flag(name)
    flags.adopt_module_key_flags(rollout_flags)
    _OWN.mark_as_parsed()
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(f"{error}\n--help explains the flags.")


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
