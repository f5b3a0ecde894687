/* SPDX-License-Identifier: Apache-2.0 */
/* packet: whole messages, with descriptors, between programs of one machine, over Unix sockets of type
 * SOCK_SEQPACKET. A connection belongs to the loop it was made on.
 *
 * Bounds: a packet has at most PACKET_MAX bytes and one descriptor; anything else ends the connection.
 * Packets that the socket does not take are queued; a queue over |max_queue| bytes ends the connection. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/os/loop/loop.h"

#define PACKET_MAX CGN_LOOP_SCRATCH

struct packet_conn;
struct packet_ops {
	/* A packet, borrowed. |*fd| is the descriptor that came with it, else -1. A callback that keeps the
	 * descriptor sets |*fd| to -1; otherwise it is closed. */
	void (*on_packet)(struct packet_conn *c, void *user, const uint8_t *p, size_t n, int *fd);
	/* Everything queued is with the kernel; may be NULL. */
	void (*on_drain)(struct packet_conn *c, void *user);
	/* Never inline. |c| is freed when this returns. Not called after packet_close. */
	void (*on_close)(struct packet_conn *c, void *user, const struct cgn_err *why);
};
/* Connect to |path| (without "unix:"). A Unix socket connects at once or not at all; CGN_UNAVAILABLE says why
 * not. */
CGN_RC packet_connect(struct cgn_loop *l, const char *path, size_t max_queue, const struct packet_ops *ops,
	void *user, struct packet_conn **out, struct cgn_err *err);
/* |fd| is borrowed, or -1. Does nothing after the connection failed. */
void packet_send(struct packet_conn *c, const struct iovec *iov, size_t n, int fd);
size_t packet_queued(const struct packet_conn *c); /* Bytes queued. */
/* No on_packet while paused; the peer's end is still reported. */
void packet_pause(struct packet_conn *c);
void packet_resume(struct packet_conn *c);
void packet_close(struct packet_conn **take); /* Close at once and drop queued packets; NULL-safe. */

struct packet_listener;
struct packet_listen_cfg {
	const char *path;
	mode_t mode;        /* 0: 0660 */
	unsigned max_conns; /* Further connections are closed at once; 0: 16384. */
	size_t max_queue;   /* Bytes queued per connection. */
	/* Accept from this listener's socket, which belongs to another loop. Call before that loop runs.
	 * NULL: none. */
	struct packet_listener *with;
};
/* |on_accept| must call packet_take, or the connection is closed. CGN_ADDRESS_IN_USE. */
CGN_RC packet_listen(struct cgn_loop *l, const struct packet_listen_cfg *cfg,
	void (*on_accept)(void *user, struct packet_conn *c), void *user, struct packet_listener **out,
	struct cgn_err *err);
void packet_take(struct packet_conn *c, const struct packet_ops *ops, void *user);
/* Stop listening and remove the file that the listener made; connections live on. NULL-safe. */
void packet_listener_close(struct packet_listener **take);
