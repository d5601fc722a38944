"""`minibert bench`: what is done in work.py, by whom in contestants.py, how it is measured in run.py."""
