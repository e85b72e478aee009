"""A ladder of two knobs from the recipe `mine`."""

from tests.unit.switches import plan_of

from sparkd.tools.measure.climb import Tuning
from sparkd.tools.measure.knobs import CONTEXT_LENGTH, SEQUENCES, Knob

KNOBS = (Knob(SEQUENCES, 4, 16, 4), Knob(CONTEXT_LENGTH, 512, 1024, 1024))
BASE = plan_of("mine")
TUNING = Tuning("mine-tuned", "f", KNOBS, 16)
MINE = "schema: 1\nname: mine\nmodel: {path: m}\nimage: {ref: 'i:1'}\nnodes: {max: 1}\n"
MINE_FILE = "/etc/sparkd/recipes/mine.yaml"
