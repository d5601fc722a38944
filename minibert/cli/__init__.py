"""The commands, each with its arguments and its run.

In reading order:

    options      command-line flags from settings
    shared       what several commands take
    demo         the tutorial, start to end
    embed        one vector for each text of a file
    classify     features + logistic regression
    train        finetune, pretrain, distill, vocab: the commands that train
    evaluate     measure a trained folder
    predict      predictions of a trained folder
    fill_mask    predictions for masked tokens
    serve        vectors, labels and masked tokens over HTTP
    trace        a text through the model, as a page
    parity       every tensor against transformers
    bench        speed against transformers and other peers
    checkpoints  download, inspect, convert and export one
    main         the parser, and one command run
"""
