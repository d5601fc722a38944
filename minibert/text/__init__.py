"""Text to ids.

In reading order:

    texts            what counts as a column of texts
    rows             lines, rows and records of a file, one by one
    tables           columns of files: .txt .tsv .csv .jsonl .json, also with .gz, .parquet, and standard input
    wordpiece        WordPiece by hand, for reading
    tokenizer_files  what a tokenizer is made of, read without trust
    tokenized        texts as rows of ids, and what became of them in numbers
    piecewise        a text of any length, piece by piece
    tokenizer        the same by the tokenizers library
"""
