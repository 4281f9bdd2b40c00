"""A config with how it is served: what is judged, and judged anew for every remedy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gacprof.checkpoint.coverage import ACTIVATIONS
from gacprof.checkpoint.from_config import ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.storage import GROUPED, Storage, storage_named, storage_of_config
from gacprof.core.errors import ConfigError, require_within
from gacprof.hardware.datasheet import GpuFacts, find_gpu
from gacprof.kernels.requirements import Engine, load_answers, load_engine
from gacprof.lint.judge import Judgement, judge_product
from gacprof.lint.products import START_ROLES, rank_products, start_counts
from gacprof.workload.deployment import Deployment
from gacprof.workload.memory import weight_bytes
from gacprof.workload.products import plain_dtype

MAX_MODEL_LAYERS = 10_000  # published models have 126 at most


@dataclass(frozen=True, kw_only=True)
class ConfigDeployment(Deployment):
    """A deployment of the model that a config describes, by an engine at a version, on a GPU."""

    config: Mapping[str, Any]
    engine: Engine
    gpu: GpuFacts
    storage: Storage

    @cached_property
    def sizes(self) -> ConfigSizes:
        """The sizes that the config names."""
        return ConfigSizes(self.config)

    @cached_property
    def inventory(self) -> Inventory:
        """The modules that the config describes; ``sizes`` then name what it doesn't say."""
        return inventory_of_sizes(self.sizes)

    @cached_property
    def weight_bytes(self) -> int | None:
        """The bytes of the text part's weights on a rank; None where the config doesn't say it."""
        return weight_bytes(self.sizes, self.inventory, self)

    @property
    def serve_command(self) -> str:
        """The engine's own command for these ranks."""
        return self.engine.serve_command(tp=self.tp, dp=self.dp, ep=self.ep)

    @property
    def family(self) -> str:
        """The model's type, as rows of requirements name it."""
        return self.sizes.model_type.removesuffix("_text")

    def judgements(self) -> list[Judgement]:
        """Every product of a rank, judged, and whether its ranks can start at all."""
        subjects = rank_products(self)  # first: what they don't read may hide weights
        return [judge_product(product, self) for product in (*start_counts(self), *subjects)]

    def question(self, judgements: Sequence[Judgement]) -> str:
        """A digest of what an engine would be asked: two configs whose ranks hold equal products,
        stored the same way, on the same GPU are one question."""
        words = [self.family, self.gpu.key, self.tp, self.ep, self.dp, self.storage.kv]
        words.append(plain_dtype(self.inventory))
        # configs that were asked about say nothing of it, or silu; another class ends in a gap
        stated = map(self.sizes.values.get, ACTIVATIONS)
        words += [name for name in stated if name not in (None, "silu", "swish")]
        for judgement in judgements:
            product, storage = judgement.product, judgement.product.storage
            if product.role in START_ROLES:
                continue
            words += [product.name, product.N, product.K, product.whole, storage.form]
            words += [storage.desc_act, storage.symmetric]
            if storage.form in GROUPED:
                words.append(storage.group)
            elif storage.form in ("fp8_block", "nvfp4"):
                words.append(storage.tool)
        return hashlib.sha256(repr(words).encode()).hexdigest()[:12]

    def engine_answer(self, judgements: Sequence[Judgement]) -> tuple[str, Mapping[str, str]]:
        """What the engine itself did with this, in words, and its kernels by product; nothing where
        exactly this was not asked of the newest release that was read or asked."""
        recorded = load_answers(self.engine.name)
        answer = recorded["answers"].get(self.question(judgements))
        if answer is None or self.engine.version not in (self.engine.read, recorded["version"]):
            return "", {}
        words = [recorded["provenance"], answer["verdict"], answer["stage"], answer["says"]]
        kernels = {name: recorded["kernels"][i] for name, i in answer["kernels"].items()}
        return ": ".join(filter(None, words)), kernels


def deploy(
    values: Mapping[str, Any],
    *,
    engine: str = "vllm",
    version: str | None = None,
    gpu: str = "any",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    quantisation: str | None = None,
) -> ConfigDeployment:
    """A config with how it is served. Raises :class:`ConfigError` for what isn't known."""
    name, _, pinned = engine.partition("==")
    at = pinned or version
    if at in ("latest", "current", "main", "nightly"):
        at = None  # the newest version that was read
    sizes = ConfigSizes(values)
    if ep > 1 and "expert_width" not in sizes.family:
        raise ConfigError(f"ep {ep} shares out experts, and the config has none")
    layers = sizes.get("layers")
    require_within("num_hidden_layers", max(layers, 1), MAX_MODEL_LAYERS)
    storage = storage_of_config(sizes.values, layers)
    if quantisation is not None:
        request = storage_named(quantisation)
        is_stated = request.name.lower() in ("fp8", "modelopt") and storage.form.startswith("fp8")
        if request.form == storage.form:
            storage = replace(storage, group=request.group or storage.group)
        elif not is_stated:  # the config's ignore list is that of its own storage
            storage = replace(request, kv=storage.kv, layers=storage.layers)
    read, chip = load_engine(name, at), find_gpu(gpu)
    return ConfigDeployment(
        config=values, engine=read, gpu=chip, storage=storage, tp=tp, ep=ep, dp=dp
    )
