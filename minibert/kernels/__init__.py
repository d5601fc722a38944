"""What inference and training share: batches without padding, attention and linear layers at hardware speed.

In reading order:

    packing      batches without padding
    memory       memory that is reused, and memory that is returned to the system
    matmul       linear layers at hardware speed, checked on this machine before they are used
    attention    within each text of a packed batch, by one of three kernels
    int8         int8 linear layers
    calibration  which layers tolerate int8, measured once for a checkpoint
    training     faster linear layers and dropout for a training step
    prefetch     tokenizing one portion ahead
"""
