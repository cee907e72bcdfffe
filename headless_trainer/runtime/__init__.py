"""What a run needs around its training: checkpoints, processes, console, files."""
