"""Two models, one batch, and every number that both compute from it, compared bit for bit.

In reading order:

    checkpoints  random checkpoints in which every parameter counts, batches and labels
    compare      tensors, logits, losses, gradients, training, decisions
    ladder       whole checkpoints up the ladder, and the cause of the first difference
    report       `minibert parity`: the comparisons run and reported
"""
