"""dockerd by the docker SDK, which only this package imports. Every connection starts a dockerd that socket-activation
holds: the caller makes sure that one runs.

`reader.DockerReader` is what probes get: a type without a method that changes anything. `engine.DockerEngine` acts, and
only `sparkd.hands` builds one. `reader` imports the SDK where it connects: types cost nothing.
"""
