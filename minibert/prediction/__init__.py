"""Predictions of a model with a task head: many texts at once, any trained folder, and the frozen classifier.

In reading order:

    collate  examples as one padded batch
    packed   a batch without padding, for prediction and for the training step
    logits   many examples through a model: logits, or the states of a frozen encoder
    frozen   features + logistic regression, and its folder
    reader   a trained folder of any kind, opened, and its predictions
    rerank   what a search found, sorted by a classifier of pairs
    demo     the main job, start to end, and its data
    samples  the small files that README's commands read
"""
