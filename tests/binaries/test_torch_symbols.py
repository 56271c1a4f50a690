"""A library's symbols say how it binds to torch."""

from envcheck.binaries.native_library import (
    abi,
    cuda_majors,
    is_drivers,
    is_nvidias,
    is_torch_library,
    together,
)
from envcheck.binaries.native_library import is_torch_symbol as symbol_is_torchs
from tests.tables import each

NEW, OLD, STABLE, NONE = (
    "libtorch C++ (cxx11abi=1)",
    "libtorch C++ (cxx11abi=0)",
    "torch stable ABI",
    "no torch symbols",
)
MIXED = f"mixed: some libraries on the stable ABI, others {NEW}"


@each(
    ("symbols", "answer"),
    [
        (["_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"], NEW),
        (["_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"], OLD),
        (["_ZN3c105ErrorC2ENS_14SourceLocationESs"], OLD),
        (["aoti_torch_delete_tensor_object", "torch_call_dispatcher"], STABLE),
        (["aoti_torch_delete_tensor_object", "_ZN3c1019UndefinedTensorImpl10_singletonE"], MIXED),
        (["malloc", "_ZNSt6vectorIN2at6TensorEE", "torchcodec_open", "_ZN10torchcodec4OpenEv", "cudaMalloc"], NONE),
        ([], NONE),
    ],
)
def test_how_a_library_binds_is_known_by_its_symbols(symbols: list[str], answer: str) -> None:
    assert abi(symbols) == answer


@each(
    ("symbol", "torchs"),
    [
        ("_ZTVN3c1010TensorImplE", True),
        ("_ZNK2at6Tensor4itemIaEET_v", True),
        ("_ZN6caffe28TypeMeta26_typeMetaDataInstanceEv", True),
        ("THPVariable_Wrap", True),
        ("_ZN5torchaudio4loadEv", False),  # a namespace of five letters that begins so is none of torch's
        ("_ZN10torchaudio4loadEv", False),
        ("torch", False),
    ],
)
def test_only_names_in_torchs_own_namespaces_are_torchs(symbol: str, *, torchs: bool) -> None:
    assert symbol_is_torchs(symbol) is torchs


def test_a_wheel_of_both_kinds_is_mixed() -> None:
    assert together([NONE, STABLE, NEW]) == together([MIXED, STABLE]) == together([MIXED, NEW]) == MIXED
    assert (together([NEW, NONE]), together([STABLE]), together([])) == (NEW, STABLE, NONE)


@each(
    ("library", "majors"),
    [
        ("libcudart.so.12", ["12"]),
        ("/usr/local/cuda/lib64/libcudart.so.12", ["12"]),
        ("libcudart.so.11.0", ["11"]),
        ("libnvrtc.so.11.2", ["11"]),
        ("libcublasLt.so.13", ["13"]),
        ("libcufft.so.11", ["12"]),  # cuFFT numbers itself
        ("libcufft.so.12", ["13"]),
        ("libcusolver.so.11", []),  # CUDA 11 and 12 have it
        ("libcurand.so.10", []),
        ("libcudnn.so.9", []),
    ],
)
def test_a_library_names_its_cuda(library: str, majors: list[str]) -> None:
    assert cuda_majors([library, "libc.so.6"]) == majors
    assert is_nvidias(library)
    assert not is_torch_library(library)


def test_the_drivers_libraries_and_torchs_are_told_apart_from_nvidias_packages() -> None:
    assert is_nvidias("libnvjpeg-1a359ba7.so.13.0.1.86")
    assert not is_nvidias("libcuda.so.1")
    assert is_drivers("libcuda.so.1")
    assert is_torch_library("libtorch_cuda.so")
    assert is_torch_library("libc10.so")
    assert not is_torch_library("libtorchaudio.so")
