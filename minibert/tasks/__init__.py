"""What is done with a model.

reviews    labelled texts, from files or found for the demo
metrics    predictions compared with the truth
frozen     features + logistic regression, saved without pickle
fill_mask  the masked word
demo       the main job, start to end
"""
