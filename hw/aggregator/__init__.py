"""The aggregator as hardware: adds up the partials of several jobs, a packet a cycle."""
