"""Two models, one batch, and every number that both compute from it.

In reading order:

    stages       every tensor of one forward pass by name, here and in transformers
    checkpoints  random checkpoints in which every parameter counts, and batches that reach every corner
    compare      tensors, logits, losses, gradients, training, decisions
    golden       stored references, where transformers is not installed
    causes       why the first tensor that differs does
    ladder       whole checkpoints up the ladder
    report       what was found, in words
    page         the same as a page
    command      `minibert parity`
"""
