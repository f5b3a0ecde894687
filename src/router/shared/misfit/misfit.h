/* SPDX-License-Identifier: Apache-2.0 */
/* misfit: nodes that refuse what another node answers. An engine that says 401, 403 or 404 to a request may be
 * right: the client asked for what no node has, and then none is blamed. Or its settings are wrong: its key was
 * changed, or a model that it listed is gone. A second node tells which: the request is sent there, and if it is answered,
 * the first node did not fit. After as many such requests in a row as open a breaker, the node gets no
 * requests for the model on the route, for a time that doubles like a breaker's, unless no other node is left.
 *
 * The table is of all workers: GW_MISFITS rows, the oldest one makes room. */
#pragma once
#include "policy/node/breaker/breaker.h"
#include "policy/node/breaker/witness.h"
#include "policy/route/cluster/view.h"

#define GW_MISFITS       64
#define GW_MISFIT_SHOWN  (10 * 60 * CGN_SEC) /* How long the last such request is told. */
#define GW_MISFIT_TEXT   600
#define GW_MISFIT_MODELS 3 /* Rows of a node that are told. */

/* A node that failed or refused a request which may be at fault itself. */
struct gw_suspect {
	uint16_t slot;
	int status;
	enum breaker_failure how;
	uint64_t node;  /* hash of its id */
	const char *id; /* in the request's arena */
};
/* The requests that are alike for a misfit. */
struct gw_misfit_kind {
	struct cgn_str model, path; /* |path|: with or without a query */
};

struct gw_misfits;
struct gw_misfits *gw_misfits_new(void);
void gw_misfits_free(struct gw_misfits **take); /* NULL-safe. */
/* All of the following: any thread, and |f| NULL is a table without rows. */
/* Another node answered what |s| refused. */
void gw_misfit_blame(struct gw_misfits *f, const struct gw_suspect *s, const struct gw_misfit_kind *k,
	const struct breaker_rules *rules, cgn_nsec now, double jitter);
/* The node answered such a request. */
void gw_misfit_clear(struct gw_misfits *f, uint16_t slot, uint64_t node, const struct gw_misfit_kind *k);
/* Return whether there is any row: without one nothing else needs to be asked. */
bool gw_misfits_any(const struct gw_misfits *f);
/* Append to the |n| |slots| the ready nodes of |m| that get no such requests now, at most |cap| in all. Returns the number of slots, or |n| if no
 * ready node would be left. */
size_t gw_misfits_add(struct gw_misfits *f, const struct view_model *m, const struct gw_misfit_kind *k,
	cgn_nsec now, uint16_t *slots, size_t n, size_t cap);
/* Write the findings against the node, for people. |out| is empty if there are none. */
void gw_misfit_text(struct gw_misfits *f, uint16_t slot, uint64_t node, cgn_nsec now,
	char out[GW_MISFIT_TEXT]);
/* A request failed at a node, and no other node has answered it. Return true if that counts against the node
 * (policy/node/breaker/witness.h). |f| NULL: it does. */
bool gw_misfit_unjudged(struct gw_misfits *f, const struct witness_failure *failure);
/* |node| answered a request of |source|; as witness_answered. */
void gw_misfit_answered(struct gw_misfits *f, uint64_t source, uint64_t node, cgn_nsec now);
/* A node refused a request: its list of models is in doubt. */
void gw_misfit_doubt(struct gw_misfits *f, uint16_t slot);
/* Return whether the list is in doubt since the last call. */
bool gw_misfit_doubted(struct gw_misfits *f, uint16_t slot);
