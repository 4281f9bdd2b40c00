"""Whatever of a model decides how it is served and is no product: keys, class, towers, tensors.

An *ok* needs all of them accounted for; what is not is a :class:`~gacprof.checkpoint.coverage.Gap`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gacprof.checkpoint.coverage import NEUTRAL, Gap, key_gaps
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.configs import part_of
from gacprof.checkpoint.tensor_fit import stored_gaps
from gacprof.lint.classes import class_gaps
from gacprof.lint.deployment import ConfigDeployment
from gacprof.lint.judge import SERVED, Outcome, worst_of

TOWERS = re.compile(r"vision|visual|image|audio|speech|\bvit\b|projector|connector|merger")
"""Words of an ignore list that name a tower, or what stands between it and the text."""


def gaps_of(deployment: ConfigDeployment, stored: Inventory | None) -> list[Gap]:
    """What of a deployment nobody accounted for, once its products were judged.

    With the headers of a checkpoint (``stored``) its tensors decide in place of unread keys.
    """
    sizes = deployment.sizes
    gaps = [*class_gaps(sizes, deployment.engine, deployment.tp), *tower_gaps(deployment)]
    keys = list(key_gaps(sizes))
    if stored is not None:
        gaps += stored_gaps(sizes, deployment.storage, deployment.inventory, stored)
        keys = [gap for gap in keys if gap.kind != "key"]  # the tensors settled these
    empty: set[str] = set()
    for name in ("layers", "vocab_size", "hidden_size", "heads"):
        if not sizes.get(name):  # stated, and null or 0
            empty.update(sizes.values.keys() & sizes.fields[name])
    for name in sorted({*sizes.missing, *empty}):
        gaps.append(Gap("key", name, f"the config doesn't say {name}: what needs it isn't judged"))
    named = {gap.name for gap in gaps}
    return [*gaps, *(gap for gap in keys if gap.name not in named)]


def tower_gaps(deployment: ConfigDeployment) -> Iterator[Gap]:
    """Towers, which nobody judges: a note where they are plain, unknown where they are not."""
    whole, storage = deployment.sizes.whole, deployment.storage
    is_ignored = any(TOWERS.search(entry) for entry in storage.ignored)
    text = part_of(whole)[1]
    is_of_text = text is not whole and "quantization_config" in text
    for name in NEUTRAL["towers"]:
        if not isinstance(whole.get(name), Mapping) or not whole[name]:
            continue
        if storage.form in ("none", "mxfp4") or is_ignored or is_of_text:
            yield Gap("tower", name, f"{name} stays 16 bit, and is not judged", "note")
        else:
            why = f"{name} is not judged, and no ignore list keeps it out of {storage.name}"
            yield Gap("tower", name, why)


def with_gaps(outcome: Outcome, gaps: Iterable[Gap]) -> Outcome:
    """A verdict on products, lowered by what was not accounted for."""
    grades = {gap.grade for gap in gaps}
    if "unknown" in grades and outcome in SERVED:
        outcome = "unknown"
    return worst_of([outcome, *(grades & {"wrong", "refused"})])
