/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the stores of other nodes. joint/kv/kvpeer runs on worker 0; other workers ask it and are answered by
 * posts between loops. */
#pragma once
#include "kvcached/daemon/kvcached.h"

struct kvpeer;
struct kvpeer_ask;
#define PEERS_NONE "blocks do not move between nodes here: see kv.transport and [security]"

/* Fetch a block from a peer, on any worker; as kvpeer_fetch, with |done| on |l|. Fails at once with
 * CGN_UNAVAILABLE when this store has no peers, and with CGN_NOT_FOUND when no peer has the block. */
struct peers_fetch;
CGN_RC peers_fetch(struct kvcached *d, struct cgn_loop *l, const struct block_key *k,
	const struct kvpeer_ask *ask, kvstore_read_done done, void *user, struct peers_fetch **out,
	struct cgn_err *err);
void peers_fetch_cancel(struct peers_fetch **take); /* NULL-safe; on |l| */
/* Return the name of the nearest peer that has the block, of this site or of |sites|; NULL: none has. Any worker. */
const char *peers_nearest(struct kvcached *d, const struct block_key *k, uint16_t sites);
/* Return the address at which peers reach this store; empty: it has none. */
const char *peers_quic_address(const struct kvcached *d);
/* Free the objects that the port leaves, after kvcached_workers_close. */
void peers_free(struct kvcached *d);

/* Call |write| on the loop of the peers, then |done| on |l| with the text. Returns NULL when this store has no peers. */
struct peers_question;
typedef void peers_write_fn(const struct kvcached *d, const struct kvpeer *kp, struct cgn_buf *out);
typedef void peers_told_fn(void *user, const struct cgn_buf *text);
struct peers_question *peers_ask(struct kvcached *d, struct cgn_loop *l, peers_write_fn *write,
	peers_told_fn *done, void *user);
/* Cancel a question: |done| does not run. NULL-safe; on |l|, before |done| ran. */
void peers_question_drop(struct peers_question **take);
/* Answer GET /peers, later. */
void peers_visit(struct kvcached *d, struct svc_admin_reply *r);
