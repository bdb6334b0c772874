"""Writes the report of a sweep: one HTML page that opens offline, and every logged number as a Parquet table.

    python -m experiments.report runs/chain_sweep

SWEEP_DIR is what experiments.sweep was given as --sweep_dir; trials may still be running. The page has the settings
from the best to the worst with bootstrap intervals over seeds, interquartile means and permutation tests, learning
curves, performance profiles, a picture for each hyperparameter, what it cost, the reporting checklist and links to the
trials.
"""

import pathlib
import sys

from absl import app, flags

_METRIC = flags.DEFINE_string(
    "metric", "", "What trials are judged by; what they keep the best parameters by, if empty."
)
_PAGE = flags.DEFINE_string("page", "", "The page; SWEEP_DIR/report.html if empty.")
_TABLE = flags.DEFINE_string("table", "", "The Parquet table; SWEEP_DIR/metrics.parquet if empty, none if 'none'.")


def main(argv: list[str]) -> None:
    """Flags to two library calls."""
    if len(argv) != 2:
        raise app.UsageError(f"found {len(argv) - 1} arguments, wanted one: SWEEP_DIR")
    from creditjax.report.sweep import write_sweep_report, write_table

    try:
        print(f"page: {write_sweep_report(argv[1], _PAGE.value, _METRIC.value)}")
        if _TABLE.value != "none":
            print(f"table: {write_table(argv[1], _TABLE.value or pathlib.Path(argv[1]) / 'metrics.parquet')}")
    except ImportError as error:
        sys.exit(f"{error}: pip install '.[report]'")
    except (ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def run() -> None:
    """The console entry."""
    app.run(main)


if __name__ == "__main__":
    run()
