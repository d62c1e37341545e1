"""The sources of a build for other processors: they compile, and hold nothing of x86."""

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = ("dispatch", "pool", "scratch", "select", "tier_portable", "worker")
COMPILER = shutil.which("g++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def compiler(*arguments: str) -> str:
    """Run it as that build does: nothing says that x86 tiers are there."""
    assert COMPILER is not None
    command = [COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SOURCES)
def test_it_needs_no_header_of_x86(name: str) -> None:
    """What includes intrinsics or asks for CPUID would not compile elsewhere."""
    needed = compiler("-M", str(NATIVE / f"{name}.cpp"))
    assert "kernels.hpp" in needed or "pool.hpp" in needed
    for header in ("immintrin.h", "cpuid.h", "emmintrin.h"):
        assert header not in needed


def test_it_asks_for_the_portable_tier_alone(tmp_path: Path) -> None:
    """All other tiers stay out of such a build, so a name of theirs would not link."""
    made = tmp_path / "dispatch.o"
    compiler("-O1", "-c", str(NATIVE / "dispatch.cpp"), "-o", str(made))
    symbols = made.read_bytes()
    assert b"portable_kernels" in symbols
    for tier in (b"avx2_kernels", b"avx512_kernels", b"amx_kernels"):
        assert tier not in symbols
