/* SPDX-License-Identifier: Apache-2.0 */
/* view: the cluster as workers see it: immutable, reference-counted, replaced by the control loop at each
 * change of membership or health. Loads change too often for the view; they are in node_stats. */
#pragma once
#include "base/core/arena.h"
#include "policy/node/engine/tokens.h"
#include "policy/node/handoff/handoff.h"
#include "policy/route/cluster/cluster.h"
#include "policy/route/cluster/nodestats.h"

/* Where requests may go straight to the node's engine (Engine.direct), or have to (|door|); address NULL: only by the agent. */
struct view_direct {
	const char *address;
	const char *host; /* Only routers there may (proc_host_id); empty: all. */
	uint32_t connections;
	const struct engine_ops *kind; /* NULL: unknown. */
	/* The node is an engine without an agent, which is reached so; NULL: the node has an agent. */
	const struct cluster_door *door;
};

struct view_node {
	uint16_t slot;
	enum node_state state;
	const char *id, *address;
	uint64_t node_id_hash;
	uint32_t width;    /* Requests that the ready engines run at once; 0: unknown. */
	int role;          /* COGNITORA__V1__ROLE__* */
	uint32_t kv_block; /* Tokens in a block of the engines; 0: unknown. */
	uint16_t index_id; /* See cluster.h. */
	/* The engines publish their blocks: use the index, not the record of sent prompts. */
	bool fed;
	bool fed_bytes;        /* The index has chains of bytes too. */
	bool keeps_none;       /* See cluster.h. */
	cgn_nsec record_until; /* See cluster.h. */
	struct view_direct direct;
	bool stores; /* The node has a block store that is connected to the stores of other nodes. */
};

/* A model that is loaded when requests ask for it: by the node's agent (Engine.swap), or by the engine (ModelFacts.state). */
struct view_swap {
	bool loaded;              /* Requests go on at once; else they wait for |load_ms|. */
	bool loading;             /* Not loaded yet; nothing has to leave for it. */
	bool by_agent;            /* The agent loads it, by PROTO_LOAD_PATH too. */
	uint32_t load_ms;         /* Expected time of a load. */
	uint32_t others;          /* Other models of the node that are loaded or being loaded. */
	uint32_t holds;           /* Models that are loaded at once; 0: unknown. */
	uint64_t memory_bytes;    /* 0: unknown. */
	uint64_t expires_unix_ms; /* 0: it is kept until its room is needed. */
};

#define VIEW_OTHER_CHAIN UINT32_MAX
/* A name under which an engine serves a model. */
struct view_name {
	struct cgn_str text; /* As the node's description has it. */
	struct cgn_str json; /* As requests to the engine name it: a JSON string, quotes included. */
};

/* Members of the engines' lists of models, beside the name. Where ready nodes differ, those of the node with the least context, so that a
 * prompt of this length fits everywhere; then those of the node with the first id. */
struct view_card {
	struct cgn_str members; /* Members of a JSON object without its braces; n 0: none. */
	uint64_t created;       /* Unix time; 0: not told. */
	uint64_t context;       /* Most tokens of a request; 0: not told. */
};

struct view_model {
	struct cgn_str name; /* As the configuration calls the model, if it does. */
	struct view_card card;
	const struct view_node **ready; /* Nodes that take requests for the model now; ascending by slot. */
	/* Indexed like |ready|: the name under which the node's engine serves the model. */
	const struct view_name *served;
	/* Indexed like |ready|: the kind of the node's engine; NULL: unknown. */
	const struct engine_ops **kinds;
	/* Indexed like |ready|: the node's engine finds prompts whatever "cache_salt" a request has. */
	bool *mixes;
	/* Indexed like |ready|: how the model is loaded there; NULL: it is loaded all the time. */
	const struct view_swap **swap;
	/* Indexed like |ready|: how the node's engine tokenizes; NULL: it cannot. */
	const struct engine_tokens_ops **tokens;
	/* Indexed like |ready|: how the node's engine resumes an answer; NULL: it cannot. */
	const struct engine_resume **resume;
	/* Indexed like |ready|: how the node's engine hands prompts over; NULL: not at all. */
	const struct handoff_end **handoff;
	/* Indexed like |ready|: tokens in the blocks that the node's engine reports; 0: unknown,
	 * VIEW_OTHER_CHAIN: their digests are made of another model's name or in another way. */
	uint32_t *chain;
	size_t n_ready;
	uint64_t key; /* Hash of the name and of the nodes that are ready. */
	bool wakes; /* The autoscaler wakes a node when a request comes; written before the view is published. */
	uint32_t
		load_most; /* Longest load_ms of |swap|, at most an hour; 0: no node loads the model on demand. */
	bool tokenizes;    /* An engine with the model can tokenize, ready or not. */
	bool may_tokenize; /* An engine with the model may be able to tokenize. */
};

