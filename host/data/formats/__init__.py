"""Readers of data files: LIBSVM, Vowpal Wabbit, CSV, NPY, NPZ and Parquet."""
