/* SPDX-License-Identifier: Apache-2.0 */
/* packet: whole messages, and descriptors with them, between programs of one machine: Unix sockets of
 * SOCK_SEQPACKET. A connection belongs to the loop it was made on.
 *
 * Bounds: a packet is PACKET_MAX bytes at most and brings one descriptor at most; what comes otherwise ends
 * the connection. What the socket does not take is queued: over |max_queue| bytes the connection ends. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/loop/loop.h"

#define PACKET_MAX CGN_LOOP_SCRATCH

struct packet_conn;
struct packet_ops {
	/* One packet, borrowed. |*fd| is the descriptor that came along, else -1; who keeps it sets it to -1,
	 * else it is closed. */
	void (*on_packet)(struct packet_conn *c, void *user, const uint8_t *p, size_t n, int *fd);
	/* what was queued is with the kernel; may be NULL */
	void (*on_drain)(struct packet_conn *c, void *user);
	/* Never inline. |c| is gone when this returns. Does not come after packet_close. */
	void (*on_close)(struct packet_conn *c, void *user, const struct cgn_err *why);
};
/* |path| without "unix:". A Unix socket is connected at once or not at all: CGN_UNAVAILABLE says why not. */
CGN_RC packet_connect(struct cgn_loop *l, const char *path, size_t max_queue, const struct packet_ops *ops,
	void *user, struct packet_conn **out, struct cgn_err *err);
/* |fd| is borrowed, or -1. No-op once it failed */
void packet_send(struct packet_conn *c, const struct iovec *iov, size_t n, int fd);
size_t packet_queued(const struct packet_conn *c); /* bytes */
void packet_pause(struct packet_conn *c);          /* no on_packet; that the peer is gone is still seen */
void packet_resume(struct packet_conn *c);
void packet_close(struct packet_conn **take); /* at once, NULL-safe; what is queued is dropped */

struct packet_listener;
struct packet_listen_cfg {
	const char *path;
	mode_t mode;        /* 0: 0660 */
	unsigned max_conns; /* beyond it connections are closed at once; 0: 16384 */
	size_t max_queue;   /* of each connection */
	/* Accept from this listener's socket, which is another loop's. To be called before that loop runs;
	 * NULL: none */
	struct packet_listener *with;
};
/* |on_accept| must call packet_take, or the connection is closed. CGN_ADDRESS_IN_USE. */
CGN_RC packet_listen(struct cgn_loop *l, const struct packet_listen_cfg *cfg,
	void (*on_accept)(void *user, struct packet_conn *c), void *user, struct packet_listener **out,
	struct cgn_err *err);
void packet_take(struct packet_conn *c, const struct packet_ops *ops, void *user);
/* NULL-safe; connections go on. Removes the file that it made */
void packet_listener_close(struct packet_listener **take);
