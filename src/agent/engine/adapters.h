/* SPDX-License-Identifier: Apache-2.0 */
/* adapters: the LoRA adapters that operators want the engine to have, or to have no more. One request to the engine
 * at a time; a refused one is repeated after a pause. An engine that was restarted gets its adapters again. At most
 * PROTO_MAX_ADAPTERS, about 2 KiB each. */
#pragma once
#include "io/wire/webask/webask.h"
#include "policy/node/wanted/wanted.h"

struct engine;
struct engine_adapter {
	char name[WANTED_MAX_NAME + 1], path[WANTED_MAX_PATH + 1];
	enum adapter_state {
		ADAPTER_UNKNOWN,  /* The engine may have it or not */
		ADAPTER_READY,    /* The engine has it from |path| */
		ADAPTER_DRAINING, /* No new requests; those in flight end */
		ADAPTER_GONE,
	} state;
	uint64_t revision;  /* The order that is obeyed (WantedModel.revision) */
	bool wanted, asked; /* |asked|: the request to the engine is under way */
	char why[400];      /* Why the engine refused the last request; "": it did not */
	cgn_nsec since;     /* When it began to drain */
	cgn_nsec retry_at;
	unsigned failures; /* Refused requests in a row */
};
struct engine_adapters {
	struct engine_adapter *list; /* Owned */
	size_t n;
	struct webask *fetch; /* NULL: none is under way */
};
void engine_adapters_close(struct engine *e);
/* Obey an order: whether the engine shall have the adapter, on this node. A new order is tried at once. */
void engine_adapter_want(struct engine *e, const Cognitora__V1__WantedModel *m, const char *path,
	bool wanted);
/* Take the next step. True: there are further ones, call again soon. */
bool engine_adapters_step(struct engine *e);
/* The engine became ready, or is ready no more: what it has is not known. */
void engine_adapters_forget(struct engine *e);
/* True if the engine has the adapter, also while it drains. */
bool engine_adapter_serves(const struct engine *e, struct cgn_str model);
/* True if no routers may send requests for the model there: it is an adapter that drains or is gone. */
bool engine_adapter_hides(const struct engine *e, const char *model);
const char *engine_adapter_text(
	const struct engine_adapter *a); /* Return its state for the node's description; static. */
