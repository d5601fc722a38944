"""The commands, one file each with its arguments and its run.

In reading order:

    options    command-line flags from settings
    shared     what several commands take
    demo       the tutorial, start to end
    embed      one vector for each text of a file
    classify   features + logistic regression
    finetune   train a checkpoint for a task
    pretrain   train on raw text from nothing
    distill    train a smaller model on the predictions of a larger one
    vocab      learn a vocabulary from text
    evaluate   measure a trained folder
    predict    predictions of a trained folder
    fill_mask  predictions for masked tokens
    serve      vectors, labels and masked tokens over HTTP
    trace      a text through the model, as a page
    parity     every tensor against transformers
    bench      speed against transformers and other peers
    download   a checkpoint from the Hub
    convert    a checkpoint whose weights are a pickle
    export     a checkpoint as an ONNX file
    inspect    what a checkpoint holds
    main       the parser, and one command run
"""
