/* SPDX-License-Identifier: Apache-2.0 */
/* kvclient, inside: the connection, the calls on it, the memory that values lie in. */
#pragma once
#include "base/core/list.h"
#include "io/loop/backoff.h"
#include "io/net/packet.h"
#include "joint/kvclient/kvclient.h"
#include "policy/kvbulk/kvbulk.h"

#define KVCLIENT_TAG       0x4b56434cU
#define KVCLIENT_CALL_TAG  0x4b56434dU
#define KVCLIENT_LEASE_TAG 0x4b56434eU
#define KVCLIENT_MAP_TAG   0x4b564350U

/* Memory of the store, mapped for reading: a connection's arena, or one value. It stays as long as somebody
 * reads in it. */
struct kvclient_map {
	uint32_t tag;
	unsigned refs;
	const uint8_t *p;
	uint64_t bytes;
};

#define KVCLIENT_CALL_PACKETS 4 /* a long list of keys goes in several */
#define KVCLIENT_MAX_RETURNS  64

struct kvclient {
	uint32_t tag;
	struct cgn_loop *loop;
	char *path;
	cgn_nsec timeout;
	void (*on_state)(void *user, bool ready, const struct cgn_err *why);
	void *user;
	struct packet_conn *conn; /* NULL: |timer| is for the next try; else, until ready, for WELCOME */
	bool ready, told;         /* told: that it is not ready */
	struct kvbulk_terms terms;
	struct kvclient_map *map; /* NULL: values come with descriptors of their own */
	struct cgn_timer timer, deadline;
	struct cgn_backoff backoff;
	struct cgn_link calls, leases; /* oldest first */
	struct kvclient_call *slots[KVCLIENT_MAX_CALLS];
	uint16_t free_slots[KVCLIENT_MAX_CALLS];
	size_t n_free;
	uint64_t serial; /* of ids */
	/* leases that were released, to be told at the end of the turn or before the next request */
	uint64_t back[KVCLIENT_MAX_RETURNS];
	size_t n_back;
	struct cgn_hook give_back;
	kvclient_watch_fn *on_changes;
	void *watch_user;
	uint64_t watch_id;
	struct cgn_buf out; /* the message that is being written */
	struct cgn_grave grave;
};

/* Ids of its packets: id, id + 1 and so on; the slot is in it. */
struct kvclient_call {
	uint32_t tag;
	struct kvclient *client;
	struct cgn_link link;
	enum kvbulk_type type;
	uint32_t worth_ms; /* of a get */
	bool again;        /* again: of a get whose checksum was wrong; the store looks itself now */
	uint64_t id;
	unsigned unanswered; /* bit by packet */
	cgn_nsec deadline;
	struct block_key key; /* of a get */
	struct block_info *infos;
	size_t n_infos;
	uint32_t removed;
	struct sum_job *summing; /* the pool compares its checksum */
	kvclient_done_fn *done;
	void *user;
};

struct kvclient_lease {
	uint32_t tag;
	struct cgn_loop *loop;
	struct kvclient *client; /* NULL: its connection is gone */
	struct cgn_link link;
	uint64_t id;
	cgn_nsec until;
	struct kvclient_map *map;
	struct block_info info;
	size_t n_iov;
	struct iovec iov[];
};

/* ---- kvclient.c ---- */
struct cgn_buf *kvclient_message(struct kvclient *c, const struct kvbulk_msg *m); /* begins c->out */
void kvclient_send(struct kvclient *c, int fd);                                   /* c->out */
void kvclient_lose(struct kvclient *c, const struct cgn_err *why);                /* and try again later */

/* ---- calls.c ---- */
/* what the store said to whichever call */
void kvclient_calls_answer(struct kvclient *c, const struct kvbulk_msg *m, int fd);
void kvclient_calls_fail(struct kvclient *c, const struct cgn_err *why);
void kvclient_calls_forget(struct kvclient *c); /* nobody is called back */
void kvclient_calls_on_deadline(struct cgn_timer *t);
void kvclient_calls_init(struct kvclient *c);

/* ---- lease.c ---- */
/* CGN_BAD_GATEWAY: the descriptor is not what was announced, or could be cut under us. */
CGN_RC kvclient_map_new(int fd, uint64_t bytes, struct kvclient_map **out, struct cgn_err *err);
void kvclient_map_unref(struct kvclient_map **take);
/* Of a VALUE. CGN_BAD_GATEWAY: it does not lie in the map. */
CGN_RC kvclient_lease_new(struct kvclient *c, const struct kvbulk_msg *m, int fd, struct kvclient_lease **out,
	struct cgn_err *err);
void kvclient_leases_orphan(struct kvclient *c);                /* the connection is gone */
void kvclient_lease_return(struct kvclient *c, uint64_t lease); /* tell the store */
void kvclient_leases_flush(struct kvclient *c);
void kvclient_leases_add(struct kvclient *c,
	struct cgn_buf *out); /* all c->n_back of them, as a message's items */
void kvclient_leases_on_turn_end(struct cgn_hook *h);
