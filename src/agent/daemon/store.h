/* SPDX-License-Identifier: Apache-2.0 */
/* store: the node's block store. One connection and one watch serve all engines; the store's address for peers
 * goes into the node's description. */
#pragma once
#include "io/wire/grpc/grpc.h"
#include "joint/kv/kvclient/kvclient.h"
#include "policy/config/config.h"

struct node_store_ops {
	/* The store became reachable, or is reachable no longer. */
	void (*ready)(void *user, bool ready);
	/* Keys of the store changed; |reset|: the changes begin from an empty store. */
	void (*changed)(void *user, bool reset, const struct block_change *changes, size_t n);
	/* The address at which peers reach the store changed. */
	void (*address_changed)(void *user);
};
struct node_store {
	const struct node_store_ops *ops;
	void *user;
	struct kvclient *client;    /* NULL: no store is configured */
	struct grpc_channel *stats; /* To the same store, for its address */
	struct cgn_timer timer;
	bool ready, asked;
	/* |quic|: the address for peers; |grpc|: the address for cgn-metrics; empty: unknown */
	char uds[108], quic[300], grpc[256], rack[65], region[65];
};
/* Connect to the store of agent.kv_uds, if one is configured. */
CGN_RC node_store_open(struct node_store *s, struct cgn_loop *l, const struct config *cfg,
	const struct node_store_ops *ops, void *user, struct cgn_err *err);
void node_store_close(struct node_store *s);
/* Watch from the beginning again: a reset and all keys follow. */
void node_store_rewatch(struct node_store *s);
