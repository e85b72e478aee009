"""dockerd by the docker SDK, which only this package imports. Socket activation starts dockerd at any connection: the
caller checks that it runs.

Probes get `reader.DockerReader`, which has no method that changes anything. `client.SdkClient` can act; only the reader
and `sparkd.agent.actions` import it.
"""
