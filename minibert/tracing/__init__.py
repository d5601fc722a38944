"""The journey of a sentence: every tensor on its way, drawn as one page.

In reading order:

    decision  a classifier's decision, dimension by dimension
    units     the strongest units of a feed-forward
    journey   the tensors, and what is derived from them
    data      what of them goes into the page
    source    which line of the source computes what
    page      the page
    run       the run of the model
    command   `minibert trace`
"""
