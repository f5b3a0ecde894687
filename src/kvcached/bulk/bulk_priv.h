/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of bulk: a client of the descriptor path, its leases and its calls. On the worker's loop. */
#pragma once
#include "base/core/list.h"
#include "io/net/net/packet.h"
#include "kvcached/feed/feed.h"
#include "kvcached/value/value.h"
#include "policy/kv/kvbulk/kvbulk.h"

#define BULK_TAG        0x4b444255U
#define BULK_CLIENT_TAG 0x4b444243U
#define BULK_MAX_CALLS  64   /* per client; further packets wait in its socket */
#define BULK_MAX_LEASES 1024 /* per client */

struct bulk {
	uint32_t tag;
	bool draining;
	struct kvcached_worker *w;
	struct packet_listener *listener;
	struct cgn_link clients;
	size_t waiting; /* calls of all clients */
	cgn_nsec lease_timeout;
	uint64_t client_bytes;  /* most bytes that one client may lease, except for its first value */
	struct cgn_timer sweep; /* ends overdue leases */
	struct cgn_timer feeds; /* sends changes to watchers */
	size_t watchers;
	struct cgn_buf out; /* the message that is being built */
};

struct bulk_lease {
	uint64_t id;
	uint64_t bytes;
	cgn_nsec until;
	struct kvstore_block *block;
	struct cgn_link link; /* oldest first */
};

struct bulk_client {
	uint32_t tag;
	bool greeted, watching, paused;
	struct bulk *bulk;
	struct packet_conn *conn; /* NULL: the connection is gone */
	struct cgn_link link;
	struct bulk_lease **slots; /* leases by slot; an id is the slot and a serial number */
	size_t n_slots, n_leases;
	uint64_t lease_bytes, lease_serial;
	struct cgn_link leases;
	struct cgn_link calls;
	size_t n_calls;
	struct feed_cursor feed;
	uint64_t watch_id;
	struct cgn_grave grave;
};

/* A call that waits for the store or the pool. */
enum bulk_call_kind { BULK_GET, BULK_PUT };
struct bulk_call {
	enum bulk_call_kind kind;
	struct bulk_client *client; /* NULL: the client is gone */
	struct cgn_link link;
	uint64_t id;
	struct value_read *read; /* GET only */
};

/* ---- bulk.c ---- */
void bulk_fail(struct bulk_client *c, uint64_t id, const struct cgn_err *why);
void bulk_send(struct bulk_client *c, int fd); /* sends bulk->out */
void bulk_send_info(struct bulk_client *c, uint64_t id, const struct block_info *info);
void bulk_call_begin(struct bulk_client *c, struct bulk_call *call, enum bulk_call_kind kind, uint64_t id);
void bulk_call_end(struct bulk_call *call); /* does not free |call| */

/* ---- lease.c ---- */
/* Lease |*take| to the client, and reply; an error is the reply too. */
void bulk_lend(struct bulk_client *c, uint64_t id, struct kvstore_block **take);
void bulk_release(struct bulk_client *c, uint64_t lease); /* ignores unknown leases */
void bulk_release_all(struct bulk_client *c);
bool bulk_is_overdue(struct bulk_client *c, cgn_nsec now);

/* ---- put.c ---- */
void bulk_put(struct bulk_client *c, const struct kvbulk_msg *m, int *fd);
