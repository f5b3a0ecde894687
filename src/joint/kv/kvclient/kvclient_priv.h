/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of kvclient: the connection, its calls, the memory of values. */
#pragma once
#include "base/core/list.h"
#include "io/net/net/packet.h"
#include "io/os/loop/backoff.h"
#include "joint/kv/kvclient/kvclient.h"
#include "policy/kv/kvbulk/kvbulk.h"

#define KVCLIENT_TAG       0x4b56434cU
#define KVCLIENT_CALL_TAG  0x4b56434dU
#define KVCLIENT_LEASE_TAG 0x4b56434eU
#define KVCLIENT_MAP_TAG   0x4b564350U

/* Memory of the store, mapped for reading: the arena of a connection, or one value. Leases keep it mapped. */
struct kvclient_map {
	uint32_t tag;
	unsigned refs;
	const uint8_t *p;
	uint64_t bytes;
};

#define KVCLIENT_CALL_PACKETS 4 /* a long list of keys goes in several packets */
#define KVCLIENT_MAX_RETURNS  64

struct kvclient {
	uint32_t tag;
	struct cgn_loop *loop;
	char *path;
	cgn_nsec timeout;
	void (*on_state)(void *user, bool ready, const struct cgn_err *why);
	void *user;
	/* NULL: |timer| reconnects; before ready: |timer| is the timeout of WELCOME */
	struct packet_conn *conn;
	bool ready, told; /* told: on_state knows that the client is not ready */
	uint32_t version; /* the newest that both sides speak */
	struct kvbulk_terms terms;
	struct kvclient_map *map; /* NULL: each value comes with its own descriptor */
	struct cgn_timer timer, deadline;
	struct cgn_backoff backoff;
	struct cgn_link calls, leases; /* oldest first */
	struct kvclient_call *slots[KVCLIENT_MAX_CALLS];
	uint16_t free_slots[KVCLIENT_MAX_CALLS];
	size_t n_free;
	uint64_t serial; /* part of call ids */
	/* Released leases. The store is told at the end of the turn, or with the next request. */
	uint64_t back[KVCLIENT_MAX_RETURNS];
	size_t n_back;
	struct cgn_hook give_back;
	kvclient_watch_fn *on_changes;
	void *watch_user;
	uint64_t watch_id;
	struct cgn_buf out; /* the message that is being built */
	struct cgn_grave grave;
};

/* The packets of a call have the ids |id|, |id| + 1 and so on; an id contains the slot. */
struct kvclient_call {
	uint32_t tag;
	struct kvclient *client;
	struct cgn_link link;
	enum kvbulk_type type;
	uint32_t worth_ms; /* get only */
	bool again;        /* the checksum of a get was wrong, so the store compares it now */
	uint64_t id;
	unsigned unanswered; /* bits, by packet */
	cgn_nsec deadline;
	struct block_key key; /* get only */
	char tenant[BLOCK_MAX_TENANT];
	size_t n_tenant; /* get only */
	struct block_info *infos;
	size_t n_infos;
	uint32_t removed;
	struct sum_job *summing; /* the job on the pool that computes the checksum */
	kvclient_done_fn *done;
	void *user;
};

struct kvclient_lease {
	uint32_t tag;
	struct cgn_loop *loop;
	struct kvclient *client; /* NULL: the connection is gone */
	struct cgn_link link;
	uint64_t id;
	cgn_nsec until;
	struct kvclient_map *map;
	struct block_info info;
	size_t n_iov;
	struct iovec iov[];
};

/* ---- kvclient.c ---- */
/* begins a message in c->out */
struct cgn_buf *kvclient_message(struct kvclient *c, const struct kvbulk_msg *m);
void kvclient_send(struct kvclient *c, int fd); /* sends c->out */
/* closes, and reconnects later */
void kvclient_lose(struct kvclient *c, const struct cgn_err *why);

/* ---- calls.c ---- */
/* Hand an answer to its call. */
void kvclient_calls_answer(struct kvclient *c, const struct kvbulk_msg *m, int fd);
void kvclient_calls_fail(struct kvclient *c, const struct cgn_err *why);
void kvclient_calls_forget(struct kvclient *c); /* no call gets a callback */
void kvclient_calls_on_deadline(struct cgn_timer *t);
void kvclient_calls_init(struct kvclient *c);

/* ---- lease.c ---- */
/* Map the store's memory. CGN_BAD_GATEWAY: the file is smaller than announced, or could be truncated. */
CGN_RC kvclient_map_new(int fd, uint64_t bytes, struct kvclient_map **out, struct cgn_err *err);
void kvclient_map_unref(struct kvclient_map **take);
/* Create the lease of a VALUE. CGN_BAD_GATEWAY: the value lies outside of the map. */
CGN_RC kvclient_lease_new(struct kvclient *c, const struct kvbulk_msg *m, int fd, struct kvclient_lease **out,
	struct cgn_err *err);
void kvclient_leases_orphan(struct kvclient *c);                /* cuts leases off from a lost connection */
void kvclient_lease_return(struct kvclient *c, uint64_t lease); /* tells the store at the end of the turn */
void kvclient_leases_flush(struct kvclient *c);
void kvclient_leases_add(struct kvclient *c, struct cgn_buf *out); /* adds all released leases to a message */
void kvclient_leases_on_turn_end(struct cgn_hook *h);
