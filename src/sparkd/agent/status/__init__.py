"""The outlets of the NodeReport: page, metrics, HTTP for observers, messages. They render it, and decide nothing."""
