"""What inference and training share: batches without padding, attention and linear layers at hardware speed.

In reading order:

    packing      batches without padding, and work one item ahead
    matmul       linear layers at hardware speed, checked on this machine before they are used; memory that is reused
    attention    within each text of a packed batch, by one of three kernels
    int8         int8 linear layers, and which layers tolerate int8, measured once for a checkpoint
    parts        a model with other parts, which shares its parameters
    training     faster linear layers and dropout for a training step
"""
