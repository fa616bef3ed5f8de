"""Dense workers: lines of bit planes, decoded to a byte a feature, and the golden model's arithmetic on them."""
