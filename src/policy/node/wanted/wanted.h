/* SPDX-License-Identifier: Apache-2.0 */
/* wanted: which models operators want on which nodes (cgn-ctl model load, unload), and how far nodes are. Pure.
 * The document is the message WantedModels as proto3 JSON. At most WANTED_MAX_MODELS models and WANTED_MAX_NODES
 * named nodes for each; what says nothing any more is dropped, oldest first, when there is no room. */
#pragma once
#include "policy/node/proto/proto.h"

#define WANTED_MAX_MODELS 256
#define WANTED_MAX_NODES  256
#define WANTED_MAX_NAME   256
#define WANTED_MAX_PATH   1024

/* Read a document; free it with pb_free. CGN_INVALID: it is none, or it is over a limit. */
CGN_RC wanted_read(struct cgn_str text, Cognitora__V1__WantedModels **out, struct cgn_err *err);
/* Return the entry of a model; NULL: there is none. |doc| may be NULL. */
const Cognitora__V1__WantedModel *wanted_find(const Cognitora__V1__WantedModels *doc, const char *name);
/* Return the state that is wanted of |m|, which may be NULL, on a node. */
Cognitora__V1__WantedState wanted_on(const Cognitora__V1__WantedModel *m, const char *node);
/* Did the router choose the wanted state on the node (WantedNode.parked), not an operator? */
bool wanted_is_parked(const Cognitora__V1__WantedModel *m, const char *node);
/* The LoRA adapter of an order: borrowed texts, empty for an order about an engine's own model. */
struct wanted_adapter {
	const char *base, *path;
};
/* Return the adapter that |m| means on a node: the node's own, else that of all nodes. */
struct wanted_adapter wanted_adapter_on(const Cognitora__V1__WantedModel *m, const char *node);
const char *wanted_state_text(Cognitora__V1__WantedState s); /* Return "loaded", ...; static. */

/* A change of one model. All is borrowed. */
struct wanted_change {
	const char *name, *base, *lora_path;
	Cognitora__V1__WantedState state;
	const char *const *nodes; /* Named nodes; none: every node, those that join later included */
	size_t n_nodes;
	bool parked; /* The router says it, to spare energy (WantedNode.parked). */
	bool elsewhere_unloaded; /* On nodes that are not named the model is unloaded from now on, as after no other order. */
	const char *by;
	uint64_t now_ms; /* Unix time */
};
/* Append |doc|, which may be NULL, with the change as the next document. CGN_INVALID: a text is empty, too long or not
 * UTF-8; CGN_OVERLOADED: no room. */
CGN_RC wanted_write(const Cognitora__V1__WantedModels *doc, const struct wanted_change *c,
	struct cgn_buf *out, struct cgn_err *err);

/* ---- places.c: nodes ---- */
/* Check whether the node can bring its engine's own model |name| into |state|. CGN_UNSUPPORTED says why it cannot. */
CGN_RC wanted_able_own(const Cognitora__V1__Node *n, const char *name, Cognitora__V1__WantedState state,
	struct cgn_err *err);
/* Order |n| nodes that can serve |name|, best first, for a number of replicas: those where the model runs, then those
 * where it sleeps, then by id, so that as few as possible change. */
void wanted_rank(const Cognitora__V1__Node **nodes, size_t n, const char *name);
/* Check whether the node can load adapters of the model |base|. CGN_UNSUPPORTED says why the node cannot. */
CGN_RC wanted_able(const Cognitora__V1__Node *n, const char *base, struct cgn_err *err);
/* Fill |out| with how far the node is with model |name|, whose entry |m| may be NULL. Texts are borrowed from |n|, |name|
 * and |why|, which has room for |cap| bytes. |heard|: the node's agent answers. False: nothing of the model is there, and
 * nothing is wanted. */
bool wanted_place(const Cognitora__V1__Node *n, bool heard, const char *name,
	const Cognitora__V1__WantedModel *m, char *why, size_t cap, Cognitora__V1__ModelPlace *out);
