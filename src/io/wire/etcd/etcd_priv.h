/* SPDX-License-Identifier: Apache-2.0 */
/* etcd, inside: the endpoints, and the one in use. */
#pragma once
#include "base/core/list.h"
#include "etcd/etcd.pb-c.h"
#include "io/os/loop/backoff.h"
#include "io/wire/etcd/etcd.h"
#include "io/wire/grpc/grpc.h"

#define ETCD_TAG 0xe7cd0001U

struct etcd {
	uint32_t tag;
	bool dying;
	struct cgn_loop *loop;
	struct tls_ctx *tls;
	cgn_nsec timeout;
	struct grpc_channel *channels[ETCD_MAX_ENDPOINTS];
	size_t n_channels, current;
	struct cgn_link ops;
	unsigned users; /* Leases and watches. */
};
/* ---- op.c ---- */
/* A kind of call: where it goes, and how the bytes of its answer are read. */
struct etcd_kind {
	const char *path;
	CGN_RC (*answer)(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
		struct cgn_err *err);
};
/* Start a call with |message|, any generated struct. As the calls of etcd.h. */
struct etcd_op *etcd_op_start(struct etcd *e, const struct etcd_kind *kind, const void *message,
	etcd_done_fn *done, void *user);
/* Within |answer|: give |r| to the caller, while what it borrows is there. */
void etcd_op_tell(struct etcd_op *op, const struct etcd_result *r);

/* The endpoint |used| failed: switch to the next one, unless another call has switched already. */
void etcd_move_on(struct etcd *e, size_t used);
struct cgn_backoff etcd_backoff(void);
