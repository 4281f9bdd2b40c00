"""Sound headers of senseless models: every layout answers, or refuses in one line."""

import contextlib
import json
import random
import struct

import pytest
from checkpoint_making import MemoryFolder, contents, header_of

from gacprof.checkpoint import mirrored_files
from gacprof.checkpoint.scanning import describe, inventory_of
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.resizing.changes import new_checkpoint
from gacprof.resizing.sizes import Padding

ODD_NAMES = (
    "model.layers.0.attn_shortcut_Q", "a.VT.weight", ".VT.weight", "a.U.0.weight", ".U.0.weight",
    ".BLinear.weight", ".ALinear.weight", "model.layers.0.self_attn.q_proj.qweight", ".qweight",
    "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.7.w1.weight",
    "q_proj.a", "q_proj.b", "q_v_proj.weight", "q_u_proj.weight", ".weight", "weight", "",
    "model.layers.99999999999999999999.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.bias",
)  # fmt: skip
ODD_VALUES = (None, True, -1, 0, 7, 2**70, 1.5, "x", [], [[1]], {}, [1, "a"])


def odd_shapes(rng, shapes):
    """Some tensors lost, resized, of other ranks, or under names that layouts look for."""
    out = dict(shapes)
    for _ in range(rng.randint(1, 5)):
        name = rng.choice(list(out))
        shape = out[name]
        change = rng.randrange(5)
        if change == 0:
            del out[name]
        elif change == 1:
            out[name] = tuple(rng.choice([0, 1, n, n + 1, 8]) for n in shape)
        elif change == 2:
            out[name] = rng.choice([(), (*shape, 2), shape[:1]])
        else:
            out[rng.choice(ODD_NAMES)] = shape
    return out


def odd_json(rng, value):
    """One value, somewhere inside, lost or replaced."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: odd_json(rng, value[key])}
    return rng.choice(ODD_VALUES)


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("tool", ["palu", "svdllm", "slicegpt", "base"])
def test_senseless_models(fixtures, tool):
    (folder,) = (fixtures / "checkpoints").glob(f"{tool}*.headers")
    manifest = json.loads((folder / "manifest.json").read_text())
    shapes = {name: tuple(shape) for name, (shape, _) in manifest["state_dict"].items()}
    texts = [p for p in folder.glob("*.json") if p.name not in ("manifest.json", "records.json")]
    sides = {p.name: json.loads(p.read_text()) for p in texts if p.name != "header.json"}
    rng = random.Random(tool)
    understood = 0
    for _ in range(100):
        header, length = header_of(odd_shapes(rng, shapes))
        files = {"m.safetensors": struct.pack("<Q", len(header)) + header + bytes(length)}
        for name, content in sides.items():
            own = "m.json" if name.startswith("Llama") else name
            files[own] = json.dumps(odd_json(rng, content)).encode()
        try:
            inventory = inventory_of("m", MemoryFolder(files), "m.safetensors")
        except CheckpointError as refusal:
            assert "\n" not in str(refusal)
            continue
        understood += 1
        sizes = {d.name: rng.choice([d.size + 1, None]) for d in inventory.dims}
        for content in mirrored_files(inventory, sizes).values():
            json.dumps(content)
        for dim in inventory.dims:
            for place in dim.places:
                whole = inventory.tensors[place.tensor].shape
                assert dim.padding == "refused" or place.start + dim.size <= whole[place.axis]
    assert understood > 10


MIXTURES = {
    "gpt_oss": (
        {"gate_up_proj": (4, 8, 24), "gate_up_proj_bias": (4, 24), "down_proj": (4, 12, 8)},
        {"intermediate_size": 12, "hidden_size": 8},
    ),
    "llama4": (
        {"gate_up_proj": (4, 8, 24), "down_proj": (4, 12, 8), "0.w1.weight": (12, 8)},
        {"text_config": {"intermediate_size": 12, "model_type": "llama4_text"}},
    ),
    "dbrx": (
        {"mlp.w1": (48, 8), "mlp.v1": (48, 8), "mlp.w2": (48, 8)},
        {"ffn_config": {"moe_num_experts": 4, "ffn_hidden_size": 12}},
    ),
    "deepseek_v2": (
        {f"{e}.{part}_proj.weight": s for e in (0, 1)
         for part, s in (("gate", (12, 8)), ("up", (12, 8)), ("down", (8, 12)))},
        {"moe_intermediate_size": 12, "n_shared_experts": 2, "intermediate_size": 20},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("kind", MIXTURES)
def test_senseless_mixtures_of_experts_are_described_and_padded_or_refused(kind):
    tensors, config = MIXTURES[kind]
    experts = "model.layers.0.mlp.experts"
    sound = {f"model.layers.{i}.norm.weight": (8,) for i in range(5)}
    sound |= {f"{experts}.{name}": shape for name, shape in tensors.items()}
    rng, padding = random.Random(kind), 0
    for number in range(150):
        shapes = odd_shapes(rng, sound) if number else sound
        said = odd_json(rng, {**config, "model_type": kind}) if number % 2 else config
        said = {**said, "model_type": kind} if isinstance(said, dict) else {}
        try:
            inventory = describe("x", contents(shapes, said))
        except CheckpointError as error:
            assert "\n" not in str(error)
            continue
        sizes = Padding(8).request(inventory).sizes
        padding += bool(sizes)
        assert all(size % 8 == 0 for size in sizes.values())
        mirrored_files(inventory, sizes)
        with contextlib.suppress(CheckpointError, PlanError):
            new_checkpoint(inventory, sizes)
    assert padding > 7
