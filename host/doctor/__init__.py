"""What is wrong with the network of a cluster: every worker's way to the aggregator and back, tried and judged."""

from p4sgd.host.doctor.examination import examine
from p4sgd.host.doctor.finding import Examination, Finding, Result

__all__ = ["Examination", "Finding", "Result", "examine"]
