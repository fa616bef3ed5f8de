"""The datapath of an engine: lines and weights in, new weights out."""
