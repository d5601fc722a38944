"""The commands: the arguments and the run of each.

In reading order:

    options    flags from settings
    shared     what several commands take
    demo       the main job
    embed      one vector for each text of a file
    classify   features + logistic regression
    train      finetune, pretrain, distill, vocab: the commands that train
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
