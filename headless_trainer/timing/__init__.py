"""Times the training steps of a model with each objective, to see whether a change would pay."""
