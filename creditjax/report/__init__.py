"""What a run or an estimator did, as pictures that open anywhere: an offline HTML page and heat maps of credit.

Everything here takes plain arrays and files, draws with HTML and SVG alone, and needs numpy only.
"""

from creditjax.report.data import Metrics, read_metrics, read_rollouts
from creditjax.report.heatmap import Html, heatmap_html, heatmap_svg
from creditjax.report.page import write_report

__all__ = ["Html", "Metrics", "heatmap_html", "heatmap_svg", "read_metrics", "read_rollouts", "write_report"]
