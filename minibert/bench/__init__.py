"""Speed and memory against other runtimes: README.md has the figures, and how they are measured.

In reading order:

    machine    what a figure was measured on
    texts      the sentences
    backends   who takes part: texts -> vectors
    roofline   the operations of the work, and the machine's rate of products
    results    what is found about one checkpoint
    goals      what is to be reached
    processes  each backend in a process of its own
    session    one checkpoint under measurement
    growth     one sentence, cold starts, and how the cost grows
    run        the stages of a measurement
    report     what is printed
    plot       what is drawn
    train      training, against transformers' own Trainer
    serve      vectors over HTTP, against infinity-emb
"""
