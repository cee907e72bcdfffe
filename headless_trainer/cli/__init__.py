"""The commands, their presets and their launch configurations."""

import atexit
import gc
import os

# Read when torch is imported. Below errors, C++ says at each start on several processes that DDP found all parameters in use.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Looking for garbage among the modules of the libraries takes a third of the six seconds of CPU time of a start and an end.
gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
