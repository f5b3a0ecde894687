/* SPDX-License-Identifier: Apache-2.0 */
/* view: the cluster as workers see it: immutable, counted, made by the control loop whenever membership or
 * health changed. Loads are not in it: they change too often, and live in the cells. */
#pragma once
#include "base/core/arena.h"
#include "policy/cluster/cluster.h"
#include "policy/engine/tokens.h"

struct view_node {
	uint16_t slot;
	enum node_state state;
	const char *id, *address;
	uint64_t node_id_hash;
	uint32_t width;    /* what its ready engines run at once; 0: unknown */
	int role;          /* COGNITORA__V1__ROLE__* */
	uint32_t kv_block; /* tokens in a block of its engines; 0: unknown */
	uint16_t index_id; /* in the index */
	bool fed;          /* by its engines' own events: the index is asked, not the record */
	bool fed_bytes;    /* of chains of bytes too */
	bool stores;       /* it has a block store that others reach, and that reaches others' */
};

struct view_model {
	struct cgn_str name;
	const struct view_node **ready; /* take requests for it now; ascending by slot */
	/* beside ready: how that node's engine tells token ids; NULL: it can't */
	const struct engine_tokens_ops **tokens;
	/* beside ready: how that node's engine goes on with an answer; NULL: it can't */
	const struct engine_resume **resume;
	size_t n_ready;
	bool tokenizes;    /* some engine that has it tells token ids, ready or not */
	bool may_tokenize; /* or may */
};

struct cluster_view {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct cgn_arena arena;
	struct view_node *nodes; /* ascending by slot */
	size_t n_nodes;
	struct view_model *models; /* of every node, whatever its state; ascending by name */
	size_t n_models;
};

CGN_RC cluster_view_new(const struct cluster *c, struct cluster_view **out, struct cgn_err *err); /* refs 1 */
void cluster_view_ref(struct cluster_view *v);       /* any thread */
void cluster_view_unref(struct cluster_view **take); /* any thread */

const struct view_model *view_model_find(const struct cluster_view *v,
	struct cgn_str name); /* NULL: no node has it */
const struct view_node *view_node_find(const struct cluster_view *v, struct cgn_str id);
const struct view_node *view_node_at(const struct cluster_view *v, uint16_t slot);

struct view_ask {
	const uint16_t *excluded; /* slots that were tried */
	size_t n_excluded;
	bool all; /* whatever their breakers say: somebody asked for a certain node */
	cgn_nsec now;
};
/* Candidates for |m| as they are at this instant, ascending by slot. |out| has room for m->n_ready. Nodes
 * whose breaker is shut are left out, unless that is true of every ready node, tried ones too: then those are
 * offered whose breakers are the least bad, for a guess that may be wrong beats an answer that is. */
size_t view_candidates(const struct view_model *m, const struct node_stats *cells, const struct view_ask *ask,
	struct route_cand *out);
