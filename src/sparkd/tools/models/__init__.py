"""Models and images, fetched and copied to the other nodes.

Read model_files.py first.
"""
