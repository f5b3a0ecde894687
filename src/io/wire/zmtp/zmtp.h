/* SPDX-License-Identifier: Apache-2.0 */
/* zmtp: ZeroMQ sockets, as far as KV events need them: SUB, PUB, DEALER and ROUTER over tcp:// and ipc://,
 * speaking ZMTP 3.0 (RFC 23) with the NULL mechanism; of 3.1 (RFC 37) PING, PONG, SUBSCRIBE and CANCEL are
 * understood. Runs on the project's loop, without threads of its own.
 *
 * A message is an array of parts. An endpoint is "tcp://host:port", "tcp://[v6]:port" or "ipc:///path"; when
 * binding, the host may be an asterisk. One socket has one endpoint. A socket that connects reconnects by
 * itself after 100 ms to 2 s, while it is open; messages that waited to be sent are lost then.
 *
 * Bounds: an incoming message has at most max_message bytes and ZMTP_MAX_PARTS parts, or the connection is
 * closed. At most |queue| bytes wait for a peer that reads slowly; a message that does not fit is dropped for
 * this peer and counted (as ZeroMQ's high-water mark does for PUB and ROUTER). Any callback may close the
 * socket. One loop, on its thread. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "io/os/loop/loop.h"

#define ZMTP_MAX_PARTS  16
#define ZMTP_MAX_TOPIC  255
#define ZMTP_MAX_TOPICS 64  /* Subscriptions of one peer at a PUB; more close its connection. */
#define ZMTP_MAX_PEERS  256 /* Peers of a socket that binds. */

enum zmtp_kind { ZMTP_SUB, ZMTP_PUB, ZMTP_DEALER, ZMTP_ROUTER };
enum zmtp_link {
	ZMTP_CONNECTED, /* The greeting is done: messages flow from here on. */
	/* |why| tells the reason; follows each CONNECTED, except those that zmtp_close ends. */
	ZMTP_DISCONNECTED,
	/* An attempt to connect failed, |why| tells the reason; the next attempt is scheduled. */
	ZMTP_RETRYING,
};

struct zmtp;
struct zmtp_ops {
	/* A message. |parts| are borrowed until the callback returns; |n| >= 1. |peer| names the connection
	 * for zmtp_send_to. May be NULL. */
	void (*on_message)(struct zmtp *s, void *user, uint64_t peer, const struct cgn_str *parts, size_t n);
	/* May be NULL. */
	void (*on_link)(struct zmtp *s, void *user, uint64_t peer, enum zmtp_link what, const char *why);
};
struct zmtp_cfg {
	enum zmtp_kind kind;
	const char *endpoint;
	bool bind;
	struct cgn_str topic; /* SUB: the prefix of wanted messages; empty: all messages. */
	size_t max_message;   /* In bytes; 0: 16 MiB. */
	/* Bytes of queued messages for each peer; 0: 16 MiB. The buffer, with answers to PINGs, takes at most
	 * twice that. */
	size_t queue;
	/* A peer that speaks 3.1 gets a PING after this much silence, and is given up after three times as
	 * long; 0: 5 s. */
	cgn_nsec heartbeat;
};

/* Open the socket. INVALID: |endpoint| or |topic| is wrong (the message says how), or a DEALER binds;
 * ADDRESS_IN_USE and others when binding fails. Never calls back before it returned. */
CGN_RC zmtp_open(struct cgn_loop *l, const struct zmtp_cfg *cfg, const struct zmtp_ops *ops, void *user,
	struct zmtp **out, struct cgn_err *err);
/* Send as much as peers take at once, and close; no callback comes any more. NULL-safe. */
void zmtp_close(struct zmtp **take);
CGN_RC zmtp_endpoint_check(const char *endpoint, struct cgn_err *err);
unsigned zmtp_port(const struct zmtp *s); /* Port of a bound tcp socket. */

/* PUB: send to every peer whose subscription is a prefix of parts[0]. DEALER: send to its peer. UNAVAILABLE:
 * not connected (never for PUB). OVERLOADED: dropped for at least one peer. INVALID: not 1 to ZMTP_MAX_PARTS
 * parts. Not allowed on a SUB. */
CGN_RC zmtp_send(struct zmtp *s, const struct cgn_str *parts, size_t n);
/* ROUTER (and DEALER): send to this peer alone. NOT_FOUND: the peer is gone. */
CGN_RC zmtp_send_to(struct zmtp *s, uint64_t peer, const struct cgn_str *parts, size_t n);

struct zmtp_stats {
	uint64_t received, sent, dropped; /* Messages; dropped: because a queue was full. */
	/* Connections ended because the peer broke the protocol. */
	uint64_t faults;
	size_t peers; /* Peers whose greeting is done. */
};
struct zmtp_stats zmtp_stats(const struct zmtp *s);
