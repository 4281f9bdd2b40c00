"""Two workers share two cores: each computes on one thread, so that none waits for the other's."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
