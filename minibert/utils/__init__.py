"""What every package uses and nobody needs to read first.

In reading order:

    printing   values in messages, reports, progress, how to install an extra
    wording    how a message names a setting: in Python, on the command line
    habits     names of other libraries, and what is here in their place
    files      untrusted input is read within limits, output appears whole
    outputs    no file that minibert did not write is replaced
    settings   a dataclass of settings with limits and help texts
    plotting   heat maps and pictures
    templates  HTML pages
    inference  a model in use: eval mode, no gradients
    device     devices, dtypes, and what the hardware computes fast
"""
