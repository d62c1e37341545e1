"""One layer's experts by kt-kernel, for `benchmarks.rivals`: runs in an environment of its own.

Reads a number of rows from standard input, runs them on other experts each time, and prints the
seconds. Needs torch and kt-kernel, and nothing of this project.
"""

import sys
import time

import torch
from kt_kernel import kt_kernel_ext as kt

EXPERTS, HIDDEN, INNER, TOPK, MOST_ROWS = 128, 4096, 2048, 6, 512


def bank(rows: int, columns: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return random codes, and scales near those of normal weights, one of each an expert."""
    codes = [torch.randint(0, 256, (rows, columns // 2)).byte() for _ in range(EXPERTS)]
    scales = [
        (2.0 ** torch.randint(-9, -6, (rows, columns // 32))).bfloat16() for _ in range(EXPERTS)
    ]
    return codes, scales


def pointers(tensors: list[torch.Tensor]) -> list[list[int]]:
    """Return addresses by node and expert."""
    return [[tensor.data_ptr() for tensor in tensors]]


def load(threads: int) -> tuple[kt.CPUInfer, object]:
    """Return workers and a layer that holds its weights."""
    workers = kt.WorkerPoolConfig()
    workers.subpool_count, workers.subpool_numa_map = 1, [0]
    workers.subpool_thread_count = [threads]
    infer = kt.CPUInfer(workers)
    nowhere = torch.zeros(EXPERTS, dtype=torch.bool)
    config = kt.moe.MOEConfig(EXPERTS, TOPK, HIDDEN, INNER, nowhere.data_ptr())
    config.pool, config.max_len, config.swiglu_limit = infer.backend_, MOST_ROWS, 10.0
    gate, up, down = bank(INNER, HIDDEN), bank(INNER, HIDDEN), bank(HIDDEN, INNER)
    config.gate_projs, config.gate_scales = pointers(gate[0]), pointers(gate[1])
    config.up_projs, config.up_scales = pointers(up[0]), pointers(up[1])
    config.down_projs, config.down_scales = pointers(down[0]), pointers(down[1])
    config.quant_config.bits, config.quant_config.group_size = 4, 32
    config.quant_config.zero_point = False
    layer = kt.moe.AMXFP4_KGroup_MOE(config)
    order = torch.arange(EXPERTS)
    infer.submit(layer.load_weights_task(order.data_ptr()))
    infer.sync()
    return infer, layer


def main() -> None:
    """Answer until standard input ends."""
    infer, layer = load(int(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        rows = int(line)
        count = torch.tensor([rows], dtype=torch.int32)
        if rows * TOPK <= EXPERTS:
            ids = torch.randperm(EXPERTS)[: rows * TOPK].view(rows, TOPK)
        else:
            ids = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(rows)])
        ids = ids.contiguous()
        weights = torch.full((rows, TOPK), 1 / TOPK)
        x = torch.randn(rows, HIDDEN).bfloat16()
        out = torch.empty_like(x)
        started = time.perf_counter()
        infer.submit(
            layer.forward_task(  # type: ignore[attr-defined]
                count.data_ptr(),
                TOPK,
                ids.data_ptr(),
                weights.data_ptr(),
                x.data_ptr(),
                out.data_ptr(),
                False,
            )
        )
        infer.sync()
        print(time.perf_counter() - started, float(out.float().norm()), flush=True)


if __name__ == "__main__":
    main()
