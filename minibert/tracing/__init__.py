"""The journey of a sentence: every tensor on its way, drawn as one page.

In reading order:

    journey   the tensors, and what is derived from them: attention, units, a classifier's decision
    ablation  the tensors again, with one head switched off or one token masked
    numbers   the numbers that the page draws, packed
    live      the weights and the tokenizer, for the page that computes by itself
    page      the page, and links to the lines of the source
    trace     the run of the model, and the command
"""
