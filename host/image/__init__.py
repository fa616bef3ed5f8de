"""Memory images of the workers: packing of features into planes, and image files."""

from p4sgd.host.image.file import open_image
from p4sgd.host.image.image import Image, Shard
from p4sgd.host.image.packing import pad_samples, prepare_images

__all__ = ["Image", "Shard", "open_image", "pad_samples", "prepare_images"]
