"""The journey of a sentence: every tensor on its way, drawn as one page.

In reading order:

    journey   the tensors, and what is derived from them: attention, units, a classifier's decision
    ablation  the tensors again, with one head switched off or one token masked
    page      the page with its numbers, and links to the lines of the source
    run       the run of the model, and the command
"""
