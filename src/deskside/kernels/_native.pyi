MOST_MATRICES: int

def tiers() -> list[str]: ...
def tier() -> str: ...
def forced() -> bool: ...
def force_tier(name: str, /) -> bool: ...
def release_tier() -> None: ...
def set_threads(count: int, /) -> None: ...
def set_crew(workers: list[list[int]], caller_works: bool, spin: bool, /) -> list[int]: ...
def threads() -> int: ...
def touch(memory: int, count: int, /) -> None: ...
def scratch_growths() -> int: ...
def waits() -> tuple[int, int]: ...
def set_patience(seconds: float, /) -> None: ...
def set_fault(worker: int, fault: str, /) -> None: ...
def read(address: int, count: int, /) -> int: ...

class Seat:
    def __init__(self, memory: int, line: int, place: int, ranks: int, rank: int, /) -> None: ...
    def exchange(
        self,
        turn: int,
        parts: list[int],
        writes: bool,
        first: int,
        last: int,
        spin: float,
        seconds: float,
        /,
    ) -> bool: ...
    def total(self, turn: int, terms: list[int], spin: float, seconds: float, /) -> bool: ...

def linear(
    kind: int,
    x: int,
    rows: int,
    inner: int,
    x_stride: int,
    codes: int,
    scales: int,
    columns: int,
    leaves: int,
    out: int,
    out_stride: int,
    /,
) -> None: ...
def linears(
    x: int, rows: int, inner: int, x_stride: int, table: int, outs: list[int], /
) -> None: ...
def grouped_linear(
    x: int,
    rows: int,
    inner: int,
    x_stride: int,
    table: int,
    count: int,
    out: int,
    out_stride: int,
    /,
) -> None: ...
def expert_sums(
    x: int,
    rows: int,
    hidden: int,
    ids: int,
    weights: int,
    topk: int,
    experts: int,
    inner: int,
    gate: int,
    gate_scales: int,
    up: int,
    up_scales: int,
    down: int,
    down_scales: int,
    limit: float,
    table: int,
    out: int,
    /,
) -> None: ...
def finish_experts(
    sums: int,
    table: int,
    x: int,
    rows: int,
    hidden: int,
    ids: int,
    weights: int,
    topk: int,
    out: int,
    /,
) -> None: ...
def attend(
    q: int,
    rows: int,
    heads: int,
    width: int,
    window_keys: int,
    window_index: int,
    window: int,
    entry_keys: int,
    entry_index: int,
    entries: int,
    sink: int,
    scale: float,
    out: int,
    /,
) -> None: ...
def index_scores(
    q: int,
    rows: int,
    heads: int,
    width: int,
    weights: int,
    keys: int,
    first: int,
    visible: int,
    entries: int,
    out: int,
    /,
) -> None: ...
def hyper_pre(
    streams: int,
    rows: int,
    count: int,
    width: int,
    fn: int,
    base: int,
    scale: int,
    iterations: int,
    eps: float,
    norm_eps: float,
    out: int,
    post: int,
    mixing: int,
    /,
) -> None: ...
def hyper_head(
    streams: int,
    rows: int,
    count: int,
    width: int,
    fn: int,
    base: int,
    scale: int,
    eps: float,
    norm_eps: float,
    out: int,
    /,
) -> None: ...
def hyper_post(
    output: int,
    streams: int,
    rows: int,
    count: int,
    width: int,
    post: int,
    mixing: int,
    out: int,
    /,
) -> None: ...
def rms_norm(
    x: int, rows: int, width: int, weight: int, half_weight: bool, eps: float, out: int, /
) -> None: ...
def rope(
    x: int, rows: int, heads: int, width: int, table: int, half: int, inverse: bool, out: int, /
) -> None: ...
def swiglu(gate: int, up: int, count: int, limit: float, out: int, /) -> None: ...
def best(x: int, rows: int, columns: int, out: int, /) -> None: ...
def route(
    logits: int,
    rows: int,
    experts: int,
    bias: int,
    topk: int,
    scale: float,
    ids: int,
    weights: int,
    /,
) -> None: ...
def pool(
    values: int,
    scores: int,
    absent: int,
    entries: int,
    length: int,
    width: int,
    entry_stride: int,
    row_stride: int,
    out: int,
    /,
) -> None: ...
def select(scores: int, rows: int, columns: int, count: int, out: int, /) -> None: ...
def encode_fp8_rows(floats: int, stored: int, rows: int, width: int, still: int, /) -> None: ...
def decode_fp8_rows(floats: int, stored: int, rows: int, width: int, still: int, /) -> None: ...
def encode_mxfp4_rows(floats: int, stored: int, rows: int, width: int, still: int, /) -> None: ...
def decode_mxfp4_rows(floats: int, stored: int, rows: int, width: int, still: int, /) -> None: ...
def hadamard(x: int, rows: int, width: int, scale: float, out: int, /) -> None: ...
def read_fp8_blocks(
    floats: int,
    blocks: int,
    numbers: int,
    count: int,
    length: int,
    size: int,
    behind: int,
    rows: int,
    width: int,
    still: int,
    /,
) -> None: ...
def read_mxfp4_blocks(
    floats: int,
    blocks: int,
    numbers: int,
    count: int,
    length: int,
    size: int,
    behind: int,
    rows: int,
    width: int,
    still: int,
    /,
) -> None: ...
def read_blocks(
    floats: int,
    blocks: int,
    numbers: int,
    count: int,
    length: int,
    size: int,
    behind: int,
    rows: int,
    /,
) -> None: ...
