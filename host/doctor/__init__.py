"""Diagnosis of a cluster's network: every worker's path to the aggregator and back is tried and judged."""

from p4sgd.host.doctor.examination import examine
from p4sgd.host.doctor.finding import Examination, Finding, Result

__all__ = ["Examination", "Finding", "Result", "examine"]
