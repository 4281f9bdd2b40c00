"""Tensor data: mapped one at a time, bit for bit, and never written back; ``torch.save`` files are
read without torch and compared with what torch reads."""

import io
import random
import struct
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from checkpoint_making import PEAK_KIB, MemoryFolder, told_by, write_safetensors, write_torch_zip
from test_safetensors_header import mutated
from torch import nn

from gacprof.checkpoint import open_tensors, scan
from gacprof.checkpoint.containers import read_container
from gacprof.core.errors import CheckpointError

BASE = torch.arange(48, dtype=torch.float32).reshape(6, 8)
STATE = {
    "plain": BASE,
    "sliced": BASE[:, :5],
    "offset": BASE[2:, 1:],
    "transposed": BASE.t(),
    "expanded": BASE[:1].expand(4, 8),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "bfloat16": torch.randn(3, 3).bfloat16(),
    "float8": torch.randn(4).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False]),
    "int64": torch.arange(3),
    "parameter": nn.Parameter(torch.randn(2, 2)),
}


class Tiny(nn.Module):
    """A whole model to pickle: nested modules, a kept and a passing buffer, a tied weight."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.lm_head = nn.Linear(4, 10, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.num_heads = 2
        self.cache = torch.zeros(5)


def test_every_kind_of_tensor_reads_as_torch_reads_it(tmp_path):
    path = tmp_path / "state.pt"
    torch.save(STATE, path)
    reader = open_tensors(path)
    assert set(reader) == set(STATE)
    for name, expected in STATE.items():
        found = reader.torch(name)
        assert found.dtype == expected.dtype and tuple(found.shape) == tuple(expected.shape)
        assert torch.equal(found.float(), expected.detach().float()), name


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: {"model": m, "tokenizer": None}])
def test_a_whole_model_gives_its_state_dict(tmp_path, wrap):
    model = Tiny()
    torch.save(wrap(model), tmp_path / "m.bin")
    reader = open_tensors(tmp_path / "m.bin")
    expected = model.state_dict()
    assert set(reader) == set(expected)
    assert all(torch.equal(reader.torch(name), expected[name]) for name in expected)
    assert reader.inventory.attributes[""]["num_heads"] == 2
    assert reader.inventory.attributes["layers.1"]["class"] == "torch.nn.modules.linear.Linear"
    assert reader.inventory.parameters == sum(p.numel() for p in model.parameters()) + 2


@pytest.mark.parametrize("key", ["model", "state_dict", "module", "anything"])
def test_a_state_dict_inside_a_dict_is_found(tmp_path, key):
    torch.save({"step": 3, key: {"w": torch.ones(2)}}, tmp_path / "m.pt")
    assert set(scan(tmp_path / "m.pt").tensors) == {"w"}


def test_two_state_dicts_are_not_chosen_between(tmp_path):
    value = {"student": {"w": torch.ones(2)}, "teacher": {"w": torch.ones(2)}}
    torch.save(value, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="no state dict"):
        scan(tmp_path / "m.pt")


def test_zip64_directories_are_read(tmp_path):
    """The 64-bit end record, as written above 4 GiB, here with sizes that would not need it."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2)}, path)
    data = path.read_bytes()
    count, length, start = struct.unpack_from("<HII", data, data.rindex(b"PK\x05\x06") + 10)
    end = start + length
    record = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, length, start
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    short = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    path.write_bytes(data[:end] + record + locator + short)
    assert open_tensors(path).torch("w").tolist() == [1, 1]


