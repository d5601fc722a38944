"""`minibert parity`: compare.py compares two models stage by stage, ladder.py climbs from tensors to decisions."""
