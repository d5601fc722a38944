"""Texts to vectors.

In reading order:

    pooling       how the vectors of tokens become one
    recipe        which vector: pooling, layers, combination, precision, ...
    readable      the readable way: padded batches through model.py
    fast_encoder  the encoder with faster parts
    calibration   which of its products tolerate int8, measured once for a checkpoint
    engine        the fast way: the model without padding, with other parts
    loading       the engine and the tokenizer of a checkpoint, made once
    embedder      a checkpoint and a recipe, called with texts
    features      the same as a scikit-learn transformer, with a cache
    parts         the parts of a large matrix on disk, which survive a kill
    origin        how a file of vectors was made, written beside it
    stream        a stream of texts to a file of vectors, in such parts
    search        the nearest texts of a corpus, and its closest pairs
    shards        a corpus of many files, each embedded whole
    ray           the same by Ray Data, on many machines
"""
