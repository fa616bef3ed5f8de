"""An aggregator that is a program: the switch of a cluster of machines that have none."""
