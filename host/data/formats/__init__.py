"""Files of samples: LIBSVM, CSV, NPY, NPZ and Parquet."""
