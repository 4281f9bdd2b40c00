"""No size is called safe that is not: hundreds of models by rules, against the rule done by hand.

The rules stand here a second time, as the table of docs/rules.md has them, and every size is tried.
"""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gacprof
from gacprof.checkpoint.inventory import Dim, Feed, Gemm, Inventory, Module
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.source import Asked, Product, Side
from gacprof.core.points import MAX_DIM
from gacprof.devices.datasheet import sheets
from gacprof.diagnosing.predict import Predictor

MULTIPLES = {
    "sm80": {"float16": (8, 2, 1), "bfloat16": (8, 2, 1), "tf32": (4, 1), "float32": (1,)},
    "sm89": {"float16": (16, 8, 2, 1), "bfloat16": (16, 8, 2, 1), "tf32": (4, 1)},
}
MULTIPLES["sm86"] = MULTIPLES["sm103"] = MULTIPLES["sm90"] = MULTIPLES["sm100"] = MULTIPLES[
    "sm120"
] = MULTIPLES["sm80"]
EIGHT_BIT = {"float8_e4m3": (16,), "int8": (16, 8)}


@dataclass(frozen=True)
class Case:
    gpu: str
    dtype: str
    tp: int
    tokens: tuple[int, ...]
    hidden: int
    width: int
    rank: int

    def by_hand(self, m, n, k):
        """The tier of a product; 99 where nothing serves it."""
        arch = sheets()[self.gpu].arch
        multiples = {**MULTIPLES[arch], **EIGHT_BIT}.get(self.dtype, (1,))
        tiers = [
            next((i + 1 for i, multiple in enumerate(multiples) if size % multiple == 0), 99)
            for size in (n, k)
        ]
        half = self.dtype in ("float16", "bfloat16")
        if m == 1 and half:  # one row of y: only K is loaded in rows
            tiers = tiers[1:]
        if arch == "sm120" and half and m > 1 and k >= 4096 and m * n * k < 2**21:
            return max(tiers) + len(multiples)
        return max(tiers)

    def is_sure(self, size, shards):
        """A multiple of 128 bytes on a rank, with more than 16 tokens."""
        bytes_each = {"float16": 2, "bfloat16": 2, "float8_e4m3": 1, "int8": 1}.get(self.dtype, 4)
        return max(self.tokens) > 16 and size // shards * bytes_each % 128 == 0

    def width_tier(self, width):
        """Of gate and down on one rank."""
        if width % self.tp:
            return 99
        local = width // self.tp
        shapes = [(local, self.hidden), (self.hidden, local)]
        return max(self.by_hand(m, *shape) for m in self.tokens for shape in shapes)

    def rank_tier(self, rank):
        """Of a factor pair of the hidden size, which every rank holds whole."""
        shapes = [(rank, self.hidden), (self.hidden, rank)]
        return max(self.by_hand(m, *shape) for m in self.tokens for shape in shapes)


def model(case):
    """A gate and a down of one width, and a factor pair of one rank."""
    h, w, r = case.hidden, case.width, case.rank
    dense = {"up": ("gate", w, h), "dn": ("down", h, w)}
    modules = [
        Module(name, role, 0, "dense", k, n, case.dtype, (Gemm(name, n, k),), ("w",))
        for name, (role, n, k) in dense.items()
    ]
    pair = (Gemm("q.v", r, h), Gemm("q.u", h, r))
    modules.append(Module("q", "q", 0, "factored", h, h, case.dtype, pair, ("r",)))
    dims = (
        Dim("w", "width", w, (), (Feed("up", "N"), Feed("dn", "K")), 2 * h),
        Dim("r", "rank", r, (), (Feed("q.v", "N"), Feed("q.u", "K")), 2 * h, ordered=True),
    )
    return Inventory(
        tensors={}, config={}, path="made", layout="made", modules=tuple(modules), dims=dims,
        attentions=(),
    )  # fmt: skip


def cases(count):
    draw = random.Random(32)
    for _ in range(count):
        gpu = draw.choice(list(sheets()))
        dtypes = gacprof.rule_table(gpu).dtypes
        step = draw.choice([1, 1, 2, 4, 8, 16, 64])
        yield Case(
            gpu, draw.choice(dtypes), draw.choice([1, 2, 4, 8]),
            tuple(draw.sample([1, 7, 64, 512, 1024, 4096], 2)),
            draw.choice([256, 1024, 4096, 4098, 5120, 1001]),
            draw.randint(64, 16000 // step) * step, draw.randint(8, 2000),
        )  # fmt: skip


def test_hundreds_of_models_are_judged_as_by_hand():
    wrong, safe, misaligned = [], 0, 0
    for case in cases(300):
        made = model(case)
        predictor = Predictor(
            gacprof.rule_table(case.gpu), made, dict.fromkeys(case.tokens, 1.0), case.dtype, case.tp
        )
        for dim, by_hand in ((made.dims[0], case.width_tier), (made.dims[1], case.rank_tier)):
            offered = predictor.sizes(dim, max(1, dim.size - 128), dim.size + 512)
            for answer in predictor.judge(dim, sorted({dim.size, *offered[:4]})):
                tier = by_hand(answer.size)
                reach = 64 * (case.tp if dim.name == "w" else 1)
                better = tier > 1 and any(
                    by_hand(size) < tier for size in range(answer.size + 1, answer.size + reach + 1)
                )
                verdict = answer.verdict or "unknown"
                sure = case.is_sure(answer.size, case.tp if dim.name == "w" else 1)
                right = "misaligned" if better else "not safe"
                right = ("safe" if sure else "undecided") if tier == 1 else right
                if verdict != right and not (right == "not safe" and verdict != "safe"):
                    wrong.append((case, answer.size, verdict, right))
                safe += verdict == "safe"
                misaligned += verdict == "misaligned"
    assert wrong[:3] == []
    assert safe > 150 and misaligned > 150


SIZES = st.integers(1, 6000)


@pytest.mark.parametrize("name", ["a100-published", "h100-published", "cpu-example", "rules"])
@settings(max_examples=30, deadline=None)
@given(
    other=SIZES, sizes=st.lists(SIZES, min_size=1, max_size=4), shards=st.sampled_from([1, 2, 8])
)
def test_no_source_calls_a_size_safe_without_an_alternative_that_it_judged(
    name, other, sizes, shards
):
    """A larger one whose time it knows, or a mechanism than which there is none better."""
    rules = name == "rules"
    source = gacprof.rule_table("h100") if rules else CliffMap.load(name)
    for tokens in ({1: 1.0}, {512: 1.0}, {2048: 1.0}):
        view = source.view(Asked("model", frozenset(), "float16", tokens))
        products = [
            Product(Side(0, 1, shards), Side(other)),
            Product(Side(other), Side(0, 1, shards)),
        ]
        for product in products:
            for answer in view.judge([product], sorted(set(sizes)), None):
                if answer.verdict != "safe":
                    continue
                if rules:
                    assert answer.tier == 1 and answer.latency_us is None
                else:
                    larger = view.sizes([product], answer.size + 1, MAX_DIM)
                    assert larger and answer.latency_us is not None
