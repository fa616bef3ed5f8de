"""Forward: lines and weights to exact partial dot products, one plane a cycle."""
