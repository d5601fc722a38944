"""What inference and training share: batches without padding, attention and linear layers at hardware speed.

These files know neither the model nor its files: the fast paths hand in what they compute with.

In reading order:

    packing      batches without padding, and work one item ahead
    matmul       linear layers at hardware speed, checked on this machine before they are used; memory that is reused
    attention    within each text of a packed batch, by one of three kernels
    int8         int8 linear layers
    parts        a model with other parts, which shares its parameters
    training     faster linear layers, dropout and attention for a training step
"""