struct cluster_view {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct cgn_arena arena;
	struct view_node *nodes; /* Ascending by slot. */
	size_t n_nodes;
	struct view_model *models; /* Models of all nodes in any state; ascending by name. */
	size_t n_models;
	/* All members are known, there is one, and each has told its models: a model that is not in the view does
	 * not exist. */
	bool settled;
	bool heard, away; /* As in struct cluster */
	size_t n_untold;  /* Nodes of which an engine has not told its models yet. */
};

/* Return the model's one name for |served|, a name that an engine serves or a client asks for; |served| itself when
 * there is no other. */
typedef struct cgn_str (*view_name_fn)(const void *arg, struct cgn_str served);
/* Engines that serve one model under several names serve one view_model. |name_of| NULL: each name is a model. The
 * caller has the only reference. */
CGN_RC cluster_view_new(const struct cluster *c, view_name_fn name_of, const void *arg,
	struct cluster_view **out, struct cgn_err *err);
void cluster_view_ref(struct cluster_view *v);       /* Any thread. */
void cluster_view_unref(struct cluster_view **take); /* Any thread. */

/* Return the model named |name|; NULL: no node has the model. */
const struct view_model *view_model_find(const struct cluster_view *v, struct cgn_str name);
/* True if the engine of m->ready[i] is of a kind that lacks |path|. */
bool view_lacks(const struct view_model *m, size_t i, struct cgn_str path);
/* Return for how many milliseconds a request to m->ready[i] waits until the model is loaded there; 0: it is. */
uint32_t view_load_ms(const struct view_model *m, size_t i);
/* Return the name under which the node in |slot|, which is one of m->ready, serves |m|. */
const struct view_name *view_served_name(const struct view_model *m, uint16_t slot);
/* Return the kind of the engine of the node in |slot|, which is one of m->ready; NULL: unknown. */
const struct engine_ops *view_kind(const struct view_model *m, uint16_t slot);
/* True if requests for |path| to the node in |slot|, which is one of m->ready, may have a "cache_salt". */
bool view_salts(const struct view_model *m, uint16_t slot, struct cgn_str path);
/* True if m->ready[i] keeps requests for |path| with different "cache_salt" apart. */
bool view_isolates(const struct view_model *m, size_t i, struct cgn_str path);
/* Return how the engine of the node in |slot|, which may have left, hands prompts of |m| over; NULL: not at all. */
const struct handoff_end *view_handoff(const struct view_model *m, uint16_t slot);
const struct view_node *view_node_find(const struct cluster_view *v, struct cgn_str id);
const struct view_node *view_node_at(const struct cluster_view *v, uint16_t slot);

struct view_ask {
	const uint16_t *excluded; /* Slots that were tried already. */
	size_t n_excluded;
	bool all; /* Ignore breakers: the client asked for a certain node. */
	cgn_nsec now;
};
/* Write the candidates for |m| at this instant, ascending by slot, and return their number. |out| has room
 * for m->n_ready. Nodes with an open breaker are left out. If no node would remain, nodes with the least bad
 * breakers are offered, excluded ones too: a request that may fail is better than one that is refused. */
size_t view_candidates(const struct view_model *m, const struct node_stats *stats, const struct view_ask *ask,
	struct route_cand *out);
