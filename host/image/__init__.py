"""Memory images of the workers: partition of the features, packing into planes, and image files."""

from p4sgd.host.image.file import Image, Shard, open_image
from p4sgd.host.image.packing import pad_samples, prepare_images
from p4sgd.host.image.partition import partition

__all__ = ["Image", "Shard", "open_image", "pad_samples", "partition", "prepare_images"]
