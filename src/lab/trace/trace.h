/* SPDX-License-Identifier: Apache-2.0 */
/* trace: the requests of clients and their times, without the text. Pure.
 *
 * A trace is JSON lines in the format published by the Mooncake project (github.com/kvcache-ai/Mooncake,
 * FAST25-release/traces), one request a line, in order of arrival:
 *   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one for each block of the
 *   prompt]}
 *
 * Equal ids mean equal prefixes up to that block, so an id names one place in one prompt's beginning. The
 * last block may be unfinished. Additions to that format: "session_id" (a string or a number) names the
 * conversation of a request, "tenant" (a string or a number) its tenant; "priority" (0 to 9, 9 goes first) and
 * "deadline_ms" say how it waits. Other keys are ignored. Memory: 80 bytes a request and 8 a block, plus the
 * text while it is read. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/table/table.h"

#define TRACE_MAX_REQUESTS ((size_t)1 << 24)
#define TRACE_MAX_IDS      ((size_t)1 << 28)
#define TRACE_MAX_TOKENS   (1U << 24) /* Tokens of one prompt or one answer. */
#define TRACE_BLOCK_TOKENS 512        /* Tokens of a block when the lengths in a trace leave the size open. */

struct trace_request {
	cgn_nsec at;      /* Time since the trace began. */
	uint64_t session; /* trace_name of the session; 0: unknown. */
	uint64_t tenant;  /* trace_name of the tenant; 0: none. */
	uint64_t first;   /* Index into ids; n ids follow. */
	uint32_t n;
	uint32_t input, output; /* Tokens, at least 1. */
	uint32_t deadline_ms;   /* Time from arrival to the first token; 0: no deadline. */
	uint8_t priority;       /* 0 to 9. */
	bool has_priority;
};

struct trace {
	struct trace_request *requests; /* Owned; at least one. */
	size_t n, cap;
	uint64_t *ids; /* Owned. */
	size_t n_ids, cap_ids;
	uint32_t block_tokens;
};

/* Parse |text|; |name| is the file's name for errors. |block_tokens| 0: the size that all lines allow,
 * TRACE_BLOCK_TOKENS if possible, else a power of two if possible. |limit|: the number of requests to read;
 * 0: all. INVALID: a sentence with file, line and problem: not JSON, a key missing or out of bounds, time
 * going back, ids that do not fit the length, no request at all. TOO_LARGE, NO_MEMORY. */
CGN_RC trace_parse(struct cgn_str text, const char *name, uint32_t block_tokens, size_t limit,
	struct trace *out, struct cgn_err *err);
/* Append a request; |ids| are copied, and |first| and |n| of the request are set here. NO_MEMORY,
 * TOO_LARGE. */
CGN_RC trace_add(struct trace *t, const struct trace_request *r, const uint64_t *ids, size_t n);
void trace_fini(struct trace *t);
/* Append the trace to |out| as lines that trace_parse reads, times rounded to milliseconds. |out| is bad on
 * failure. */
void trace_write(const struct trace *t, struct cgn_buf *out);

static inline const uint64_t *trace_ids(const struct trace *t, const struct trace_request *r)
{
	return t->ids + r->first;
}
/* Return the digest of the prefix that |id| names, in the short form of base/digest. It depends on |id| alone
 * and is evenly spread. */
uint64_t trace_digest(uint64_t id);
/* Return the number that stands for |name|, a session or a tenant; never 0. */
uint64_t trace_name(struct cgn_str name);

/* numbers.c: number keys from 0 in the order of their first use. Zeroed memory is an empty table. 18 to 38
 * bytes a key. */
#define TRACE_NO_NUMBER TABLE_NONE
struct trace_numbers {
	uint64_t *key; /* Owned. */
	struct table table;
	size_t n, cap;
};
uint32_t trace_number(struct trace_numbers *m, uint64_t key); /* TRACE_NO_NUMBER: out of memory. */
void trace_numbers_fini(struct trace_numbers *m);

/* cache.c: the share of prompt blocks, unfinished ones included, that one cache for all requests would have
 * held. A requested block is added; the least recently used block is evicted. */
struct trace_found {
	uint64_t blocks, found;
	size_t distinct; /* Ids. */
};
/* |capacity| 0: unlimited, the best result that any number of caches can reach. NO_MEMORY. */
CGN_RC trace_one_cache(const struct trace *t, size_t capacity, struct trace_found *out, struct cgn_err *err);
static inline double trace_found_ratio(struct trace_found f)
{
	return f.blocks > 0 ? (double)f.found / (double)f.blocks : 0;
}
