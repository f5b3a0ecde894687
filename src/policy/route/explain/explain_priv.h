/* SPDX-License-Identifier: Apache-2.0 */
/* explain, inside: the layout of an entry. Numbers are in native byte order, because entries never leave the
 * process. */
#pragma once
#include "policy/route/explain/explain.h"

enum explain_kind { EXPLAIN_FILLER /* Fills the ring up to its end. */, EXPLAIN_DECIDED, EXPLAIN_ENDED };

struct explain_head {
	uint32_t bytes; /* Size of the entry with its head; a multiple of 8. */
	uint32_t kind;
	uint64_t older;  /* 1 + position of the previous entry in the chain; 0: none. */
	uint64_t before; /* 1 + position of the entry written before this one; 0: none. */
	uint64_t id_hash, request, at_ms;
};

/* ---- code.c ---- Write an entry's contents behind its head, the id first, into EXPLAIN_ENTRY less the head.
 * Return the bytes written. */
size_t explain_put_decision(uint8_t *to, const struct explain_decision *d);
size_t explain_put_end(uint8_t *to, const struct explain_end *e);
/* Read an entry written by a ring; texts are borrowed from it. */
struct cgn_str explain_id_of(const struct explain_head *h);
void explain_get_decision(const struct explain_head *h, struct explain_decision *out);
void explain_get_end(const struct explain_head *h, struct explain_end *out);