REFUSED = {
    # so no zip bomb is ever inflated
    "compressed": ({"bomb/data.pkl": bytes(50_000_000)}, zipfile.ZIP_DEFLATED, "compressed"),
    "a pickle of 65 MiB": ({"m/data.pkl": bytes(65 << 20)}, zipfile.ZIP_STORED, "too large"),
    "another zip": ({"readme.txt": b"hello"}, zipfile.ZIP_STORED, "not one that torch"),
    "TorchScript": (
        {"a/data.pkl": b"N.", "a/constants.pkl": b"N."}, zipfile.ZIP_STORED, "TorchScript",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_zips_that_are_no_state_are_refused_unread(tmp_path, kind):
    records, compression, complaint = REFUSED[kind]
    with zipfile.ZipFile(tmp_path / "a.pt", "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match=complaint):
        scan(tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_record_given_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"N.")
        archive.writestr("a/data.pkl", b"N.")
    with pytest.raises(CheckpointError, match="twice"):
        scan(tmp_path / "a.pt")


def test_a_missing_storage_is_named(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "sound.pt")
    with zipfile.ZipFile(tmp_path / "sound.pt") as archive:
        pickled = archive.read("sound/data.pkl")
    path = write_torch_zip(tmp_path / "bad.pt", "bad", pickled, {})
    with pytest.raises(CheckpointError, match="storage '0' is missing"):
        scan(path)
    path = write_torch_zip(tmp_path / "bad.pt", "bad", pickled, {"0": 7})
    with pytest.raises(CheckpointError, match="beyond its storage"):
        scan(path)


def test_files_of_old_torch_are_refused_with_what_to_do(tmp_path):
    torch.save({"w": torch.ones(5)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"before torch 1\.6; .*save it again"):
        scan(tmp_path / "m.pt")


@pytest.mark.usefixtures("nothing_happens")
def test_mutated_torch_files():
    """Sound tensors within the file, or a CheckpointError."""
    stream = io.BytesIO()
    torch.save({f"w{i}": torch.ones(i + 1, 3) for i in range(4)}, stream)
    sound = stream.getvalue()
    rng = random.Random(7)
    refused = 0
    for _ in range(400):
        file = mutated(rng, sound)
        try:
            stored = read_container(MemoryFolder({"m.pt": file}), "m.pt")
        except CheckpointError:
            refused += 1
        else:
            for tensor in stored.tensors.values():
                assert 0 <= (tensor.offset or 0) + tensor.nbytes <= len(file)
    assert 0 < refused < 400


STORED = {
    "half": torch.randn(3, 5).half(),
    "bf": torch.randn(3, 5).bfloat16(),
    "f8": torch.randn(8).to(torch.float8_e4m3fn),
    "int": torch.arange(4),
    "flag": torch.tensor([True, False, True]),
    "none": torch.empty(0, 3),
    "one": torch.tensor(2.5),
}


@pytest.fixture
def saved(tmp_path):
    safetensors.torch.save_file(STORED, tmp_path / "model.safetensors")
    return tmp_path


def test_tensors_read_as_the_library_reads_them(saved):
    reader = open_tensors(saved)
    for name, expected in safetensors.torch.load_file(saved / "model.safetensors").items():
        found = reader.torch(name)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert bytes(reader.raw(name)) == expected.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_writing_to_a_mapped_tensor_leaves_the_file(saved):
    before = (saved / "model.safetensors").read_bytes()
    reader = open_tensors(saved)
    reader.read("half")[:] = 0
    reader.torch("bf").zero_()
    assert (saved / "model.safetensors").read_bytes() == before
    assert torch.equal(reader.torch("bf"), STORED["bf"])


def test_a_file_that_shrank_since_the_scan_is_refused(saved):
    inventory = scan(saved)
    (saved / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="half"):
        open_tensors(inventory).read("half")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory through /proc")
def test_reading_a_stream_of_tensors_keeps_none_of_them(tmp_path):
    """Twelve tensors of 64 MiB, each touched in full: the process holds one at a time."""
    shapes = {f"w{i:02}": ("uint8", (64 << 20,)) for i in range(12)}
    write_safetensors(tmp_path / "model.safetensors", shapes)
    code = (
        f"import sys{PEAK_KIB}"
        "from gacprof.checkpoint import open_tensors\n"
        "reader = open_tensors(sys.argv[1])\n"
        "base = peak_kib()\n"
        "total = sum(int(reader.read(name)[::4096].sum()) for name in reader)\n"
        "print(peak_kib() - base, total)\n"
    )
    grown_kib, total = map(int, told_by(code, tmp_path).split())
    assert total == 0 and grown_kib < 2 * (64 << 10)
