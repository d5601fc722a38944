"""The journey of a sentence: run.py computes it, page.py draws it, command.py is `minibert trace`."""
