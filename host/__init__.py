"""Data, devices, training and the command line."""
