"""An engine for tests: its times follow from the model's config, and it notes what it was asked."""

import json
import os
import random
import sys
import time
from pathlib import Path


class FakeModel:
    def open(self, model, threads, positions, dtype, trust):
        print("an engine that prints on stdout")
        self.config = json.loads((Path(model) / "config.json").read_text())
        asked = Path(os.environ["ASKED"])
        (asked / f"config-{os.getpid()}.json").write_text(json.dumps(self.config))
        if "absent" in self.config:
            import a_module_that_is_not_there  # noqa: F401
        if "refuses" in self.config:
            raise ValueError("cannot load this layout\nand a traceback")
        self.draw = random.Random(os.getpid())
        self.asked = asked / f"asked-{os.getpid()}.jsonl"
        self.note("open", threads, positions, dtype, trust)
        said = {"version": "1.0", "device": "cpu", "dtype": "float32", "vocabulary": 50}
        return said | {"positions": self.config.get("positions")}

    def note(self, *what):
        with self.asked.open("a") as file:
            print(json.dumps(what), file=file)

    def us(self, scale):
        if self.config.get("dies"):
            print("RuntimeError: no more memory", file=sys.stderr)
            os._exit(3)
        if self.config.get("hangs"):
            time.sleep(60)
        return scale * self.config["speed"] * self.draw.uniform(0.997, 1.003)

    def prefill(self, ids):
        self.note("prefill", ids)
        return self.us(10.0 * len(ids))

    def decode(self, ids, steps):
        self.note("decode", ids, steps)
        return self.us(20.0)

    def greedy(self, ids, count):
        return [(ids[-1] + i) % 50 for i in range(count)]


MODEL = FakeModel
