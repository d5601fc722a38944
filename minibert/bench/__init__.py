"""Speed and memory against other runtimes: README.md has the goals and the figures, and how they are measured.

In reading order:

    settings    what is measured, how much of it, and where
    harness     contestants in processes of their own, jobs in turn, and the results
    peers       the contestants of embedding
    embedding   sentences to vectors: equality, roofline, one sentence, cold starts, growth
    training    against transformers' own Trainer
    serving     vectors over HTTP, against infinity-emb
    report      the table, the JSON object and the picture
    gpu_report  all that is due on a GPU, in one file
"""
