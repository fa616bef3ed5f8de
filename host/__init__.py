"""The host: data, devices, training and the command line."""
