"""The commands, one module each. What is slow to import is imported within the command."""
