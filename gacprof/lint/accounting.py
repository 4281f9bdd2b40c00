"""Whatever of a model decides how it is served and is no product: keys, class, towers, tensors.

An *ok* needs all of them accounted for; what is not is a :class:`~gacprof.checkpoint.coverage.Gap`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gacprof.checkpoint.coverage import NEUTRAL, Gap, key_gaps
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.configs import part_of
from gacprof.checkpoint.storage import GROUPED, storage_of_config
from gacprof.checkpoint.tensor_fit import bias_gaps, layer_gaps, part_gaps, side_gaps, tensor_gaps
from gacprof.lint.classes import class_gaps
from gacprof.lint.deployment import ConfigDeployment
from gacprof.lint.judge import SERVED, Outcome, worst_of

SCALES = re.compile(r"scale|qzeros|absmax|_blocks$|SCB$")
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
        gaps += storage_gaps(deployment, stored)
        gaps += tensor_gaps(deployment.inventory, stored)
        gaps += layer_gaps(sizes, stored)
        gaps += part_gaps(sizes, deployment.inventory, stored)
        gaps += bias_gaps(sizes, stored)
        gaps += side_gaps(stored)
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


def storage_gaps(deployment: ConfigDeployment, stored: Inventory) -> Iterator[Gap]:
    """Weights in another form than the config says: factor pairs, or scales of no named format."""
    code = deployment.sizes.whole
    factored = [module.name for module in stored.modules if module.kind in ("factored", "grouped")]
    if factored:
        why = (
            f"{len(factored)} layers are factor pairs, which {deployment.engine.name} doesn't load"
        )
        # the checkpoint's own code may multiply them
        yield Gap("storage", factored[0], why, "unknown" if "auto_map" in code else "refused")
    storage = deployment.storage
    if storage.form != storage_of_config(deployment.sizes.values).form:
        return  # another format was asked for
    has_scales = any(map(SCALES.search, stored.tensors))
    if storage.form == "none" and has_scales:
        yield Gap("storage", "scales", "weights have scales, and the config names no format")
    if storage.form != "none" and storage.stored and not has_scales:
        yield Gap(
            "storage", storage.form, f"no tensor has a scale, and the config says {storage.form}"
        )
    for module in stored.modules:
        weight, scales = (stored.tensors.get(f"{module.name}.{e}") for e in ("qweight", "scales"))
        if weight is None or scales is None or storage.form not in GROUPED:
            continue
        form = "awq" if weight.shape[0] == module.in_features else "gptq"
        group = storage.group if storage.group > 0 else module.in_features
        if (form, -(-module.in_features // group)) != (storage.form, scales.shape[0]):
            why = f"{module.name} is packed for {form} with {scales.shape[0]} groups"
            yield Gap("storage", module.name, f"{why}, and the config says {storage.form} {group}")
            break


def with_gaps(outcome: Outcome, gaps: Iterable[Gap]) -> Outcome:
    """A verdict on products, lowered by what was not accounted for."""
    grades = {gap.grade for gap in gaps}
    if "unknown" in grades and outcome in SERVED:
        outcome = "unknown"
    return worst_of([outcome, *(grades & {"wrong", "refused"})])
