"""sparkd on a real GPU, without systemd and without a registry: `make gpu`.

`bundle` runs where packages can be downloaded, all else on the machine with the GPU, as root, with the standard library
alone. The machine brings the driver and a Python that holds PyTorch. `owner` is apart: it runs on a node in use.
"""
