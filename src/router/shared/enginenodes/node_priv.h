/* SPDX-License-Identifier: Apache-2.0 */
/* node, inside: node.c finds out how the engine is, tell.c tells the router. */
#pragma once
#include "joint/node/engineview/engineview.h"
#include "policy/route/cluster/cluster.h"
#include "policy/who/share/share.h"
#include "router/shared/enginenodes/node.h"

#define ENGINE_NODE_TAG 0x640e4001U
#define ENGINE_NODE_CHECK \
	(2 * CGN_SEC) /* Between two comparisons of what the router knows, while blocks change */

struct engine_node {
	uint32_t tag;
	const struct engine_node_kin *kin;
	const struct engine_node_ops *ops; /* NULL: it is stopped */
	void *user;
	char *id, *origin;
	struct cgn_arena arena;   /* Copies of settings */
	struct cgn_arena scratch; /* Memory of one description */
	struct config_engine ce;  /* Settings that the kind decides about; strings are not kept */
	bool guess;
	struct cluster_door door;
	struct engineview view;
	struct supervise sup;
	struct cgn_timer wake;
	char trouble[300];
	uint64_t since_ms; /* Tells an engine that was started again from the one before */
	bool draining;

	struct share_peak peak;
	uint32_t inflight, foreign;
	cgn_nsec load_told_at;

	struct holdings *holdings;
	struct cgn_buf changed; /* Digests that changed since the last event */
	bool told_blocks;       /* Blocks changed since the last comparison */
	cgn_nsec unheard_since; /* Events stopped at this instant; 0: they arrive, or there are none */

	struct cgn_hook hook; /* Sends due events at the end of the turn */
	struct cgn_timer check_timer;
	uint64_t seq;
	bool node_due, load_due, source_due, check_due;
	bool range_due[BLOCK_RANGES];
	bool ranges_due, reset_due;
};

/* ---- tell.c ---- */
/* Something is due: it is told at the end of the turn. */
void engine_node_due(struct engine_node *n);
void engine_node_describe(struct engine_node *n); /* The description is due. */
bool engine_node_is_ready(const struct engine_node *n);
void engine_node_block_changed(void *user, uint64_t digest); /* For the holdings; |user|: the node. */
void engine_node_tell(struct cgn_hook *h);   /* n->hook: tell all that is due in one event, then the sums. */
void engine_node_check(struct cgn_timer *t); /* n->check_timer */
