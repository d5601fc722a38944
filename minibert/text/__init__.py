"""Text to ids.

texts      what counts as a column of texts
tables     columns of files: .txt .tsv .csv .jsonl, each with .gz, and standard input
wordpiece  WordPiece by hand, for reading
tokenizer  the same by the tokenizers library
"""
