"""The aggregator in hardware: it adds up the partials of several jobs, one packet a cycle."""
