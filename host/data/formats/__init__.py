"""Readers of data files: LIBSVM, CSV, NPY, NPZ and Parquet."""
