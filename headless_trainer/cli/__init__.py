"""The commands, their presets and their launch configurations."""

import atexit
import gc
import os
import sys

# torch reads this at import. At lower levels, C++ logs at each start on several processes that DDP
# found no unused parameters.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Collecting garbage among the libraries' modules takes a third of the six seconds of CPU time of a
# start and an end.
gc.set_threshold(100_000, 50, 100)


@atexit.register
def _end_without_collection() -> None:
    # triton 3.9 takes all of its own that is not collected at the end for leaks, and writes thirty
    # lines about them below a command's last.
    if "triton" not in sys.modules:
        gc.freeze()
