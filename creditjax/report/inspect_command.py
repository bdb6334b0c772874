"""Shows the credit that recipes give to a file of rollouts, on one offline page.

    creditjax-inspect dump.jsonl                            report.html, with recipes that suit the file
    creditjax-inspect dump.jsonl --recipe=grpo,gigpo        these recipes side by side
    creditjax-inspect rollout_data/ --json=credit.jsonl     every number too, one rollout a line
    creditjax-inspect dump.jsonl --pages                    every rollout, --limit of them a page

The format is recognised from the content (docs/rollout_files.md lists them); docs/inspect.md says what the page shows.
`creditjax.list_recipes()` lists the recipes. What a recipe needs and the file lacks is said on the page; the exit
status is 1 if no recipe can run, a record is bad (with --on_error=raise) or there are no rollouts.
"""

import os
import pathlib
import sys
import time

from absl import flags
import jax

from creditjax.interop import command_line
from creditjax.recipes import recipe
from creditjax.report import inspect as report

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
        found = " ".join(argv[1:]) or "no arguments"
        sys.exit(f"found {found}, wanted one file or directory of rollouts\n--help explains the flags.")
    if "JAX_PLATFORMS" not in os.environ:
        # Groups of a file are small, and an accelerator may belong to a training run.
        jax.config.update("jax_platforms", "cpu")
    # A few small programs run a few times each: compiling them is what takes time.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    path = pathlib.Path(argv[1])
    try:
        for name in _RECIPE.value:
            recipe(name)
    except KeyError as error:
        sys.exit(f"--recipe: {error.args[0]}")
    for target in filter(None, (_OUT.value, _JSON.value)):
        command_line.check_target(argv[1], target)
    progress = _Progress()
    with command_line.reader(argv[1]) as reader:
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
        except (OSError, ImportError, ValueError) as error:
            progress.end()
            sys.exit(str(error))
        progress.end()
        print(command_line.summary(reader))
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
        if sys.stderr.isatty() and (now := time.monotonic()) > self._said + 1:
            self._said = now
            print(f"\r{done:,} rollouts, {done / (now - self._started):,.0f}/s", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._said != self._started:
            print(file=sys.stderr)


def run() -> None:
    """Runs the command with the arguments of the process."""
    command_line.run(main, __doc__, _OWN)


if __name__ == "__main__":
    run()
