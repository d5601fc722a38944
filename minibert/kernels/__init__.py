"""What inference and training share: batches without padding, attention and linear layers at hardware speed.

In reading order:

    packing      batches without padding
    memory       workspaces that are used again, and memory that is returned to the system
    attention    within each text of a packed batch, by one of three kernels
    matmul       linear layers at hardware speed, checked on this machine before they are used
    int8         int8 linear layers
    calibration  which layers tolerate int8, measured once for a checkpoint
    products     float32 linear layers by oneDNN, forward and backward
    table        embedding lookup whose gradient keeps its memory
    dropout      dropout from 16 random bits a number
    quick        these three in place of torch's own functions
    prefetch     tokenizing one portion ahead
"""
