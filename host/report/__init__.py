"""A training run as one HTML page to look at: curves, how good the model is, its coefficients, where cycles went."""

from p4sgd.host.report.page import check_libraries, is_report_file, save_report

__all__ = ["check_libraries", "is_report_file", "save_report"]
