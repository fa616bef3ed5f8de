"""The evaluation: experiments that ``p4sgd experiments`` makes on this machine, and their report."""
