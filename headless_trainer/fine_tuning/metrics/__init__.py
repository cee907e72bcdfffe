"""Metrics of the `evaluate` library that need no network.

`evaluate.load` takes the path of a file and the name of a score.
"""
