"""Golden model of the hardware, emulator, and simulated RTL cluster."""
