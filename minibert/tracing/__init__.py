"""The journey of a sentence: every tensor on its way, drawn as one page.

In reading order:

    journey  the tensors, and what is derived from them: attention, units, a classifier's decision
    data     the numbers of the page
    page     the page, with links to the lines of the source
    run      the run of the model
    command  `minibert trace`
"""
