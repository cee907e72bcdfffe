"""The commands, their presets and their launch configurations."""

import os

# Read when torch is imported. Below errors, C++ says at each start on several processes that DDP found all parameters in use.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
