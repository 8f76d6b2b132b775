"""Step 6 of `tools/gpu_run.py`: a trace of 20 training steps and where their time goes, beside the device's ceilings.

    python -m tools.step_profile [--device cuda] [--batch_size 204800] [--rows 1000000] [--out FOLDER]

The step is that of benchmarks/step.py, captured on a GPU. The table shows the kernels by their own time on the device;
FOLDER/trace.json opens in Perfetto or chrome://tracing. Ends in one JSON line, with the least bytes and operations of a
step against the copy and matrix rates that were measured in the same call.
"""

from __future__ import annotations

import time

from torch.profiler import ProfilerActivity, profile

from benchmarks.common import arguments, device_of, finish, needed, wait_for

with needed():
    from benchmarks.step import least, our_step, packed_pairs

STEPS, WARM = 20, 8
SHOWN = 25


def main() -> None:
    flags = arguments(__doc__ or "", batch_size=204_800, rows=1_000_000)
    device = device_of(flags)
    rows, batch_size = (60_000, 8192) if flags.quick else (flags.rows, flags.batch_size)
    table = packed_pairs(rows).to(device)
    on_gpu = device.type == "cuda"
    step = our_step(table, batch_size, captured=on_gpu)
    for _ in range(WARM):
        step()
    wait_for(device)
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    wait_for(device)
    spent = (time.perf_counter() - started) / STEPS
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=kinds) as found:
        for _ in range(STEPS):
            step()
        wait_for(device)
    averages = found.key_averages()
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    print(averages.table(sort_by=own, row_limit=SHOWN, max_name_column_width=80))
    if flags.save:
        flags.save.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(flags.save / "trace.json"))
    # On a GPU the kernels alone: their time is also counted with the operators that launched them.
    counted = [one for one in averages if not on_gpu or (one.device_type.name == "CUDA" and not one.is_user_annotation)]
    parts = sorted(((getattr(one, own), one.key, one.count) for one in counted), reverse=True)
    whole = sum(amount for amount, _, _ in parts) or 1
    shares = [
        {"name": name[:120], "share": round(amount / whole, 4), "ms a step": round(amount / STEPS / 1e3, 4),
         "launches a step": round(count / STEPS, 2)}
        for amount, name, count in parts[:SHOWN]
    ]  # fmt: skip
    finish(
        "profile",
        f"{STEPS} training steps of {batch_size:,} rows on {device}{', captured' if on_gpu else ''}",
        {"step": spent, "step, sum of the device's parts": whole / STEPS / 1e6},
        {"busy": whole / STEPS / 1e6 / spent},
        {},
        save=flags.save,
        details={"parts": shares},
        device=device,
        needs={"step": least(table, batch_size)},
    )


if __name__ == "__main__":
    main()
