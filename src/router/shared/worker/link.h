/* SPDX-License-Identifier: Apache-2.0 */
/* link: a worker's connections to one node: gRPC to its agent, and HTTP/1.1 to its engine where that is allowed. A link is created for the first call to its node
 * and retired when the node leaves or moves; the last call that uses a retired link frees it. */
#pragma once
#include "base/weburl/weburl.h"
#include "io/wire/grpc/grpc.h"
#include "policy/node/engine/engine.h"
#include "router/shared/worker/worker.h"

struct gw_link {
	uint32_t tag;
	uint16_t slot;
	char *address;                /* owned */
	struct grpc_channel *channel; /* NULL: the node has no agent */
	struct http_client *engine;   /* NULL: none was needed yet */
	char *engine_address;         /* owned */
	/* engine without an agent: the value of its Authorization, owned; NULL: none */
	char *authorization;
	struct weburl *url;    /* where the paths of that engine begin, owned; NULL: the node has an agent */
	uint32_t direct;       /* open calls straight to the engine */
	bool direct_away;      /* the log was told that the engine can't be reached */
	cgn_nsec direct_after; /* until this instant all calls go by the agent */
	uint32_t calls;        /* open calls that hold a reference */
	/* hash of the id of the node whose metric cells these are; 0: none yet */
	uint64_t node_id_hash;
	struct metric_cell *predicted, *actual; /* cached tokens */
	bool retired;                           /* no longer in worker->links */
	struct cgn_grave grave;
};

/* Set |*out| to the link of |node| and take a reference, which gw_link_release gives back. Fails where no
 * channel can be made. */
CGN_RC gw_link_get(struct gw_worker *w, const struct view_node *node, struct gw_link **out,
	struct cgn_err *err);
/* Let |l| have a pool of connections to the engine that |node| names. False: there is none, or it had another engine,
 * which gw_links_sweep will see. */
bool gw_link_engine(struct gw_worker *w, struct gw_link *l, const struct view_node *node);
void gw_link_release(struct gw_worker *w, struct gw_link **take);

/* Retire the links whose node left the view, or has another address or another engine. */
void gw_links_sweep(struct gw_worker *w);
/* Retire all links. */
void gw_links_close(struct gw_worker *w);
