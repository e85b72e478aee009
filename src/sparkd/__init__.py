"""sparkd: the node agent of NVIDIA DGX Spark machines."""

__version__ = "0.9.0"
