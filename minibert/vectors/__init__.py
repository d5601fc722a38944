"""Texts to vectors.

In reading order:

    recipe        which vector: pooling, layers, combination, precision, ...
    cache         vectors that were computed before
    pooling       the readable way: padded batches through model.py
    forks         an error where a forked process would wait forever
    engine        the fast way: model.py step for step with the padding taken out
    embedder      a checkpoint and a recipe, called with texts
    features      the same as a scikit-learn transformer
    parts         work in parts on disk, which survives a kill
    stream        a stream of texts to a file of vectors
    shards        a corpus of many files, each embedded whole
    ray           the same by Ray Data, on many machines
"""
