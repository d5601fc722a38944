"""Experiments: is fine-tuning as good as with transformers, and is pretraining as good as possible?

In reading order:

    toy_language  a language whose entropy is known
    possible      pretraining measured against what is possible
    quality       fine-tuning beside transformers
    transfer      what pretraining is worth: fine-tuned beside random weights of the same shape
    grammar       minimal pairs: does a masked language model prefer the right sentence?
    novels        a BERT of our own, from novels
"""
