"""The commands, one file each: its arguments and its run. `shared` holds what several take."""
