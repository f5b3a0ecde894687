/* SPDX-License-Identifier: Apache-2.0 */
/* bench text: writing for benchmarks that read like what models are asked: a third prose, a third code, a
 * third other scripts. Words follow Zipf's law over an unbounded vocabulary, so that a cache of words meets
 * as many new ones as it would. */
#pragma once
#include "base/core/buf.h"

/* Append |n| bytes (less when the last character would be cut) that |seed| alone decides; whole lines. */
void bench_text(struct cgn_buf *out, size_t n, uint64_t seed);
