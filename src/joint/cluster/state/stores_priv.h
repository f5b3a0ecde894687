/* SPDX-License-Identifier: Apache-2.0 */
/* stores, inside: a backend of block stores. */
#pragma once
#include "joint/cluster/state/state_priv.h"

#define STATE_STORES_TAG 0x57a7e003U
struct stores_backend {
	CGN_RC (*open)(struct state_stores *s, const struct config *cfg,
		struct cgn_err *err);          /* sets s->own */
	void (*close)(struct state_stores *s); /* frees s->own; also after a failed open */
	CGN_RC (*reload_tls)(struct state_stores *s, struct cgn_err *err);
};
extern const struct stores_backend stores_router;

struct state_stores {
	uint32_t tag;
	struct state_source source;
	bool changed; /* by the answer that is being read */
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct stores_backend *backend;
	void *own; /* the backend's */
	const struct state_stores_ops *ops;
	void *user;
	struct roster known; /* nodes with nothing but an id and a store */
};
/* For backends: reports of stores. Tell the owner of a change. */
void stores_seen(struct state_stores *s, const char *id, Cognitora__V1__KvStore *kv);
void stores_gone(struct state_stores *s, struct roster_entry *e);
void stores_connected(struct state_stores *s, bool yes, const char *source, const char *why);
