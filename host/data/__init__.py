"""Data sets: reading, splitting, scaling, quantisation, synthesis and download."""

from p4sgd.host.data.dataset import Dataset
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.read import read_dataset
from p4sgd.host.data.scaling import Scaling

__all__ = ["Dataset", "FeatureSpace", "Features", "Scaling", "read_dataset"]
