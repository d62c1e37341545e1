"""Measures what moves experts here: reads, the CPU in place, copies into slots, and both at once.

Works on random weights of a model's own shape, so that no checkpoint is read. Decides nothing.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.device import Device
from deskside.errors import CapacityError
from deskside.experts.fetch import Banks, ExpertSlots
from deskside.formats.packed import Format, Packed
from deskside.ops.integer_moe import Windows, windows_of
from deskside.ops.opset import OpSet
from deskside.planning.amounts import amount
from deskside.planning.profile import Rates, Reading
from deskside.spec import ModelSpec

__all__ = ["Bench", "bank_experts", "measured"]

MOST_BANK = 1024**3
MOST_SLOTS = 256 * 1024**2
MEMORY_SHARE = 4
"""The bank takes at most one part in this many of the free memory."""
SCALES = (118, 123)
"""Scale bytes of weights of about 0.02."""


def bank_experts(spec: ModelSpec, expert_bytes: int, available: int) -> int:
    """Return how many experts to measure with: all of the model, or what a share of memory holds.

    Raises:
        CapacityError: not even those of one row fit.
    """
    room = min(MOST_BANK, available // MEMORY_SHARE)
    count = min(spec.layers * spec.experts, max(room // expert_bytes, 2 * spec.topk))
    need = expert_bytes * (count + _slot_count(count, expert_bytes, spec.topk))
    if need > available:
        raise CapacityError(
            f"measuring needs {amount(need)}, have {amount(available)}; free some memory"
        )
    return count


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured: random experts, slots, and the routing of single rows."""

    banks: Banks
    windows: Windows
    slots: ExpertSlots
    ops: OpSet
    x: Tensor
    weights: Tensor
    topk: int

    @staticmethod
    def build(spec: ModelSpec, ops: OpSet, device: Device, experts: int) -> "Bench":
        """Allocate and fill."""
        draw = torch.Generator().manual_seed(0)
        shapes = [(spec.intermediate, spec.hidden)] * 2 + [(spec.hidden, spec.intermediate)]
        gate, up, down = (_random(experts, rows, columns, draw) for rows, columns in shapes)
        banks = (gate, up, down)
        windows = windows_of(*banks, spec.swiglu_limit, spec.topk, spec.route_scale)
        slots = ExpertSlots.allocate(
            device, banks, _slot_count(experts, _expert_bytes(banks), spec.topk)
        )
        x = torch.randn(1, spec.hidden, generator=draw)
        weights = torch.full((1, spec.topk), spec.route_scale / spec.topk)
        return Bench(banks, windows, slots, ops, x, weights, spec.topk)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return _expert_bytes(self.banks)

    def row(self, banks: Banks, ids: Tensor) -> int:
        """Run one row through its experts; return the bytes of those."""
        self.ops.expert_sums(self.x, ids, self.weights, *banks, self.windows)
        return self.expert_bytes * self.topk

    def fetch(self, expert: int, slot: int) -> int:
        """Copy one expert and wait for it; return its bytes."""
        self.slots.copy(self.banks, {expert: slot})
        return self.expert_bytes

    def rows(self, banks: Banks) -> Callable[[], int]:
        """Return one row's work, through other experts each time."""
        ids = _cycle(banks[0].codes.shape[0], self.topk)
        return lambda: self.row(banks, next(ids))

    def fetches(self) -> Callable[[], int]:
        """Return one copy's work, of another expert to another slot each time."""
        experts = itertools.cycle(torch.randperm(self.banks[0].codes.shape[0]).tolist())
        slots = itertools.cycle(range(self.slots.banks[0].codes.shape[0]))
        return lambda: self.fetch(next(experts), next(slots))


def measured(
    bench: Bench,
    read: Callable[[Tensor], object],
    threads: Sequence[int],
    use_threads: Callable[[int], None],
    seconds: float,
) -> Rates:
    """Measure everything once.

    Args:
        bench: on which.
        read: reads a tensor's bytes with all threads.
        threads: counts at which plain reads are measured, ascending; the last one is what computes.
        use_threads: sets how many threads work.
        seconds: that each measurement takes.
    """
    for slot in range(bench.slots.banks[0].codes.shape[0]):
        bench.fetch(slot, slot)
    reads = []
    for count in threads:
        use_threads(count)
        reads.append(Reading(threads=count, rate=_rate(_reading(bench.banks, read), seconds)))
    cpu, fetch = _together(bench.rows(bench.banks), bench.fetches(), bench.slots.device, seconds)
    return Rates(
        expert_bytes=bench.expert_bytes,
        bank_bytes=sum(bank.nbytes for bank in bench.banks),
        reads=tuple(reads),
        cpu_alone=_rate(bench.rows(bench.banks), seconds),
        fetch_alone=_rate(bench.fetches(), seconds),
        device=_rate(bench.rows(bench.slots.banks), seconds),
        cpu=cpu,
        fetch=fetch,
    )


def _reading(banks: Banks, read: Callable[[Tensor], object]) -> Callable[[], int]:
    """Return the work of reading some expert whole."""
    experts = itertools.cycle(torch.randperm(banks[0].codes.shape[0]).tolist())

    def one() -> int:
        expert = next(experts)
        for bank in banks:
            read(bank.codes[expert])
            read(bank.scales[expert])
        return _expert_bytes(banks)

    return one


def _rate(work: Callable[[], int], seconds: float) -> float:
    """Return the median rate of a piece of work, in bytes a second."""
    work()
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        started = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - started))
    return statistics.median(rates)


def _together(
    here: Callable[[], int], there: Callable[[], int], device: Device, seconds: float
) -> tuple[float, float]:
    """Return the rates of two kinds of work that go on at the same time, by bytes over time."""
    going, stop = threading.Event(), threading.Event()
    found: list[float] = []

    def aside() -> None:
        there()
        going.set()
        found.append(_total(there, lambda: not stop.is_set()))

    arrival = device.aside(aside)
    try:
        going.wait()
        end = time.perf_counter() + seconds
        ours = _total(here, lambda: time.perf_counter() < end)
    finally:
        stop.set()
        arrival.wait()
    return ours, found[0]


def _total(work: Callable[[], int], goes_on: Callable[[], bool]) -> float:
    started, count = time.perf_counter(), work()
    while goes_on():
        count += work()
    return count / (time.perf_counter() - started)


def _cycle(experts: int, topk: int) -> Iterator[Tensor]:
    """Yield the ids of single rows without end: every expert once before one comes again."""
    draw = torch.Generator().manual_seed(1)
    while True:
        for ids in torch.randperm(experts, generator=draw).split(topk):
            if ids.shape[0] == topk:
                yield ids.view(1, topk)


def _random(experts: int, rows: int, columns: int, draw: torch.Generator) -> Packed:
    """Fill a bank; one expert's bytes stand for all, each in memory of its own."""
    codes = torch.empty((experts, rows, columns // 2), dtype=torch.uint8)
    codes[:] = torch.randint(0, 256, codes.shape[1:], generator=draw, dtype=torch.uint8)
    scales = torch.empty((experts, rows, columns // 32), dtype=torch.uint8)
    scales[:] = torch.randint(*SCALES, scales.shape[1:], generator=draw, dtype=torch.uint8)
    return Packed(codes, scales, Format.MXFP4)


def _slot_count(experts: int, expert_bytes: int, topk: int) -> int:
    return min(experts, max(2 * topk, MOST_SLOTS // expert_bytes))


def _expert_bytes(banks: Banks) -> int:
    return sum(bank.nbytes for bank in banks) // banks[0].codes.shape[0]
