"""Vectors over HTTP, against infinity-emb: requests a second, and how long one of them takes.

infinity-emb needs an environment of its own, which --infinity names: the program `infinity_emb` in it.

In reading order:

    clients  requests over open connections, in a process of their own
    servers  who takes part: minibert, infinity with torch, infinity with ONNX Runtime
    run      equality, rounds in turn, and the soak
    report   what is printed
"""
