"""Metrics of the `evaluate` library without network: `evaluate.load` takes the path of a file and the name of a score."""
