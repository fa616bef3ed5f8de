"""Diagnosis of a cluster's network, where every worker's path to the aggregator and back is tried, and of boards."""

from p4sgd.host.doctor.examination import examine
from p4sgd.host.doctor.finding import Examination, Finding, Result

__all__ = ["Examination", "Finding", "Result", "examine"]
