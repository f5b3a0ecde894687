/* SPDX-License-Identifier: Apache-2.0 */
/* link: a worker's gRPC connections to the agent of one node. A link is created for the first call to its node
 * and retired when the node leaves or moves; the last call that uses a retired link frees it. */
#pragma once
#include "io/grpc/grpc.h"
#include "router/worker/worker.h"

struct gw_link {
	uint32_t tag;
	uint16_t slot;
	char *address; /* owned */
	struct grpc_channel *channel;
	uint32_t calls; /* open calls that hold a reference */
	/* hash of the id of the node whose metric cells these are; 0: none yet */
	uint64_t node_id_hash;
	struct metric_cell *predicted, *actual; /* cached tokens */
	bool retired;                           /* no longer in worker->links */
	struct cgn_grave grave;
};

/* Set |*out| to the link of |node| and take a reference, which gw_link_release gives back. NO_MEMORY, or why
 * no channel could be made. */
CGN_RC gw_link_get(struct gw_worker *w, const struct view_node *node, struct gw_link **out,
	struct cgn_err *err);
void gw_link_release(struct gw_worker *w, struct gw_link **take);

/* Retire the links whose node left the view or has another address. */
void gw_links_sweep(struct gw_worker *w);
/* Retire all links. */
void gw_links_close(struct gw_worker *w);
