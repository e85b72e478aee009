"""The inventory of a node that lacks nothing."""

from sparkd.agent.cluster.inventory import Image, Inventory, Model
from sparkd.base.config.settings import Allow

GOOD = Inventory(
    node="spark2",
    memory_bytes=128 << 30,
    follows=True,
    allow=Allow(),
    permitted=("i:1",),
    models_dir="/srv/models",
    models=(Model("m", 5),),
    images=(Image("i:1", "same"),),
)
