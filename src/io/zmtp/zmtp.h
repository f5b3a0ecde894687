/* SPDX-License-Identifier: Apache-2.0 */
/* zmtp: ZeroMQ sockets, as much of them as KV events need: SUB, PUB, DEALER and ROUTER over tcp:// and
 * ipc://, speaking ZMTP 3.0 (RFC 23) with the NULL mechanism; of 3.1 (RFC 37) PING, PONG, SUBSCRIBE and
 * CANCEL are understood. Runs on our loop, without threads of its own.
 *
 * A message is an array of parts. An endpoint is "tcp://host:port", "tcp://[v6]:port" or "ipc:///path"; when
 * binding the host may be an asterisk. One socket has one endpoint. A socket that connects comes back by
 * itself, 100 ms to 2 s later, for as long as it is open; what waited to be sent is lost then. Bounds: a
 * message that comes in has at most max_message bytes and ZMTP_MAX_PARTS parts, or the connection is closed;
 * what waits for a peer that reads slowly has at most |queue| bytes, and a message that doesn't fit is
 * dropped for this peer and counted (as ZeroMQ's high-water mark does for PUB and ROUTER). Any callback may
 * close the socket. One loop, its thread. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"

#define ZMTP_MAX_PARTS  16
#define ZMTP_MAX_TOPIC  255
#define ZMTP_MAX_TOPICS 64  /* subscriptions of one peer at a PUB; more close its connection */
#define ZMTP_MAX_PEERS  256 /* of a socket that binds */

enum zmtp_kind { ZMTP_SUB, ZMTP_PUB, ZMTP_DEALER, ZMTP_ROUTER };
enum zmtp_link {
	ZMTP_CONNECTED,    /* greeted: messages flow from here on */
	ZMTP_DISCONNECTED, /* |why| tells; follows each CONNECTED but for those that zmtp_close ends */
	ZMTP_RETRYING,     /* a try to connect failed, |why| tells; the next one is armed */
};

struct zmtp;
struct zmtp_ops {
	/* |parts| are borrowed until it returns; |n| >= 1. |peer| names the connection for zmtp_send_to. May
	 * be NULL. */
	void (*on_message)(struct zmtp *s, void *user, uint64_t peer, const struct cgn_str *parts, size_t n);
	/* may be NULL */
	void (*on_link)(struct zmtp *s, void *user, uint64_t peer, enum zmtp_link what, const char *why);
};
struct zmtp_cfg {
	enum zmtp_kind kind;
	const char *endpoint;
	bool bind;
	struct cgn_str topic; /* SUB: what messages must begin with; empty: all */
	size_t max_message;   /* 0: 16 MiB */
	/* bytes of messages, for each peer; 0: 16 MiB. Its buffer, with answers to PINGs, is at most twice
	 * that */
	size_t queue;
	/* A peer that speaks 3.1 is pinged when it was silent that long, and given up after three times as
	 * long; 0: 5 s. */
	cgn_nsec heartbeat;
};

/* INVALID: |endpoint| or |topic|, with what is wrong, or a DEALER that binds; ADDRESS_IN_USE and others when
 * it can't bind. Never calls back before it returned. */
CGN_RC zmtp_open(struct cgn_loop *l, const struct zmtp_cfg *cfg, const struct zmtp_ops *ops, void *user,
	struct zmtp **out, struct cgn_err *err);
/* flushes what peers take at once; no callback comes any more. NULL-safe */
void zmtp_close(struct zmtp **take);
CGN_RC zmtp_endpoint_check(const char *endpoint, struct cgn_err *err);
unsigned zmtp_port(const struct zmtp *s); /* of a bound tcp socket */

/* PUB: to every peer that subscribed to what parts[0] begins with. DEALER: to its peer. UNAVAILABLE: not
 * connected (never for PUB); OVERLOADED: dropped for a peer at least; INVALID: not 1 to ZMTP_MAX_PARTS parts.
 * Never on a SUB. */
CGN_RC zmtp_send(struct zmtp *s, const struct cgn_str *parts, size_t n);
/* ROUTER (and DEALER): to this peer alone. NOT_FOUND: it is gone. */
CGN_RC zmtp_send_to(struct zmtp *s, uint64_t peer, const struct cgn_str *parts, size_t n);

struct zmtp_stats {
	uint64_t received, sent, dropped; /* messages; dropped for a full queue */
	/* connections ended because the peer did not keep to the protocol */
	uint64_t faults;
	size_t peers; /* greeted */
};
struct zmtp_stats zmtp_stats(const struct zmtp *s);
