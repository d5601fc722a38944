"""Text to ids.

In reading order:

    texts               what counts as a column of texts
    rows                lines, rows and records of a file, one by one
    tables              columns of files: .txt .tsv .csv .jsonl .json, also with .gz, .parquet, and standard input
    wordpiece           WordPiece by hand, for reading
    byte_pairs          byte-level BPE by hand
    unigram             SentencePiece's unigram model by hand
    tokenizer_settings  names of special tokens, casing, the longest text
    vocabularies        what the relatives were released with, as tokenizer.json has it
    tokenizer_files     what a tokenizer is made of, read without trust
    backend             the tokenizer of the tokenizers library, built and checked
    framing             the special tokens around one text and two
    tokenized           texts as rows of ids, and what became of them in numbers
    batch               the same as padded tensors
    piecewise           a text of any length, piece by piece
    tokenizer           texts to ids by all of these
    masking             tokens hidden, to be guessed
"""
