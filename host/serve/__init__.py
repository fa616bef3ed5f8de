"""Worker processes and software aggregators: the servers behind ``p4sgd worker`` and ``p4sgd switch serve``."""
