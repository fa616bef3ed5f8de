"""Folders from which Vivado makes a board's image without a shell, and reports of a worker's parts."""
