"""The commands, one file each: its arguments and its run.

In reading order:

    options    flags from settings
    shared     what several commands take
    demo       the main job
    embed      one vector for each text of a file
    classify   features + logistic regression
    finetune   train a checkpoint for a task
    pretrain   learn a language from raw text
    distill    a smaller model learns from a larger one
    vocab      a vocabulary learned from text
    evaluate   measure a trained folder
    predict    answers of a trained folder
    fill_mask  the masked words
    serve      vectors, labels and masked words over HTTP
    trace      the journey of a sentence
    parity     proof against transformers
    bench      speed against other runtimes
    download   a checkpoint from the Hub
    convert    a checkpoint whose weights are a pickle
    export     a checkpoint as an ONNX file
    inspect    what is in a checkpoint
    main       the parser, and one command run
"""
