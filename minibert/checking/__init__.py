"""`minibert check`: your own BERT beside the right one, and what is wrong with it.

In reading order:

    mistakes        known mistakes, each as an edit of minibert/reference.py
    numbers         the outputs in what a model returns; of two their difference, its bound, and of which kind it is
    relatives       known mistakes of relatives that the reference does not compute
    source          the text of a checked file: what calls what, and which libraries
    diagnosis       which known mistake gives these numbers
    world           real weights and texts
    stages          the functions in the order in which they are written, and the inputs on which they are tried
    report          what a check found
    shows           what right functions do, a line each
    child           the process in which a checked file runs
    process         that process from outside: its limits, and its answers
    solution        a file of functions, checked stage by stage
    expected        what a port is compared with
    port            a whole model, checked output by output
    arrays          the numbers of a port in a file
    certificate     the page for who has written all functions
    check           the three ways in: `minibert.check`
"""

TEXT = "He opened the [MASK] and went in."  # on which right functions are shown at work
