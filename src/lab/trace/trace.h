/* SPDX-License-Identifier: Apache-2.0 */
/* trace: what clients asked for and when, without the words. Pure.
 *
 * A trace is JSON lines in the format that the Mooncake project publishes (github.com/kvcache-ai/Mooncake,
 * FAST25-release/traces), one request each, in order of arrival:
 *   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one a block of the
 *   prompt]} Equal ids are equal prefixes up to there, so an id names one place in one prompt's beginning.
 *   The last block may be unfinished. Beyond that format "session_id" (a string or a number) says which
 *   conversation a request belongs to; other keys are passed over. Memory: 56 bytes a request and 8 a block,
 *   beside the text while it is read. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"

#define TRACE_MAX_REQUESTS ((size_t)1 << 24)
#define TRACE_MAX_IDS      ((size_t)1 << 28)
#define TRACE_MAX_TOKENS   (1U << 24) /* of one prompt or answer */
#define TRACE_BLOCK_TOKENS 512        /* of a block, when a trace leaves that open */

struct trace_request {
	cgn_nsec at;      /* since the trace began */
	uint64_t session; /* 0: unknown */
	uint64_t first;   /* into ids; n of them */
	uint32_t n;
	uint32_t input, output; /* tokens, at least 1 */
};

struct trace {
	struct trace_request *requests; /* owned; at least one */
	size_t n, cap;
	uint64_t *ids; /* owned */
	size_t n_ids, cap_ids;
	uint32_t block_tokens;
};

/* Read |text|; |name| is its file's, for failures. |block_tokens| 0: what all lines allow, TRACE_BLOCK_TOKENS
 * if that does, else a power of two if there is one. |limit|: read so many requests and no more; 0: all.
 * INVALID: a sentence that names file, line and what is wrong: not JSON, a key missing or out of bounds, time
 * going back, ids that do not fit the length, no request at all. TOO_LARGE, NO_MEMORY. */
CGN_RC trace_parse(struct cgn_str text, const char *name, uint32_t block_tokens, size_t limit,
	struct trace *out, struct cgn_err *err);
/* Add a request behind the last; ids are copied. NO_MEMORY, TOO_LARGE. |*r|'s first and n are set here. */
CGN_RC trace_add(struct trace *t, const struct trace_request *r, const uint64_t *ids, size_t n);
void trace_fini(struct trace *t);
/* As lines that trace_parse reads. Errors are the buffer's. Times are rounded to milliseconds. */
void trace_write(const struct trace *t, struct cgn_buf *out);

static inline const uint64_t *trace_ids(const struct trace *t, const struct trace_request *r)
{
	return t->ids + r->first;
}
/* The digest of the prefix that |id| names, in the short form of base/digest: spread evenly, and by nothing
 * but the id. */
uint64_t trace_digest(uint64_t id);

/* numbers.c: keys of any kind by number, from 0, in the order of their first use. Zero is empty. 12 to 24
 * bytes a key. */
#define TRACE_NO_NUMBER UINT32_MAX
struct trace_numbers {
	uint32_t *bucket; /* owned, as is |key| */
	uint64_t *key;
	size_t buckets, n;
};
uint32_t trace_number(struct trace_numbers *m, uint64_t key); /* TRACE_NO_NUMBER: out of memory */
void trace_numbers_fini(struct trace_numbers *m);

/* cache.c: what one cache in front of everything would have found: the share of prompt blocks (unfinished
 * ones too) that were in it. A block goes in when it is asked for; the least recently used goes out. */
struct trace_found {
	uint64_t blocks, found;
	size_t distinct; /* ids */
};
/* |capacity| 0: unlimited, the best that any number of caches can reach. NO_MEMORY. */
CGN_RC trace_one_cache(const struct trace *t, size_t capacity, struct trace_found *out, struct cgn_err *err);
static inline double trace_found_ratio(struct trace_found f)
{
	return f.blocks > 0 ? (double)f.found / (double)f.blocks : 0;
}
