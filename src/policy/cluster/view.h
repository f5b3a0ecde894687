/* SPDX-License-Identifier: Apache-2.0 */
/* view: the cluster as workers see it: immutable, counted, made by the control loop whenever membership or
 * health changed. Loads are not in it: they change too often, and live in node_stats. */
#pragma once
#include "base/core/arena.h"
#include "policy/cluster/cluster.h"
#include "policy/engine/tokens.h"

struct view_node {
	uint16_t slot;
	enum node_state state;
	const char *id, *address;
	uint64_t node_id_hash;
	uint32_t width;    /* requests that its ready engines run at once; 0: unknown */
	int role;          /* COGNITORA__V1__ROLE__* */
	uint32_t kv_block; /* tokens in a block of its engines; 0: unknown */
	uint16_t index_id; /* see cluster.h */
	bool fed;          /* its engines publish their blocks: the index is asked, not the record */
	bool fed_bytes;    /* chains of bytes too */
	bool stores;       /* it has a block store that is connected to those of other nodes */
};

struct view_model {
	struct cgn_str name;
	const struct view_node **ready; /* nodes that take requests for the model now; ascending by slot */
	/* by position in |ready|: how that node's engine tokenizes; NULL: it cannot */
	const struct engine_tokens_ops **tokens;
	/* by position in |ready|: how that node's engine resumes an answer; NULL: it cannot */
	const struct engine_resume **resume;
	size_t n_ready;
	bool tokenizes;    /* an engine with the model, ready or not, can tokenize */
	bool may_tokenize; /* an engine with the model may be able to */
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

/* NULL: no node has it. */
const struct view_model *view_model_find(const struct cluster_view *v, struct cgn_str name);
const struct view_node *view_node_find(const struct cluster_view *v, struct cgn_str id);
const struct view_node *view_node_at(const struct cluster_view *v, uint16_t slot);

struct view_ask {
	const uint16_t *excluded; /* slots that were tried already */
	size_t n_excluded;
	bool all; /* ignore breakers: the client asked for a certain node */
	cgn_nsec now;
};
/* Write the candidates for |m| at this instant, ascending by slot, and return how many. |out| has room for
 * m->n_ready. Nodes with an open breaker are left out. If that would leave none, nodes with the least bad
 * breakers are offered, excluded ones too: a request that may fail is better than one that is refused. */
size_t view_candidates(const struct view_model *m, const struct node_stats *stats, const struct view_ask *ask,
	struct route_cand *out);
