"""`minibert bench`: backends.py is who takes part, run.py how it is measured, goals.py what is to be reached."""
