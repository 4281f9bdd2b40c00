"""The unpickler runs nothing: what a pickle names stays a name."""

import builtins
import collections
import os
import pickle
import random
import struct
import sys

import pytest
from checkpoint_making import MemoryFolder
from test_safetensors_header import mutated

from gacprof.checkpoint.containers import read_container
from gacprof.checkpoint.pickled import NamedGlobal, PickledObject, find_state
from gacprof.checkpoint.torchfile import located
from gacprof.checkpoint.unpickle import unpickle
from gacprof.core.errors import CheckpointError


def run(data):
    return unpickle(data, "test").value


class Calls:
    """Pickles as a call of ``function(*args)``."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


PLAIN = {
    "text": "é",
    "bytes": b"\0\xff",
    "numbers": [0, -1, 255, 65536, 2**31, -(2**70), 1.5, float("inf")],
    "constants": (None, True, False),
    "nested": {"a": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], 3: {}},
    ("a", 1): "a tuple as a key",
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_containers_come_out_as_they_went_in(protocol):
    # Before protocol 3 bytes are a call of _codecs.encode, which stays a record.
    value = {k: v for k, v in PLAIN.items() if protocol >= 3 or k != "bytes"}
    assert run(pickle.dumps(value, protocol)) == value
    assert sorted(run(pickle.dumps({1, 2, 3}, protocol))) == [1, 2, 3]  # sets become lists
    ordered = collections.OrderedDict(b=1, a=2)
    out = run(pickle.dumps([ordered, ordered], protocol))
    assert list(out[0].items()) == [("b", 1), ("a", 2)] and out[0] is out[1]


HOSTILE = {
    "os.system": Calls(os.system, "touch pwned"),
    "builtins.eval": Calls(builtins.eval, "__import__('os').system('touch pwned')"),
    "builtins.exec": Calls(builtins.exec, "raise SystemExit"),
    "builtins.__import__": Calls(builtins.__import__, "antigravity"),
    "open for writing": Calls(builtins.open, "pwned", "w"),
    "os._exit": Calls(os._exit, 3),
    "getattr": Calls(getattr, "x", "upper"),
    "sys.setrecursionlimit": Calls(sys.setrecursionlimit, 10**9),
}


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", HOSTILE)
def test_calls_are_not_made(name, protocol):
    out = run(pickle.dumps(HOSTILE[name], protocol))
    assert isinstance(out, PickledObject) and isinstance(out.of, NamedGlobal)


RAW = {
    "torch.load as a gadget": b"ctorch.serialization\nload\n(S'other.pt'\ntR.",
    "torch.hub.load": b"ctorch.hub\nload\n(S'org/repo'\nS'entry'\ntR.",
    "torch.storage._load_from_bytes": b"ctorch.storage\n_load_from_bytes\n(B\x01\0\0\0xtR.",
    "numpy.load": b"cnumpy\nload\n(S'x.npy'\ntR.",
    "runpy": b"crunpy\n_run_code\n(S'import os'\n}tR.",
    "INST": b"(S'touch pwned'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch pwned'\no.",
    "NEWOBJ": b"\x80\x02cos\nsystem\n\x8c\x01x\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04cos\nsystem\n)}\x92.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
    "a dotted name": b"\x80\x04\x8c\x08builtins\x8c\x12eval.__self__.exec\x93)R.",
    "BUILD with __setstate__": b"cos\nPathLike\n)\x81}S'__setstate__'\ncos\nsystem\nsb.",
    "a call of a call": b"cbuiltins\ngetattr\n(cos\n__dict__\nS'get'\ntR(S'system'\ntR.",
    "an extension code": b"\x80\x02\x82\x01)R.",
}


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("stream", RAW.values(), ids=RAW.keys())
def test_raw_gadgets_are_inert(stream):
    assert isinstance(run(stream), PickledObject)


def bomb_of_lists(levels):
    """Each list holds the one before twice: 2^levels leaves if it is walked as a tree."""
    stream = b"\x80\x04]\x94"
    for i in range(levels):
        stream += b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94"
    return stream + b"."


REFUSED = {
    "an empty stream": b"",
    "no STOP": b"\x80\x02N",
    "an empty stack": b".",
    "a mark as the value": b"(.",
    "pop of nothing": b"0.",
    "a memo entry never set": b"h\x05.",
    "a tuple without a mark": b"t.",
    "a key without a value": b"}(K\x01u.",
    "items of a number": b"K\x01K\x02K\x03s.",
    "append to a dict": b"}K\x01a.",
    "a list as a key": b"}]K\x01s.",
    "a key of a million bits": b"\x80\x02}\x8b\x48\xe8\x01\0" + b"\x7f" * 125_000 + b"K\x01s.",
    "a tuple nested in a key": b"\x80\x02}K\x01\x85\x85K\x02s.",
    "text longer than the stream": b"X\xff\xff\xff\x7fabc.",
    "bytes of 2^63": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a decimal of 5000 digits": b"L" + b"9" * 5000 + b"L\n.",
    "an unknown opcode": b"\xff.",
    "out-of-band data": b"\x80\x05\x97.",
    "a persistent id that is no storage": b"S'file:///etc/passwd'\nQ.",
    "a text persistent id": b"P/etc/passwd\n.",
    "a global whose name is a number": b"\x80\x04K\x01K\x02\x93.",
}


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("stream", REFUSED.values(), ids=REFUSED.keys())
def test_broken_streams_are_refused(stream):
    with pytest.raises(CheckpointError) as refusal:
        run(stream)
    assert str(refusal.value).startswith("test: ") and "\n" not in str(refusal.value)


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize(
    "stream",
    [
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"(" * 100_000 + b"t" * 100_000 + b".",
        b")" + b"\x85" * 150_000 + b".",
        b"}K\x01" * 50_000 + b"}" + b"s" * 50_000 + b".",
    ],
    ids=["lists", "tuples", "one-tuples", "dicts"],
)
def test_deep_nesting_overflows_no_stack(stream):
    value = run(stream)
    with pytest.raises(CheckpointError, match="no state dict"):
        find_state(value, "test")


def test_a_deeply_nested_tuple_is_never_hashed():
    with pytest.raises(CheckpointError, match="key"):
        run(b"})" + b"\x85" * 100_000 + b"Ns.")


def test_a_memo_index_of_2_to_the_32_costs_nothing():
    assert run(b"\x80\x02K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.") == 7


def test_a_bomb_of_shared_lists_stays_small():
    with pytest.raises(CheckpointError, match="no state dict"):
        find_state(run(bomb_of_lists(200)), "test")


def module(children):
    """A record with ``_modules`` set to the dict that ``children`` builds."""
    return b"cm\nM\n)\x81}\x8c\x08_modules" + children + b"sb"


def test_a_bomb_of_shared_modules_is_refused(monkeypatch):
    monkeypatch.setattr("gacprof.checkpoint.pickled._MAX_ENTRIES", 10_000)
    stream = b"\x80\x04" + module(b"}") + b"\x94"
    for i in range(60):
        twice = b"}(\x8c\x01ah" + bytes([i]) + b"\x8c\x01bh" + bytes([i]) + b"u"
        stream += module(twice) + b"\x94"
    with pytest.raises(CheckpointError, match="not a model"):
        find_state(run(stream + b"."), "test")


def test_a_module_that_contains_itself_is_refused():
    stream = b"\x80\x04cm\nM\n)\x81\x94}\x8c\x08_modules}\x8c\x01ah\0ssb."
    with pytest.raises(CheckpointError, match="not a model"):
        find_state(run(stream), "test")


def test_a_config_that_contains_itself_is_cut_off():
    """Its entries that JSON cannot say are dropped, and the walk ends."""
    stream = (
        b"\x80\x04" + b"cm\nM\n)\x81}(\x8c\x08_modules}\x8c\x06config"
        b"cc\nC\n)\x81}(\x8c\x01aK\x05\x8c\x04loop]\x94h\0aub" + b"ub."
    )
    assert find_state(run(stream), "test").config == {"a": 5}


def test_more_operations_than_any_model_has_are_refused(monkeypatch):
    monkeypatch.setattr("gacprof.checkpoint.unpickle.MAX_OPERATIONS", 1000)
    with pytest.raises(CheckpointError, match="operations"):
        run(b"N0" * 600 + b"N.")


def tensor(offset, shape, stride, numel=6):
    """A pickled tensor over a half-precision storage of ``numel`` elements."""
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(("
        b"X\x07\0\0\0storagectorch\nHalfStorage\nX\x01\0\0\x000X\x03\0\0\0cpu"
        b"J" + struct.pack("<i", numel) + b"tQJ" + struct.pack("<i", offset) + shape + stride
        + b"\x89}tR."
    )  # fmt: skip


@pytest.mark.parametrize(
    "stream",
    [
        tensor(-1, b"K\x02\x85", b"K\x01\x85"),
        tensor(0, b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        tensor(0, b"K\x02\x85", b"J\xff\xff\xff\xff\x85"),
        tensor(0, b"K\x02\x85", b"K\x01K\x01\x86"),
        tensor(0, b"G\x7f\xf8\0\0\0\0\0\0\x85", b"K\x01\x85"),
        tensor(0, b"\x8a\x09" + b"\xff" * 8 + b"\x7f\x85", b"K\x01\x85"),
        tensor(0, b"\x88\x85", b"K\x01\x85"),
        tensor(0, b"N", b"K\x01\x85"),
        tensor(0, b"K\x02\x85", b"K\x01\x85", numel=-1),
    ],
    ids=["negative offset", "negative size", "negative stride", "ranks differ", "NaN",
         "2^71", "true", "None", "negative storage"],
)  # fmt: skip
def test_tensors_of_impossible_shape_are_refused(stream):
    with pytest.raises(CheckpointError):
        run(stream)


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("tool", ["llmpruner_mha_global_mlp_0.3", "slicegpt_mha_s0.22_r1"])
def test_mutated_pickles_of_the_tools(fixtures, tool):
    """A state with sound tensors, or a CheckpointError; no import, no write."""
    rng = random.Random(tool)
    sound = (fixtures / "checkpoints" / f"{tool}.headers" / "data.pkl").read_bytes()[:7000]
    refused = 0
    for _ in range(400):
        try:
            state = find_state(unpickle(mutated(rng, sound), "test").value, "test")
            for name, ref in state.tensors.items():
                located(name, ref, "m.pt", 0, 1 << 20, "test")
        except CheckpointError:
            refused += 1
    assert refused > 0


@pytest.mark.usefixtures("nothing_happens")
def test_random_programs():
    """Opcodes at random, so that the machine itself meets every order of them."""
    rng = random.Random(1)
    opcodes = [
        bytes([b]) for b in b"(.0123NNab]]d}})e|lstu\x85\x86\x87\x88\x89\x8f\x90\x91\x93\x94"
    ]
    calls = [b"cos\nsystem\n", b"K\x01", b"\x8c\x02os", b"R", b"\x81", b"\x92", b"b", b"Q", b"h\0"]
    for _ in range(1000):
        program = b"".join(rng.choices(opcodes + calls * 3, k=rng.randint(5, 60)))
        try:
            run(b"\x80\x04" + program + b".")
        except CheckpointError as refusal:
            assert "\n" not in str(refusal)


@pytest.mark.usefixtures("nothing_happens")
def test_a_file_that_is_no_container_is_refused():
    for data in (b"", b"GGUF" + bytes(40), b"hello", pickle.dumps({"a": 1}), bytes(100)):
        with pytest.raises(CheckpointError):
            read_container(MemoryFolder({"m.bin": data}), "m.bin")
