"""The commands, their presets and their launch configurations."""

import atexit
import gc
import os

# torch reads this at import. At lower levels, C++ logs at each start on several processes that DDP
# found no unused parameters.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Collecting garbage among the libraries' modules takes a third of the six seconds of CPU time of a
# start and an end.
gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
