"""Folders of trained weights: what they contain, how they become a model and a folder again.

In reading order:

    checkpoint    a folder that was found and opened: its config, its tensors, its task heads
    sentence_files  how a checkpoint's vectors are meant to be made
    load          load and save by name, the names of tensors, and a report on each of them
    convert       older folders: a pickle, read without running code, as safetensors
    export        a model as an ONNX file, which other runtimes read
    inspection    what is in a checkpoint
"""
