"""The commands, each with its arguments and its run.

In reading order:

    shared       what several commands take: flags from settings, common options
    demo         the tutorial, start to end
    embed        one vector for each text of a file
    search       search, mine: the nearest texts of a corpus, and its closest pairs
    classify     features + logistic regression
    train        finetune, pretrain, distill, vocab: the commands that train
    predict      evaluate, predict, fill-mask: the commands that use a model with a task head
    score        how likely a masked language model finds each text
    serve        vectors, labels and masked tokens over HTTP
    check        a BERT of your own, and what is wrong with it
    tools        trace, parity, bench: the commands that show and measure
    checkpoints  download, inspect, convert and export one
    main         the parser, and one command run
"""
