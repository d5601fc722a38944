"""Text to ids.

In reading order:

    wordpiece        WordPiece by hand, for reading
    byte_pairs       byte-level BPE by hand
    unigram          SentencePiece's unigram model by hand
    tokenized        special tokens, texts that are too long, rows of ids with statistics, padded batches
    tokenizer_settings  tokenizer_config.json: which keys count, special tokens, added tokens
    tokenizer_classes  the rules of transformers' tokenizer classes
    tokenizer_files  tokenizer.json and the vocabulary of older folders
    tokenizer_names  what a tokenizer has under the names of transformers
    tokenizer        texts to ids with the tokenizers library
    masking          masked tokens and their labels
"""
