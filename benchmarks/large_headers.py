"""How long diagnose and plan take on the headers of the largest models.

    python benchmarks/large_headers.py [--plan] [NAME …]

Made-up checkpoints of headers only (the tensors' bytes are a hole in the file): a dense 70B, the
same with seven factor pairs a layer, each of a rank of its own, and a mixture of experts of
671B's shape. Each is judged by the shipped maps and by a made-up one that holds its products.
Every run is a process of its own; seconds without its start-up, and the most memory. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gacprof

LLAMA = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
LLAMA |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}
DEEPSEEK = {"hidden_size": 7168, "moe_intermediate_size": 2048, "num_hidden_layers": 61}
DEEPSEEK |= {"num_attention_heads": 128, "n_routed_experts": 256, "intermediate_size": 18432}
LINEAR = {  # (out, in) of a layer of Llama-3-70B
    "self_attn.q_proj": (8192, 8192),
    "self_attn.k_proj": (1024, 8192),
    "self_attn.v_proj": (1024, 8192),
    "self_attn.o_proj": (8192, 8192),
    "mlp.gate_proj": (28672, 8192),
    "mlp.up_proj": (28672, 8192),
    "mlp.down_proj": (8192, 28672),
}
FIRST_RANK = 1000
TOKENS = (1, 1024)
Shapes = Iterator[tuple[str, list[int]]]

ONE = """
import resource, sys, time
import gacprof
from gacprof import CliffMap
verb = getattr(gacprof, sys.argv[3])
more = {"objective": "latency"} if sys.argv[3] == "plan" else {}
cliff_map = CliffMap.load(sys.argv[2])
started = time.perf_counter()
found = verb(sys.argv[1], cliff_map, **more)
seconds = time.perf_counter() - started
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def dense() -> Shapes:
    yield "model.embed_tokens.weight", [128256, 8192]
    for layer in range(80):
        for name, shape in LINEAR.items():
            yield f"model.layers.{layer}.{name}.weight", list(shape)
    yield "lm_head.weight", [128256, 8192]


def factored() -> Shapes:
    for number, (name, shape) in enumerate(dense()):
        if ".layers." not in name:
            yield name, shape
            continue
        rank, module = FIRST_RANK + number, name.removesuffix(".weight")
        yield f"{module}.ALinear.weight", [shape[0], rank]
        yield f"{module}.BLinear.weight", [rank, shape[1]]


def experts() -> Shapes:
    yield "model.embed_tokens.weight", [129280, 7168]
    for layer in range(61):
        at = f"model.layers.{layer}"
        yield f"{at}.self_attn.q_a_proj.weight", [1536, 7168]
        yield f"{at}.self_attn.q_b_proj.weight", [24576, 1536]
        yield f"{at}.self_attn.kv_a_proj_with_mqa.weight", [576, 7168]
        yield f"{at}.self_attn.kv_b_proj.weight", [32768, 512]
        yield f"{at}.self_attn.o_proj.weight", [7168, 16384]
        mlps = [f"experts.{e}." for e in range(256)] + ["shared_experts."] if layer >= 3 else [""]
        width = 2048 if layer >= 3 else 18432
        if layer >= 3:
            yield f"{at}.mlp.gate.weight", [256, 7168]
        for mlp in mlps:
            yield f"{at}.mlp.{mlp}gate_proj.weight", [width, 7168]
            yield f"{at}.mlp.{mlp}up_proj.weight", [width, 7168]
            yield f"{at}.mlp.{mlp}down_proj.weight", [7168, width]
    yield "lm_head.weight", [129280, 7168]


CHECKPOINTS = {
    "dense 70B": (dense, LLAMA),
    "factored 70B": (factored, LLAMA),
    "671B of experts": (experts, DEEPSEEK),
}


def write_headers(folder: Path, shapes: Shapes, config: dict[str, int]) -> Path:
    """A checkpoint of one file whose data is a hole."""
    folder.mkdir()
    entries, at = {}, 0
    for name, shape in shapes:
        end = at + 2 * shape[0] * shape[1]
        entries[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + at)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


def made_up_map(path: Path, name: str) -> Path:
    """Curves over the dims of a checkpoint at every token count, with steps at multiples of 8."""
    from gacprof.cliffmap.build import build_map
    from gacprof.core.points import Block, Call, Environment, Point

    dims, fixed = _curves(name)
    blocks = []
    for axis, other, size in ((a, o, s) for a, o, sizes in fixed for s in sizes):
        for tokens in TOKENS:
            points = [
                Point.of("linear", {"M": tokens, axis: d, other: size}, "float16", {"bias": False})
                for d in dims
            ]
            calls = tuple(
                Call(p, False, (d // 128 + 9) * (1.0 if d % 8 == 0 else 1.5))
                for p, d in zip(points, dims, strict=True)
            )
            blocks += [Block(len(blocks) + n, 0, axis, "cuda-graph", calls) for n in range(6)]
    build_map(blocks, Environment("recorded", name, "sm80"), name=name).save(path)
    return path


def _curves(name: str) -> tuple[range, list[tuple[str, str, list[int]]]]:
    """The sizes measured, and (axis, the other axis, its sizes)."""
    if name == "factored 70B":
        return range(896, 2048), [("N", "K", [8192, 28672]), ("K", "N", [1024, 8192, 28672])]
    if name == "dense 70B":
        return range(21504, 35840, 8), [("N", "K", [8192]), ("K", "N", [8192])]
    return range(1024, 4096, 8), [("N", "K", [7168]), ("K", "N", [7168])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKPOINTS))
    parser.add_argument("--plan", action="store_true", help="time plan as well")
    given = parser.parse_args()
    shipped = sorted((Path(gacprof.__file__).parent / "maps").glob("*.json"))
    print(f"{platform.machine()}, Python {platform.python_version()}\n")
    print("| checkpoint | verb | map | seconds | memory, MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(given.names or CHECKPOINTS):
            shapes, config = CHECKPOINTS[name]
            checkpoint = write_headers(Path(folder) / str(number), shapes(), config)
            own = made_up_map(Path(folder) / f"{number}.json", name)
            for verb in ("diagnose", "plan") if given.plan else ("diagnose",):
                for cliff_map in (own, *shipped) if verb == "diagnose" else (own,):
                    command = [sys.executable, "-c", ONE, str(checkpoint), str(cliff_map), verb]
                    run = subprocess.run(command, capture_output=True, text=True)
                    if run.returncode:
                        seconds, memory = run.stderr.strip().splitlines()[-1][:80], ""
                    else:
                        took, peak = map(float, run.stdout.split())
                        seconds, memory = f"{took:.2f}", f"{peak:.0f}"
                    held = "made up for it" if cliff_map == own else cliff_map.stem
                    print(f"| {name} | {verb} | {held} | {seconds} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
