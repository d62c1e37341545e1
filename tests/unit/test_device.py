"""Host memory that is pinned for a GPU, with a registrar that only writes down what it is told."""

import gc
import logging

import pytest
import torch

from deskside.device import Pins, host_pins
from deskside.experts.memory import HostMemory

MIB = 1024**2


class Registrar:
    """Refuses what is larger than `most`, and calls that the real one would refuse."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.pinned: dict[int, int] = {}
        self._most = most

    def cudaHostRegister(self, address: int, size: int, flags: int, /) -> int:
        """Write down an allocation."""
        assert flags == 1
        self.calls.append(("register", address, size))
        if size > self._most:
            return 2
        assert address not in self.pinned
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int, /) -> int:
        """Write down that it is over."""
        self.calls.append(("unregister", address, self.pinned.pop(address)))
        return 0


def test_banks_are_pinned_where_they_lie_and_unpinned_in_reverse() -> None:
    registrar = Registrar()
    pins = Pins(registrar)
    memory = HostMemory(huge_pages=False, pin=pins.pin)
    sizes = [3 * MIB + 5, MIB, 7]
    at = [memory.allocate(size).data_ptr() for size in sizes]
    expected = [("register", *one) for one in zip(at, sizes, strict=True)]
    assert registrar.calls == expected
    assert pins.nbytes == sum(sizes)
    for _ in range(2):
        pins.close()
    expected += [("unregister", *one) for one in zip(at[::-1], sizes[::-1], strict=True)]
    assert registrar.calls == expected
    assert pins.nbytes == 0


def test_memory_stays_while_it_is_pinned_and_is_unpinned_when_nobody_holds_the_pins() -> None:
    registrar = Registrar()
    pins = Pins(registrar)
    HostMemory(huge_pages=False, pin=pins.pin).allocate(MIB).fill_(7)
    (address,) = registrar.pinned
    gc.collect()
    held = pins._held[0]
    assert held.data_ptr() == address
    assert bool((held == 7).all())
    del pins
    gc.collect()
    assert [call[0] for call in registrar.calls] == ["register", "unregister"]


def test_what_can_not_be_pinned_is_told_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    registrar = Registrar(most=MIB)
    pins = Pins(registrar)
    memory = HostMemory(huge_pages=False, pin=pins.pin)
    with caplog.at_level(logging.WARNING):
        large, small = memory.allocate(2 * MIB), memory.allocate(MIB)
    assert f"{large.nbytes} bytes of experts could not be pinned (CUDA error 2)" in caplog.text
    assert "ulimit -l" in caplog.text
    pins.close()
    assert registrar.calls[-1] == ("unregister", small.data_ptr(), MIB)
    assert not registrar.pinned


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nothing_is_pinned_without_a_gpu() -> None:
    assert host_pins() is None
