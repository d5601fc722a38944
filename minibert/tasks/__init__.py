"""What is done with a model.

In reading order:

    reviews    labelled texts, from files or found for the demo
    metrics    predictions compared with the truth
    saved      the file of a trained classifier, read without trust
    frozen     features + logistic regression
    fill_mask  the masked word
    demo       the main job, start to end
"""
