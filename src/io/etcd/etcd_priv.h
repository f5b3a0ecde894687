/* SPDX-License-Identifier: Apache-2.0 */
/* etcd, inside: the endpoints, and the one in use. */
#pragma once
#include "base/core/list.h"
#include "etcd/etcd.pb-c.h"
#include "io/etcd/etcd.h"
#include "io/grpc/grpc.h"
#include "io/loop/backoff.h"

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
/* The endpoint |used| failed: switch to the next one, unless another call has switched already. */
void etcd_move_on(struct etcd *e, size_t used);
struct cgn_backoff etcd_backoff(void);
