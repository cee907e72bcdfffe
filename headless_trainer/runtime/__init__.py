"""Everything around training: checkpoints, processes, console, files."""
