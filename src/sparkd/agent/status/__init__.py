"""The outlets of the NodeReport: page, metrics, HTTP for observers, messages. They render a report, and decide
nothing.
"""
