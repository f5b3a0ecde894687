/* SPDX-License-Identifier: Apache-2.0 */
/* explain, inside: what an entry is. Native numbers: an entry never leaves the process. */
#pragma once
#include "policy/explain/explain.h"

enum explain_kind { EXPLAIN_FILLER /* up to the ring's end */, EXPLAIN_DECIDED, EXPLAIN_ENDED };

struct explain_head {
	uint32_t bytes; /* of the entry, this included; a multiple of 8 */
	uint32_t kind;
	uint64_t older;  /* 1 + place of the entry before it in its chain; 0: none */
	uint64_t before; /* 1 + place of the entry that was written before it; 0: none */
	uint64_t id_hash, request, at_ms;
};

/* code.c: an entry's contents behind its head, the id first. The room is EXPLAIN_ENTRY less the head; returns
 * the bytes written. */
size_t explain_put_decision(uint8_t *to, const struct explain_decision *d);
size_t explain_put_end(uint8_t *to, const struct explain_end *e);
/* Of an entry that a ring wrote; texts are borrowed from it. */
struct cgn_str explain_id_of(const struct explain_head *h);
void explain_get_decision(const struct explain_head *h, struct explain_decision *out);
void explain_get_end(const struct explain_head *h, struct explain_end *out);
