"""Tools that look at the model. Nothing but the commands imports them.

In reading order:

    stages      every tensor of one forward pass by name, here and in transformers
    inspection  what is in a checkpoint
    machine     what a figure was measured on
    pictures    tensors as pictures
    curve       how a training went, as a picture
    quality     fine-tuning beside that of transformers: is it as good?
    possible    pretraining measured against what is possible
    templates   pages from templates
    diagrams    how BERT is built and taught, in block diagrams
    annotated   the source as pages, the explanation beside the code
    parity      proof against transformers, bit for bit
    bench       speed and memory against other runtimes
    trace       the journey of a sentence as one page
"""
