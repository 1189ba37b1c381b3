"""From a folder of results to tables, figures and one HTML file. Reads rows, never models."""

from varprop.evaluation.results import Examples, Results, read_results
from varprop.evaluation.rows import Row
from varprop.report.norms import Norms
from varprop.report.summary import Estimate, Summary
from varprop.report.writing import write_report

__all__ = ["Estimate", "Examples", "Norms", "Results", "Row", "Summary", "read_results", "write_report"]
