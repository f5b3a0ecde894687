/* SPDX-License-Identifier: Apache-2.0 */
/* bench text: generated text like the prompts of models: a third prose, a third code, a third other scripts.
 * Words follow Zipf's law over an unbounded vocabulary, so that a word cache meets a realistic number of new
 * words. */
#pragma once
#include "base/core/buf.h"

/* Append |n| bytes of whole lines, fewer when the last character would be cut. |seed| determines the text. */
void bench_text(struct cgn_buf *out, size_t n, uint64_t seed);
