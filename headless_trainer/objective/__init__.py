"""The objective: tensors and token ids alone."""
