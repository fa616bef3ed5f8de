"""The datapath of a worker: forward pass, partial sums, loss, backward pass and weight update."""
