"""Training against transformers' own Trainer: tokens a second, and the memory that it takes.

In reading order:

    ways      who trains: minibert, and the Trainer
    equality  that both train the same
    results   what is found about one checkpoint, and what is to be reached
    run       the stages of a measurement
    report    what is printed
"""
