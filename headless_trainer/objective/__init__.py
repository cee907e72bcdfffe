"""The objective: functions of tensors and token ids."""
