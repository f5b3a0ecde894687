/* SPDX-License-Identifier: Apache-2.0 */
/* quota: how much of a supply that all tenants share one tenant may hold.
 *
 * The rule is that of dynamic thresholds, by which switches divide a buffer among queues (Choudhury and Hahne, "Dynamic
 * queue length thresholds for shared-memory packet switches", 1998). A holder has at most
 *
 *   limit = max(1, parts / 1000 * (held + free))
 *
 * where |held| are its own units and |free| the units without a holder. It follows, for parts < 1000:
 *
 * 1. A holder that is alone gets parts / 1000 of the supply: most of it, and never all.
 * 2. No holder takes the last unit unless it holds none: with held >= 1, a unit more leaves free >= 1.
 * 3. While k holders want more than they get, none takes more than parts / (1000 + (k - 1) * parts) of the supply once the
 *    others' surplus has ended, and the rest stays free for those who come. With parts = 500 each of k has 1 / (k + 1).
 * 4. Nothing is reserved for holders that want nothing.
 *
 * Pure; one thread. Memory of a table: QUOTA_BYTES for each holder of a unit, so the supplies bound
 * it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

#define QUOTA_BYTES    184
#define QUOTA_NAME_MAX 128 /* Longer names are cut. */

enum quota_kind {
#define QUOTA(id, name, parts, nouns) QUOTA_##id,
#include "policy/who/quota/quotas.def"
#undef QUOTA
	QUOTA_KINDS
};
const char *quota_name(enum quota_kind kind);
const char *quota_nouns(enum quota_kind kind);

/* Return how much a holder that has |held| of a supply may have, while |free| are free. */
uint64_t quota_limit(enum quota_kind kind, uint64_t held, uint64_t free);
/* May a holder that has |held| take |want| of |free|? The first unit of a holder is granted while any is free. */
bool quota_may(enum quota_kind kind, uint64_t held, uint64_t free, uint64_t want);

/* The answer to a holder's question: its units before, and its limit; limit 0: all. */
struct quota_told {
	uint64_t held, limit;
	bool share; /* The holder's own share refused it. */
	bool full;  /* All units have holders: other holders give some back. */
};
/* A holder's question for more of a supply. |alone|: there is no other holder, and this one may have all. */
struct quota_ask {
	enum quota_kind kind;
	bool alone;
	uint64_t held, free, want;
};
/* Answer as quota_may does; |told| is filled in either way. */
bool quota_judge(const struct quota_ask *ask, struct quota_told *told);

/* ---- counts of holders ---- */

struct quota_table;
struct quota_table *quota_table_new(void);
void quota_table_free(struct quota_table **take); /* NULL-safe. */

/* A holder of a supply. |of|: names the supply where a kind has several, such as a model; else 0. */
struct quota_holder {
	enum quota_kind kind;
	struct cgn_str tenant;
	uint64_t of;
};
uint64_t quota_held(const struct quota_table *t, const struct quota_holder *h);
/* Add |n| to what |h| holds. */
void quota_add(struct quota_table *t, const struct quota_holder *h, uint64_t n);
/* Take |n| from what |h| holds, which is at least |n|. */
void quota_give(struct quota_table *t, const struct quota_holder *h, uint64_t n);
/* Return the units of |kind| of all holders. */
uint64_t quota_total(const struct quota_table *t, enum quota_kind kind);
struct quota_name_of {
	char name[QUOTA_NAME_MAX + 1];
};
/* Copy the names of at most |max| tenants that hold something, each once; returns how many. */
size_t quota_tenants(const struct quota_table *t, struct quota_name_of *out, size_t max);
/* Return the tenant's units in all supplies of |kind|. */
uint64_t quota_tenant(const struct quota_table *t, enum quota_kind kind, struct cgn_str tenant);
