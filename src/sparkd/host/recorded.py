"""What a tree of files carries of a machine beside its files: answers of docker, of the GPU's driver, of the network.

`/.sparkd/docker/PATH.json` is the body of docker's answer to GET PATH, without its query, and PATH.500.json that of one
with which docker failed; `/.sparkd/nvml.json` is what the driver says. They are read by the same code that reads the
living ones. `/.sparkd/path_mtu.json` and
`/.sparkd/resolver.json` say of other machines' addresses what the network answered.
"""

from __future__ import annotations

import json

from sparkd.host.files import Files

FOLDER = "/.sparkd"


def by_address(files: Files, name: str) -> dict[str, bool]:
    """What was found of each address, where it was found out: `{"10.0.0.2": true, "10.0.0.3": null}`.

    Raises ValueError where the record is none.
    """
    path = f"{FOLDER}/{name}.json"
    try:
        found = json.loads(files.text(path))
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no object")
    return {address: said for address, said in found.items() if isinstance(said, bool)}
