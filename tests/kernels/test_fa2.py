"""The FlashAttention-2 inventory comes from a library's symbol names, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gacprof.core.errors import MapError, MeasurementError
from gacprof.kernels import fa2
from gacprof.kernels.fa2 import RECORDS


def symbol(template: int, tile: tuple[int, int, int], split: bool = False) -> bytes:
    """As GCC mangles ``pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<…>, …>``."""
    base = "flash_fwd_splitkv_kernel" if split else "flash_fwd_kernel"
    sizes = "".join(f"Li{size}E" for size in (template, *tile))
    return (
        f"_ZN13pytorch_flash{len(base)}{base}I23Flash_fwd_kernel_traitsI{sizes}Lb0ELb0EN7cutlass6"
        f"half_tE19Flash_kernel_traitsI{sizes}S3_EELb0ELb1ELb0ELb0ELb1ELb0ELb0ELb0EEEvNS_16"
        "Flash_fwd_paramsE"
    ).encode()


def library(path: Path, symbols: list[bytes]) -> Path:
    path.write_bytes(b"\x7fELF" + b"\x00" * 64 + b"\x00".join([b"", *symbols, b"main", b""]))
    return path


def test_templates_and_tiles_are_read(tmp_path: Path) -> None:
    symbols = [
        symbol(128, (128, 64, 4)), symbol(128, (128, 32, 4)), symbol(64, (128, 128, 4)),
        symbol(64, (64, 256, 4), split=True), b"_ZN13pytorch_flash7mha_fwdERKN2at6TensorE",
    ]  # fmt: skip
    found = fa2.read(library(tmp_path / "libtorch_cuda.so", symbols))
    assert found.templates == (64, 128)
    assert found.forward == {64: ((128, 128, 4),), 128: ((128, 32, 4), (128, 64, 4))}
    assert found.split == {64: ((64, 256, 4),)}


def test_real_symbols_are_read(fixtures: Path, tmp_path: Path) -> None:
    names = (fixtures / "kernel_names" / "flash2.txt").read_text().split("\n")
    mangled = [name.encode() for name in names if name.startswith("_Z")]
    inventory = fa2.read(library(tmp_path / "lib.so", mangled))
    known = RECORDS["2.9.1"]
    assert set(inventory.templates) <= set(known.templates)
    assert all(set(tiles) <= set(known.forward[d]) for d, tiles in inventory.forward.items())
    assert len(inventory.templates) >= 4


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no symbols at all" * 100])
def test_a_stripped_or_empty_library_is_told_apart_from_a_build_without_flash(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "libtorch_cuda.so"
    path.write_bytes(content)
    with pytest.raises(MeasurementError, match=r"libtorch_cuda\.so: (no Flash|cannot be read)"):
        fa2.read(path)
    for none in (tmp_path / "absent.so", tmp_path):
        with pytest.raises(MeasurementError, match="cannot be read"):
            fa2.read(none)


def test_the_installed_torch_is_read_or_says_that_it_has_no_cuda() -> None:
    try:
        inventory = fa2.read()
    except MeasurementError as error:
        assert "built without CUDA" in str(error)
    else:
        assert inventory.templates[-1] == 256


def test_recorded_releases_and_none_that_is_guessed() -> None:
    assert fa2.recorded("2.6.0").templates == (32, 64, 96, 128, 160, 192, 224, 256)
    assert fa2.recorded("2.9.1+cu128").templates == (32, 64, 96, 128, 160, 192, 256)
    assert fa2.recorded("2.13.0").templates == (32, 64, 96, 128, 192, 256)
    with pytest.raises(MapError, match=r"templates are recorded for torch 2\.9\.0"):
        fa2.recorded("2.9.0")


@pytest.mark.parametrize(
    "head_dim, template, even",
    [(1, 32, False), (64, 64, True), (65, 96, False), (107, 128, False), (121, 128, True),
     (129, 160, False), (256, 256, True), (257, None, False)],
)  # fmt: skip
def test_the_template_of_a_head_dim(head_dim: int, template: int | None, even: bool) -> None:
    inventory = fa2.recorded("2.9.1")
    assert inventory.template_for(head_dim) == template
    assert inventory.even_k(head_dim) is even
