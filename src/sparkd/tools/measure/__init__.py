"""Measurements: the endpoint as its clients see it, trials of other plans by that, the fabric, and the GPU.

Read bench.py first. What is pure (figures.py, past.py, fabric.py, ladder.py) is apart from what sends requests, starts
programs, or switches the plan for a trial.
"""
