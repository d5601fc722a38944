"""Speed and memory beside other runtimes. README.md has the method and the figures.

In reading order:

    plan        what is measured, how much of it, and where
    results     contestants, their samples, and the ratios of one checkpoint
    harness     contestants in processes of their own that do their jobs in turn
    peers       the contestants of embedding
    embed       sentences to vectors: equality, roofline, one sentence, cold starts, growth
    training    beside transformers' own Trainer
    serving     vectors over HTTP, beside infinity-emb
    report      the table, the JSON object and the picture
"""
