#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Say how many tokens per joule perfect packing would reach on a trace of `cgn-ctl bench energy`.

Every prompt is computed at once and beside nothing else, by a cache that all nodes share and that forgets nothing. All streams are decoded by
one node, as one batch. Whatever does not compute draws the power of a parked node, and waking takes no time. The figures are those of
src/lab/gpu and of the replay's engine; docs/fleet/energy/README.md has the sources."""
import argparse
import heapq
import json
import math

BLOCK_TOKENS, PREFILL_TOKENS_PER_S, DECODE_S, BATCH_EFFECT = 512, 20000, 0.012, 0.01
GPUS = {  # watts of decode at 0, 1, 2, 4, ... 256 streams, of prefill, parked; time of a decode step beside an H100's
    "h100": ([120, 267, 303, 339, 375, 411, 447, 483, 519, 555], 680, 70, 1),
    "h200": ([118, 137, 191, 245, 300, 354, 408, 463, 517, 555], 593, 80, 0.7),
}


def decode_watts(curve, streams):
    knot = min(8, int(math.log2(streams)) + 1)
    return curve[knot] + (curve[knot + 1] - curve[knot]) * (streams / 2 ** (knot - 1) - 1)


def streams_of(requests):
    """Return (seconds at which a stream begins, its tokens) in order of time, and the seconds of prefill of all."""
    seen, streams, prefill_s = set(), [], 0
    for r in requests:
        held = 0
        while held < len(r["hash_ids"]) and r["hash_ids"][held] in seen:
            held += 1
        seen.update(r["hash_ids"])
        took = max(1, r["input_length"] - held * BLOCK_TOKENS) / PREFILL_TOKENS_PER_S
        prefill_s += took
        streams.append((r["timestamp"] / 1000 + took, r["output_length"]))
    return sorted(streams), prefill_s


def decode(streams, curve, parked_w, step_s):
    """Decode all as one batch. Return the time of the end and the joules above those of a parked node."""
    now, joules, steps, i, ends = 0, 0, 0, 0, []
    while i < len(streams) or ends:
        now = now if ends else max(now, streams[i][0])
        while i < len(streams) and streams[i][0] <= now:
            heapq.heappush(ends, steps + max(1, streams[i][1] - 1))
            i += 1
        took = step_s * (1 + BATCH_EFFECT * (len(ends) - 1))
        joules += (decode_watts(curve, len(ends)) - parked_w) * took
        now, steps = now + took, steps + 1
        while ends and ends[0] <= steps:
            heapq.heappop(ends)
    return now, joules


def main(trace, nodes):
    with open(trace, encoding="utf-8") as f:
        requests = [json.loads(line) for line in f]
    streams, prefill_s = streams_of(requests)
    tokens = sum(n for _, n in streams)
    for name, (curve, prefill_w, parked_w, share) in GPUS.items():
        end, decode_j = decode(streams, curve, parked_w, DECODE_S * share)
        parked_j, prefill_j = nodes * parked_w * end, prefill_s * (prefill_w - parked_w)
        all_j = parked_j + prefill_j + decode_j
        print(f"{name}: {tokens / all_j:.3f} tokens/J; {all_j / 1e6:.2f} MJ = parked {parked_j / 1e6:.2f} + prefill {prefill_j / 1e6:.2f}"
              f" + decode {decode_j / 1e6:.2f}; parked nodes off: {tokens / (all_j - parked_j):.3f} tokens/J")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace", metavar="TRACE.jsonl")
    p.add_argument("nodes", type=int, nargs="?", default=8, metavar="NODES", help="default: 8")
    a = p.parse_args()
    main(a.trace, a.nodes)
