"""Tables of texts: read from files, checked, written.

In reading order:

    texts    columns of texts and of pairs, checked row by row
    formats  how a file is read: format, delimiter, encoding
    rows     the rows of a file, one after the other
    columns  which of a file's columns is meant
    reading  columns of files: .txt .tsv .csv .jsonl .json .parquet, .gz, and standard input
    writing  rows to a table: .tsv .csv .jsonl .parquet
"""
